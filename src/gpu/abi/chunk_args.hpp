// Arguments of the direct_chunks kernels, and the flags of their chunks across ranks.
#pragma once
#include "gpu/abi/call_args.hpp"
#include "gpu/abi/direct_shape.hpp"

namespace plait::cuda {

/// Most blocks of direct_chunks.
inline constexpr unsigned kChunkBlocks = 128;
// Threads of a block by role.
inline constexpr unsigned kChunkPushThreads = 64;
inline constexpr unsigned kChunkTakeThreads = 192;
inline constexpr unsigned kChunkThreads = kChunkPushThreads + kChunkTakeThreads;

/// Flags in a rank's memory that peers raise, each with a single writer: the number of the call in
/// the upper half, in the lower half the chunks of the block that are here. A flag is never reset.
struct ChunkFlags {
  unsigned long long here[kChunkBlocks][kMaxCudaRanks];  ///< by sender
};

/// A collective in a single hop by chunks, of which each has a flag.
struct DirectChunksArgs : CallArgs {
  char* inbox[kMaxCudaRanks];        ///< first half of every rank's inbox, as mapped here
  ChunkFlags* flags[kMaxCudaRanks];  ///< every rank's flags
  std::uint64_t half_bytes;
  DirectShape shape;
  std::uint32_t slot_units;   ///< 16-byte units of each sender in an inbox
  std::uint32_t chunk_units;  ///< units of a chunk
};

}  // namespace plait::cuda
