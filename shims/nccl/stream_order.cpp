// The order itself is the one that calls on GPUs keep (exec/cuda/call_order.hpp), here under a lock
// and with NCCL's calls in it.
#include "shims/nccl/stream_order.hpp"

namespace plait::nccl {

/// Behind what NCCL has been handed so far: its last call comes after its others.
void StreamOrder::serve_first(Marker& marker, Stream stream) {
  const std::lock_guard<std::mutex> hold(guard_);
  const bool has_passed = has_passed_.load(std::memory_order_acquire);
  const Stream passed = passed_.load(std::memory_order_relaxed);
  if (!has_served_.load() && has_passed && passed != stream) order_.before(marker, passed);
  has_served_.store(true, std::memory_order_release);
}

void StreamOrder::before_locked(Marker& marker, Stream stream) {
  const std::lock_guard<std::mutex> hold(guard_);
  order_.before(marker, stream);
  const bool is_first = order_.is_only(stream);
  if (is_first) only_.store(stream, std::memory_order_relaxed);
  has_only_.store(is_first, std::memory_order_release);
}

void StreamOrder::after_locked(Marker& marker, Stream stream) {
  const std::lock_guard<std::mutex> hold(guard_);
  order_.after(marker, stream);
}

}  // namespace plait::nccl
