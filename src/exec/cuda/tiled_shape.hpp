// A request -> which bytes a tiled call, or one in one hop, moves where: who sends parts to whom,
// what their owners do with them, who reads the results. Pure arithmetic, so it is tested without a
// GPU.
#pragma once
#include "exec/cuda/kernel_args.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// The fields of TiledArgs that follow from request and rank; the others are 0.
TiledArgs tiled_shape(const Request& request, int rank);

/// The same in one hop: no results, every part straight to its owner.
HopShape hop_shape(const Request& request, int rank);

/// The type whose kernel serves it: data that is only moved goes as integers of the same width.
DataType moved_type(const Request& request);

/// Slots of one rank.
std::uint64_t tile_slots(int ranks);

/// How a call is cut. The same on all ranks: it follows from the shape and what all agreed on.
struct TileCut {
  unsigned blocks = 1;
  std::uint32_t tile_units = 1;
  std::uint32_t slot_bytes = 0;
};
/// `slot_memory_bytes` hold the slots of kTileBlocks blocks; tile_units 0 = chosen.
TileCut cut_tiles(const TiledArgs& shape, std::uint64_t slot_memory_bytes, unsigned most_blocks,
                  std::uint32_t tile_units = 0);

}  // namespace plait::cuda
