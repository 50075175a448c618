// The stream of an earlier call may have been destroyed, so it is touched once at most: when a
// second stream first turns up. Captured calls are not ordered: a graph has its own order, and no
// event may cross a capture's edge.
#include "shims/nccl/stream_order.hpp"

namespace plait::nccl {

void StreamOrder::before(Marker& marker, Stream stream) {
  const std::lock_guard<std::mutex> hold(guard_);
  if (used_ && stream == last_) return;
  if (marker.capturing(stream)) return;
  if (used_ && !several_) {
    if (!marker.capturing(last_)) marker.record(last_);
    several_ = true;
  }
  if (several_) marker.wait(stream);
  last_ = stream;
  used_ = true;
}

void StreamOrder::after(Marker& marker, Stream stream) {
  const std::lock_guard<std::mutex> hold(guard_);
  if (several_ && !marker.capturing(stream)) marker.record(stream);
}

}  // namespace plait::nccl
