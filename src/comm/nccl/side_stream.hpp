// A stream beside the caller's, and where each waits for the other. Tests have one without a GPU.
#pragma once
#include <cstdint>
#include <memory>

#include "driver/cuda/types.hpp"

namespace plait::nccl {

class SideStream {
 public:
  virtual ~SideStream() = default;
  virtual cuda::Stream stream() = 0;
  virtual void fork(cuda::Stream main) = 0;  ///< the side stream goes on behind what main holds now
  /// Of the side stream as it is now, for join(): the last few calls' are kept.
  virtual void mark(int call) = 0;
  virtual void join(cuda::Stream main, int call) = 0;  ///< main goes on behind that mark
  virtual void copy(void* dst, const void* src, std::uint64_t bytes, cuda::Stream main) = 0;
  /// Device memory of at least so many bytes, kept until this ends.
  virtual void* scratch(std::uint64_t bytes) = 0;
};

/// On a GPU, in its primary context.
std::unique_ptr<SideStream> cuda_side_stream(int ordinal);

}  // namespace plait::nccl
