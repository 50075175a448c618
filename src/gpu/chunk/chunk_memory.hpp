// Flags, memory and kernels of `direct_chunks`.
#pragma once
#include <string>

#include "gpu/abi/chunk_args.hpp"
#include "gpu/engine/resources.hpp"

namespace plait::cuda {

inline constexpr ArenaFlags<ChunkFlags> kChunkFlags{"direct_chunks", 64};
inline constexpr ArenaPart kChunkMemory{"chunks", "chunks of calls through host memory", 2};
extern const KernelFamily kChunkKernels, kChunkTreeKernels;
const Resources& chunk_resources();

std::string chunk_kernel(const Request& request, SumOrder order);

}  // namespace plait::cuda
