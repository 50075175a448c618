// One word for all calls: it says how far the calls without it have come, until it says where those
// with it begin. A call that anybody has begun without it stays so for everybody.
#include "exec/cuda/share/agreed_switch.hpp"

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
  // Who told it has seen all ranks ready, so this rank sees what its own thread has made; through
  // its own word ThreadSanitizer sees that too, which does not look into other processes.
  static_cast<void>(page_.ready[rank_].load(std::memory_order_acquire));
  return call >= first_;
}

}  // namespace plait::cuda
