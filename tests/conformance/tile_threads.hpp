// A tiled block on a host, with fewer threads than a GPU's.
#pragma once
#include "conformance/device_on_host.hpp"
// Needs device_on_host.hpp first, for the definitions of a device.
#include "gpu/tile/tiled.cuh"

namespace plait_test {

struct FewThreads {
  static constexpr unsigned kHandle = 9, kPush = 3, kCollect = 8;
};

inline Grid tiled_grid(unsigned blocks, std::atomic<bool>* failed) {
  constexpr unsigned kSignalThreads = 32 + 1;  // a single thread of the last warp
  return {blocks,
          FewThreads::kHandle + FewThreads::kPush + FewThreads::kCollect + kSignalThreads,
          {0, FewThreads::kHandle, FewThreads::kPush, FewThreads::kCollect},
          failed};
}

}  // namespace plait_test
