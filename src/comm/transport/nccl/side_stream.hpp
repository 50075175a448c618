// A stream next to the caller's stream, with fork and join between the two. Tests have an
// implementation without a GPU.
#pragma once
#include <cstdint>
#include <memory>

#include "driver/cuda/types.hpp"

namespace plait::nccl {

class SideStream {
 public:
  virtual ~SideStream() = default;
  virtual cuda::Stream stream() = 0;
  virtual void fork(cuda::Stream main) = 0;  ///< the side stream waits for all work now on `main`
  /// Records the side stream's state for join(); only the last few calls' marks are kept.
  virtual void mark(int call) = 0;
  virtual void join(cuda::Stream main, int call) = 0;  ///< `main` waits for that mark
  virtual void copy(void* dst, const void* src, std::uint64_t bytes, cuda::Stream main) = 0;
  /// Device memory of at least `bytes` bytes, kept until this object ends.
  virtual void* scratch(std::uint64_t bytes) = 0;
};

/// A side stream on a GPU, in the primary context.
std::unique_ptr<SideStream> cuda_side_stream(int ordinal);

}  // namespace plait::nccl
