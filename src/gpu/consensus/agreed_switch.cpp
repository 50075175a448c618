// A single 64-bit state: the last call begun without the resource, or kOn and the first call with
// the resource. Once a rank has begun a call without, that call is without for all.
#include "gpu/consensus/agreed_switch.hpp"

namespace plait::cuda {

bool AgreedSwitch::all_ready() const {
  const std::uint32_t attempt = page_.ready[0].load(std::memory_order_acquire);
  for (int rank = 1; rank < ranks_; ++rank)
    if (page_.ready[rank].load(std::memory_order_acquire) != attempt) return false;
  return attempt != 0;
}

bool AgreedSwitch::next() {
  const std::uint64_t call = ++calls_;
  std::uint64_t state = first_ != 0 ? kOn | first_ : page_.state.load(std::memory_order_acquire);
  while ((state & kOn) == 0) {
    if (call <= state) return false;
    const std::uint64_t wanted = all_ready() ? kOn | call : call;
    if (page_.state.compare_exchange_weak(state, wanted)) state = wanted;
  }
  first_ = state & ~kOn;
  // The rank that switched the state saw all ranks ready, so this rank sees the work of its own
  // thread. The load of this rank's own flag shows that to ThreadSanitizer, which does not see
  // other processes.
  static_cast<void>(page_.ready[rank_].load(std::memory_order_acquire));
  return call >= first_;
}

}  // namespace plait::cuda
