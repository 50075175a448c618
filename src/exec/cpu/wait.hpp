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

/// How often this thread's next wait spins: fewer times for a while after waits whose ranks turned
/// out to share this thread's core, where they cannot go on while it spins.
int pauses_now(const WaitPolicy& policy);

/// The first part of a wait, before there is a deadline to look up or a sentence to make.
template <class Ready>
bool spin(const WaitPolicy& policy, const Ready& ready) {
  constexpr int kTight = 16;  // what another core has just written is here within 100 ns
  for (int i = 0; i < kTight; ++i)
    if (ready()) return true;
  for (int left = pauses_now(policy); left > 0; --left) {
    pause_once();
    if (ready()) return true;
  }
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
