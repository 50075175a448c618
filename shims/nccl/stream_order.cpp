// The order itself is the one that calls on GPUs keep (exec/cuda/call_order.hpp), here under a lock
// and with NCCL's calls in it.
#include "shims/nccl/stream_order.hpp"

namespace plait::nccl {

/// On another stream than so far. What a graph captures is ordered by the graph.
void StreamOrder::pass_first(Marker& marker, Stream stream) {
  if (marker.capturing(stream)) return;
  passed_.store(stream, std::memory_order_relaxed);
  has_passed_.store(true, std::memory_order_release);
}

/// From here on all calls are ordered, behind what NCCL has been handed: its last call comes after
/// its others.
void StreamOrder::serve_first() {
  const std::lock_guard<std::mutex> hold(guard_);
  if (!has_served_.load() && has_passed_.load(std::memory_order_acquire))
    order_.begin_behind(passed_.load(std::memory_order_relaxed));
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
