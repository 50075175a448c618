// A tiled block on a host: fewer threads than a GPU's, which no argument says.
#pragma once
#include "conformance/device_on_host.hpp"
// After it, as it says what a device has.
#include "exec/cuda/tiles/tiled.cuh"

namespace plait_test {

struct FewThreads {
  static constexpr unsigned kHandle = 9, kPush = 3, kCollect = 8;
};

inline Grid tiled_grid(unsigned blocks, std::atomic<bool>* failed) {
  constexpr unsigned kSignalThreads = 32 + 1;  // of the last warp one
  return {blocks,
          FewThreads::kHandle + FewThreads::kPush + FewThreads::kCollect + kSignalThreads,
          {0, FewThreads::kHandle, FewThreads::kPush, FewThreads::kCollect},
          failed};
}

}  // namespace plait_test
