// The one way to wait on CPU ranks, and to end such a wait: spin, yield, then sleep on the own
// doorbell in short slices, always under a clock deadline and a watch (reliability R2 to R4).
// No lost wake-up: the waiter says that it sleeps, then looks again; the signaller raises the word,
// then looks whether anybody sleeps. All four are seq_cst, so one of the two sees the other.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "exec/cpu/arena.hpp"
#include "exec/cpu/spin.hpp"

namespace plait {

/// How a wait goes about it.
struct WaitPolicy {
  int pauses = 0;  ///< spins before yielding; 0 where ranks outnumber cores
  int yields = 0;  ///< then this many sched_yield before sleeping
  std::int64_t most_sleep_ns = 10'000'000;  ///< at once; less where no bell rings for what may come
};
WaitPolicy wait_policy(int ranks);

struct WaitFor {
  Doorbell* bell = nullptr;
  std::int64_t deadline_ns = 0;  ///< steady_clock
  Watch* watch = nullptr;
  std::function<std::string()> describe;  ///< "rank 2 waits in lane ..."
};

/// Whether this thread's spins have been of use. Where they are not for some waits in a row, ranks
/// share this core, so that nobody can go on while it spins, or come much later: the next waits do
/// without.
struct SpinsOfUse {
  static constexpr int kInVain = 4;    // in a row
  static constexpr int kWithout = 50;  // waits, before one of them spins again
  int in_vain = 0;
  int without = 0;
  static SpinsOfUse& of_this_thread();
};

/// The first part of a wait, before there is a deadline to look up or a sentence to make.
template <class Ready>
bool spin(const WaitPolicy& policy, const Ready& ready) {
  constexpr int kTight = 16;  // what another core has just written is here within 100 ns
  if (ready()) return true;
  SpinsOfUse& spins = SpinsOfUse::of_this_thread();
  const bool is_short = spins.without > 0;
  const int most = is_short ? kTight : kTight + policy.pauses;
  for (int i = 0; i < most; ++i) {
    if (i >= kTight) pause_once();
    if (!ready()) continue;
    spins.in_vain = 0;
    return true;
  }
  if (is_short)
    --spins.without;
  else if (++spins.in_vain >= SpinsOfUse::kInVain)
    spins.without = SpinsOfUse::kWithout;
  return false;
}

/// Returns once ready() is true; ready() must read its words with seq_cst. To be called after
/// spin(). Error(timeout) past the deadline; what the watch throws.
void wait_until(const WaitPolicy& policy, const WaitFor& wait, const std::function<bool()>& ready);

/// Wakes who sleeps on it, if anybody does; to be called after a word was raised (seq_cst).
void ring(Doorbell& bell) noexcept;
/// Raises a word (release) and wakes its owner if it sleeps.
void raise(std::atomic_ref<std::uint32_t> word, std::uint32_t value, Doorbell& owner_bell);

}  // namespace plait
