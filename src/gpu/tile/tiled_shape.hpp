// Data flow of a tiled or one-hop call: senders and receivers of parts, the work of owners, and
// readers of results. Pure arithmetic, so tests need no GPU.
#pragma once
#include <cstdint>

#include "gpu/abi/direct_shape.hpp"
#include "gpu/abi/tile_args.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// Slots of a rank for calls of `blocks` blocks, of at least kSlotGrainBytes each: enough for full
/// blocks of any collective. An all_reduce of few blocks uses slots of half the size.
std::uint64_t tile_slots(int ranks, std::uint64_t blocks);
inline constexpr std::uint64_t kSlotGrainBytes = 128;

/// Requested launch and cut; 0 = chosen by size. The same on all ranks.
struct TileWish {
  unsigned most_blocks = 1;
  std::uint32_t tile_units = 0;
  std::uint32_t window = 0;             ///< Tiles of a block in flight to each peer.
  std::uint64_t slot_memory_bytes = 0;  ///< Slot memory of all blocks.
  std::uint64_t slot_blocks = 1;        ///< Blocks that have slots; the same in all calls.
  TargetOrder order = kByRank;
  bool turns = false;               ///< Blocks start with different targets.
  std::uint32_t piece_bytes = 0;    ///< Size of a bulk copy; pieces then go to targets in turn.
  std::uint32_t send_gb_per_s = 0;  ///< Rate of all that a GPU sends; 0 = unlimited.
};
/// Fills the fields of TiledArgs that follow from request and rank; all further fields are 0.
TiledArgs tiled_shape(const Request& request, int rank);
/// Fills in blocks and tiles of `shape`; returns the blocks of the launch.
unsigned spread_tiles(TiledArgs& shape, const TileWish& wish);

}  // namespace plait::cuda
