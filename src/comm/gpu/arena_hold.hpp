// Holds the large arena while a call that reserved it is enqueued. Calls of engines and of norms
// use it (gpu_calls.cpp, gpu_norm.cpp).
#pragma once
#include "gpu/rank/cuda_rank.hpp"

namespace plait {

/// Ends a call's reservation of steps of the large arena, also if the call fails. 0 = none.
class ArenaHold {
 public:
  ArenaHold(cuda::CudaRank& rank, unsigned steps) : rank_(rank), steps_(steps) {}
  ~ArenaHold() {
    if (steps_ != 0) rank_.end_large_call(steps_);
  }
  ArenaHold(const ArenaHold&) = delete;
  ArenaHold& operator=(const ArenaHold&) = delete;
  void keep() { steps_ = 0; }

 private:
  cuda::CudaRank& rank_;
  unsigned steps_;
};

}  // namespace plait
