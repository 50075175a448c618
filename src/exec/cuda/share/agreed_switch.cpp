// One word for all calls: it says how far the calls without it have come, until it says where those
// with it begin. A call that anybody has begun without it stays so for everybody.
#include "exec/cuda/share/agreed_switch.hpp"

namespace plait::cuda {

bool AgreedSwitch::all_ready() const {
  const std::uint32_t attempt = words_.ready[0].load(std::memory_order_acquire);
  for (int rank = 1; rank < ranks_; ++rank)
    if (words_.ready[rank].load(std::memory_order_acquire) != attempt) return false;
  return attempt != 0;
}

bool AgreedSwitch::next() {
  const std::uint64_t call = ++calls_;
  std::uint64_t told = first_ != 0 ? kOn | first_ : words_.told.load(std::memory_order_acquire);
  while ((told & kOn) == 0) {
    if (call <= told) return false;
    const std::uint64_t wanted = all_ready() ? kOn | call : call;
    if (words_.told.compare_exchange_weak(told, wanted)) told = wanted;
  }
  first_ = told & ~kOn;
  // Who told it has seen all ranks ready, so this rank sees what its own thread has made; through
  // its own word ThreadSanitizer sees that too, which does not look into other processes.
  static_cast<void>(words_.ready[rank_].load(std::memory_order_acquire));
  return call >= first_;
}

}  // namespace plait::cuda
