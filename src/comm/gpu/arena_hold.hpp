// Holds the large arena while a call that reserved it is enqueued. Calls of engines and of norms
// use it (gpu_calls.cpp, gpu_norm.cpp).
#pragma once
#include "gpu/rank/cuda_rank.hpp"

namespace plait {

/// Ends a call's reservation of the large arena, also if the call fails. Null = none.
class ArenaHold {
 public:
  explicit ArenaHold(cuda::CudaRank* rank) : rank_(rank) {}
  ~ArenaHold() {
    if (rank_ != nullptr) rank_->end_large_call();
  }
  ArenaHold(const ArenaHold&) = delete;
  ArenaHold& operator=(const ArenaHold&) = delete;
  void keep() { rank_ = nullptr; }

 private:
  cuda::CudaRank* rank_;
};

}  // namespace plait
