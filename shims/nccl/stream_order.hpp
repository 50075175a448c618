// Calls of one communicator run one after the other, whatever streams they are on and whoever
// serves them: NCCL promises it, and kernels of plait and of NCCL that wait on one GPU for their
// peers could otherwise hold each other up. One stream costs nothing; from the second on, an event
// a call.
#pragma once
#include <atomic>
#include <mutex>

#include "exec/cuda/call_order.hpp"
#include "shims/nccl/engine.hpp"

namespace plait::nccl {

class StreamOrder {
 public:
  /// What comes on `stream` goes on behind the communicator's earlier calls.
  void before(Marker& marker, Stream stream) {
    if (!is_only(stream)) before_locked(marker, stream);
  }
  /// A call has been put on `stream`.
  void after(Marker& marker, Stream stream) {
    if (!is_only(stream)) after_locked(marker, stream);
  }

 private:
  /// Without the lock: nearly all communicators see one stream.
  bool is_only(Stream stream) const {
    return has_only_.load(std::memory_order_acquire) &&
           only_.load(std::memory_order_relaxed) == stream;
  }
  void before_locked(Marker& marker, Stream stream);
  void after_locked(Marker& marker, Stream stream);

  std::atomic<bool> has_only_{false};
  std::atomic<Stream> only_{nullptr};
  std::mutex guard_;
  cuda::CallOrder<Marker, Stream> order_;
};

}  // namespace plait::nccl
