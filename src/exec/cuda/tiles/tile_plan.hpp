// What a tiled call does on all ranks, as a plan at the grain of tiles: each role of a block is a
// lane, and the words by which roles and ranks meet are the plan's. Blocks share no byte and no
// word, and each works with its own like on the other ranks; so the plan of a call with one block
// is that of any block, and of a call with more it has all blocks in step: tile t of the plan is
// tile t of every block, which together are one range of a part.
// Bulk copies tell that the input has been read a little before the slot holds it; the plan tells
// both at once.
#pragma once
#include "exec/cuda/group.hpp"
#include "exec/cuda/traffic/plan_flags.hpp"
#include "exec/cuda/traffic/tiled_shape.hpp"

namespace plait::cuda {

/// Flag::index of a block's words: those of TileFlags, then those between the roles of a block.
enum TileWord : int {
  kTileParts = kTileFlagsBase,
  kTilePartsTaken,
  kTileResults,
  kTileResultsTaken,
  kTileFree,
  kTileSent,
  kTileArrived,
  kTileHandled,
  kTileRelayed,
  kTilePace,
  kTileSummed,
  kTileEnded,        ///< of TileFlags, too
  kTileBegun,        ///< every peer's slots may be written
  kTileHandlesDone,  ///< the roles that read slots have ended
  kTileCollectsDone
};

/// Blocks and tiles must be the same on all ranks, so they follow from size and group alone.
TileWish tile_wish(const Tuning& tuning, const Group& group);

/// Of one block (wish.most_blocks) slots lie as the first block's do in memory; of more, the slots
/// of all blocks for a peer's tile are one, and so is the room of all blocks.
Plan tile_plan(const Topology& topology, const Request& request, const TileWish& wish);

}  // namespace plait::cuda
