// Plans of tiled calls over all ranks, at the grain of tiles: each role of a block is a lane, and
// the flags between roles and between ranks are flags of the plan. Blocks share no byte and no
// flag, and each works with the same block of other ranks. The plan of a call with a single block
// is therefore the plan of any block, and the plan of a call with more has all blocks in step: tile
// t of the plan is tile t of every block, together a range of a part. A bulk copy reports that the
// input has been read a little before the slot holds it; the plan reports both at once.
#pragma once
#include "gpu/engine/engine.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "gpu/tile/tiled_shape.hpp"

namespace plait::cuda {

/// Flag::index of a block's flags: flags of TileFlags, then flags between the roles of a block.
enum TileWord : int {
  kTileParts = kTilePlanFlags.first,
  kTilePartsTaken,
  kTileResults,
  kTileResultsTaken,
  kTileFree,
  kTileSent,
  kTileArrived,
  kTileHandled,
  kTileEnded,        ///< also of TileFlags
  kTileBegun,        ///< every peer's slots may be written
  kTileHandlesDone,  ///< the roles that read slots have ended
  kTileCollectsDone
};

/// Returns the tuning as a wish. Blocks and tiles must be equal on all ranks, and therefore follow
/// from size and group alone.
TileWish tile_wish(const Tuning& tuning, const Group& group);

/// Returns the plan. With a single block (wish.most_blocks) slots are laid out as the first block's
/// slots in memory; with more, the slots of all blocks for a peer's tile are merged, and likewise
/// the memory of all blocks.
Plan tile_plan(const Topology& topology, const Request& request, const TileWish& wish);

const Engine& tiled_engine();

}  // namespace plait::cuda
