// A single 64-bit state decides. Once a rank has begun a call without the resource, that call is
// without for all. While all ranks offer to switch off, none has begun a call since, and the one
// that finds all offers at the same number of calls switches: an offer taken back changes the
// state.
#include "gpu/consensus/agreed_switch.hpp"

namespace plait::cuda {

bool AgreedSwitch::all_ready() const {
  const std::uint32_t attempt = page_.ready[0].load(std::memory_order_acquire);
  for (int rank = 1; rank < ranks_; ++rank)
    if (page_.ready[rank].load(std::memory_order_acquire) != attempt) return false;
  return attempt != 0 && !is_spent(attempt);
}

bool AgreedSwitch::is_spent(std::uint32_t attempt) const {
  return (page_.state.load(std::memory_order_acquire) & kOn) == 0 &&
         attempt <= page_.spent.load(std::memory_order_acquire);
}

bool AgreedSwitch::next() {
  const std::uint64_t call = calls_.fetch_add(1, std::memory_order_relaxed) + 1;
  std::uint64_t state = page_.state.load(std::memory_order_acquire);
  for (;;) {
    const bool on = (state & kOn) != 0;
    if (on && (state & offer()) == 0) break;
    if (!on && call <= (state & kNumber)) return false;
    const std::uint64_t wanted =
        on ? counted(state & ~offer()) : (state & kTakenBack) | call | (all_ready() ? kOn : 0);
    if (page_.state.compare_exchange_weak(state, wanted)) state = wanted;
  }
  // The rank that switched the state saw all ranks ready, so this rank sees the work of its own
  // thread. The load of this rank's own flag shows that to ThreadSanitizer, which does not see
  // other processes.
  static_cast<void>(page_.ready[rank_].load(std::memory_order_acquire));
  return call >= (state & kNumber);
}

bool AgreedSwitch::cancel_last() {
  const std::uint64_t state = page_.state.load(std::memory_order_acquire);
  return calls_.fetch_sub(1, std::memory_order_relaxed) >= (state & kNumber) && (state & kOn) != 0;
}

bool AgreedSwitch::is_on() const {
  const std::uint64_t state = page_.state.load(std::memory_order_acquire);
  return (state & kOn) != 0 && calls() + 1 >= (state & kNumber);
}

bool AgreedSwitch::offer_off() {
  std::uint64_t state = page_.state.load(std::memory_order_acquire);
  if ((state & offer()) == 0) page_.begun[rank_].store(calls(), std::memory_order_relaxed);
  while ((state & kOn) != 0 && (state & offer()) == 0)
    if (page_.state.compare_exchange_weak(state, state | offer())) state |= offer();
  const std::uint64_t all = ((1ull << ranks_) - 1) << kOffersAt;
  if ((state & kOn) == 0 || (state & kOffers) != all) return false;
  for (int rank = 0; rank < ranks_; ++rank)
    if (page_.begun[rank].load(std::memory_order_relaxed) != calls()) return false;
  const std::uint32_t attempt = page_.ready[rank_].load(std::memory_order_acquire);
  // Another rank may have switched off since `state` was read, and `attempt` may be the next one.
  // That switch off drops all offers, and only this thread offers for this rank: the state differs.
  if (page_.state.load(std::memory_order_acquire) != state) return false;
  // In vain if a rank takes its offer back now: `spent` means something only while off.
  page_.spent.store(attempt, std::memory_order_release);
  return page_.state.compare_exchange_strong(state, (counted(state) & kTakenBack) | calls());
}

}  // namespace plait::cuda
