// Waits of CPU ranks, and how signals end them: spin, yield, then sleep on the rank's doorbell in
// short slices, always with a deadline and a watch. No wake-up is lost: the waiter marks itself
// asleep, then checks again; the signaller raises the flag, then checks for sleepers. All four
// accesses are seq_cst, so one of the two sees the other.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "cpu/arena.hpp"
#include "cpu/spin.hpp"

namespace plait {

/// Durations of the phases of a wait.
struct WaitPolicy {
  int pauses = 0;  ///< spins before yielding; 0 if ranks outnumber cores
  int yields = 0;  ///< number of sched_yield before sleeping
  std::int64_t most_sleep_ns =
      10'000'000;  ///< longest slice; less if no doorbell rings for the event
};
WaitPolicy wait_policy(int ranks);

struct WaitFor {
  Doorbell* bell = nullptr;
  std::int64_t deadline_ns = 0;  ///< steady_clock
  Watch* watch = nullptr;
  std::function<std::string()> describe;  ///< "rank 2 waits in lane ..."
};

/// Tracks whether this thread's spins succeed. After several failures in a row, either ranks share
/// this core, so that no peer runs while this thread spins, or signals come much later: the next
/// waits do not spin.
struct SpinHistory {
  static constexpr int kMostFailures = 4;   // failed spins in a row, before waits stop spinning
  static constexpr int kSkippedWaits = 50;  // waits without spinning, before the next try
  int failures = 0;
  int waits_to_skip = 0;
  static SpinHistory& of_this_thread();
};

/// The first part of a wait, before the deadline is computed and a message prepared.
template <class Ready>
bool spin(const WaitPolicy& policy, const Ready& ready) {
  constexpr int kTight = 16;  // a store of another core arrives within 100 ns
  if (ready()) return true;
  SpinHistory& spins = SpinHistory::of_this_thread();
  const bool is_short = spins.waits_to_skip > 0;
  const int most = is_short ? kTight : kTight + policy.pauses;
  for (int i = 0; i < most; ++i) {
    if (i >= kTight) pause_once();
    if (!ready()) continue;
    spins.failures = 0;
    return true;
  }
  if (is_short)
    --spins.waits_to_skip;
  else if (++spins.failures >= SpinHistory::kMostFailures)
    spins.waits_to_skip = SpinHistory::kSkippedWaits;
  return false;
}

/// Returns once ready() is true; ready() must read flags with seq_cst. Call it after spin().
/// Error(timeout) past the deadline; rethrows exceptions of the watch.
void wait_until(const WaitPolicy& policy, const WaitFor& wait, const std::function<bool()>& ready);

/// Wakes the sleeper, if any; call it after raising a flag (seq_cst).
void ring(Doorbell& bell) noexcept;
/// Raises a flag (seq_cst) and wakes the owner if asleep.
void raise(std::atomic_ref<std::uint32_t> flag, std::uint32_t value, Doorbell& owner_bell);

}  // namespace plait
