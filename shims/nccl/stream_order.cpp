// The order itself is the one that calls on GPUs keep (exec/cuda/call_order.hpp), here under a lock
// and with NCCL's calls in it.
#include "shims/nccl/stream_order.hpp"

namespace plait::nccl {

void StreamOrder::before(Marker& marker, Stream stream) {
  const std::lock_guard<std::mutex> hold(guard_);
  order_.before(marker, stream);
}

void StreamOrder::after(Marker& marker, Stream stream) {
  const std::lock_guard<std::mutex> hold(guard_);
  order_.after(marker, stream);
}

}  // namespace plait::nccl
