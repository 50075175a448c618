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

/// Returns once ready() is true; ready() must read its words with seq_cst.
/// Error(timeout) past the deadline; what the watch throws.
void wait_until(const WaitPolicy& policy, const WaitFor& wait, const std::function<bool()>& ready);

/// Raises a word (release) and wakes its owner if it sleeps.
void raise(std::atomic_ref<std::uint32_t> word, std::uint32_t value, Doorbell& owner_bell);

}  // namespace plait
