// The cut of a direct_chunks call into pieces, blocks and chunks, and its plan over all ranks. The
// plan has all blocks in step: chunk c of the plan is chunk c of every block, together a range of
// each part. Units of a part lie in the inbox in the order of the part, in the plan as in memory.
#pragma once
#include <cstdint>

#include "plait/builder.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// Limits of a cut. The same on all ranks.
struct ChunkWish {
  unsigned most_blocks = 1;
  bool fewer_if_long = false;     ///< blocks are chosen by size, up to most_blocks
  std::uint32_t chunk_units = 0;  ///< 0 = chosen by size
  std::uint64_t half_bytes = 0;
};

/// A piece is a launch; pieces alternate between the halves of the inbox.
struct ChunkCut {
  std::uint64_t pieces = 0;  ///< 0 = half an inbox holds no unit of each peer
  std::uint64_t units = 0;   ///< 16-byte units of a part in a piece; fewer in the last piece
  unsigned blocks = 1;
  std::uint32_t chunk_units = 1;  ///< units of a block's chunk
};
ChunkCut cut_chunks(const Request& request, const ChunkWish& wish);

Plan chunk_plan(const Topology& topology, const Request& request, const ChunkWish& wish);

}  // namespace plait::cuda
