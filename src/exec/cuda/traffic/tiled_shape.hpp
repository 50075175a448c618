// A request -> which bytes a tiled call, or one in one hop, moves where: who sends parts to whom,
// what their owners do with them, who reads the results. Pure arithmetic, so it is tested without a
// GPU.
#pragma once
#include <string>

#include "exec/cuda/tiles/tile_args.hpp"
#include "exec/cuda/traffic/direct_shape.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// Empty where a fold, a ring or all of these TilePulls serve the request; else why not.
std::string why_no_fold(const Request& request);
std::string why_no_ring(const Request& request);
std::string why_no_pull(const Request& request, int pull);

/// The type whose kernel serves it: data that is only moved goes as integers of the same width.
DataType moved_type(const Request& request);

/// Slots of one rank for calls of so many blocks, of kSlotGrainBytes each at least: what any
/// collective takes of full blocks. Where a few blocks all-reduce, slots are half as large.
std::uint64_t tile_slots(int ranks, std::uint64_t blocks = kTileBlocks);
inline constexpr std::uint64_t kSlotGrainBytes = 128;

/// How a call is spread; zeros = chosen. The same on all ranks.
struct TileWish {
  unsigned most_blocks = kTileBlocks;
  std::uint32_t tile_units = 0;
  std::uint32_t window = 0;                 ///< tiles of a block under way to each peer
  std::uint64_t slot_memory_bytes = 0;      ///< for all blocks that have room:
  std::uint64_t slot_blocks = kTileBlocks;  ///< the same in all calls
  bool fold = false;
  bool ring = false;
  int pull = 0;  ///< TilePulls
  TargetOrder order = kByRank;
  bool turns = false;                 ///< blocks begin with different targets
  std::uint32_t piece_bytes = 0;      ///< of a bulk copy, which then go to targets in turn
  std::uint64_t in_flight_bytes = 0;  ///< of a GPU's bulk copies to others
  std::uint32_t send_gb_per_s = 0;    ///< of all that a GPU sends; 0 = as fast as it can
  bool copied_results = false;
};
/// The fields of TiledArgs that follow from request and rank; the others are 0. Of what is wished
/// for, the ways that serve the request.
TiledArgs tiled_shape(const Request& request, int rank, const TileWish& wish = {});
/// Fills in blocks and tiles of `shape`; returns the blocks of the launch.
unsigned spread_tiles(TiledArgs& shape, const TileWish& wish);

}  // namespace plait::cuda
