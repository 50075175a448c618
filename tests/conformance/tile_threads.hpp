// A tiled block on a host, with fewer threads than a GPU's.
#pragma once
#include "conformance/device_on_host.hpp"
// Needs device_on_host.hpp first, for the definitions of a device.
#include "gpu/tile/tiled.cuh"

namespace plait_test {

/// Few threads, but a polling thread for each of up to kRanks ranks.
template <unsigned kRanks>
struct FewThreads {
  static constexpr unsigned kMostRanks = kRanks;
  static constexpr unsigned kHandle = kRanks + 1, kPush = 3, kCollect = kRanks;
};
inline constexpr unsigned kFewRanks = 8;  ///< Ranks of most tests.

/// Runs a thread of a kernel in a grid of tiled_grid().
template <plait::DataType kType, int kOp, int kRanks>
void tiled_on_host(const plait::cuda::TiledArgs& args) {
  if constexpr (kRanks == 0)
    if (args.ranks > static_cast<int>(kFewRanks))
      return plait::cuda::tiled<kType, kOp, 0, FewThreads<plait::cuda::kMaxCudaRanks>>(args);
  plait::cuda::tiled<kType, kOp, kRanks, FewThreads<kFewRanks>>(args);
}

template <class Threads>
Grid tiled_grid_of(unsigned blocks, std::atomic<bool>* failed) {
  constexpr unsigned kSignalThreads = 32 + 1;  // a single thread of the last warp
  return {blocks,
          Threads::kHandle + Threads::kPush + Threads::kCollect + kSignalThreads,
          {0, Threads::kHandle, Threads::kPush, Threads::kCollect},
          failed};
}
inline Grid tiled_grid(unsigned blocks, int ranks, std::atomic<bool>* failed) {
  return ranks > static_cast<int>(kFewRanks)
             ? tiled_grid_of<FewThreads<plait::cuda::kMaxCudaRanks>>(blocks, failed)
             : tiled_grid_of<FewThreads<kFewRanks>>(blocks, failed);
}

}  // namespace plait_test
