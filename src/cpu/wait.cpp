// Waits by spinning, yielding, and a futex (not process-private, since ranks may be processes).
#include "cpu/wait.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr int kPauses = 400;
constexpr int kYields = 100;
constexpr std::int64_t kFirstSliceNs = 1'000'000;  // short at first, to notice a dead peer soon
constexpr std::int64_t kBusySliceNs = 100'000;     // if the thread has other work meanwhile
// A longer yield ran another program. A yielding thread then gets the core back only when that
// program's time slice ends, long after the awaited signal; a sleeping thread is woken by the
// signal. Yields are therefore skipped for a while, and then tried again. Ranks that share a core
// spin or reduce for less than this; a time slice of another program is longer.
constexpr std::int64_t kSharedCoreNs = 100'000;
constexpr std::int64_t kLookAgainNs = 200'000'000;
constexpr std::int64_t kMostYieldingNs = 10'000'000;  // then peers and the clock are checked

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void sleep_on(std::uint32_t& rings, std::uint32_t seen, std::int64_t slice_ns) {
  const timespec slice{slice_ns / 1'000'000'000, slice_ns % 1'000'000'000};
  ::syscall(SYS_futex, &rings, FUTEX_WAIT, seen, &slice, nullptr, 0);
}

// Returns true once ready; false after enough yields or time, or if another program shares the
// core.
bool yield_until(int yields, const std::function<bool()>& ready) {
  static thread_local std::int64_t shared_until_ns = 0;
  std::int64_t yielded_ns = now_ns();
  if (yielded_ns < shared_until_ns) return false;
  const std::int64_t last_ns = yielded_ns + kMostYieldingNs;
  for (int i = 0; i < yields && yielded_ns < last_ns; ++i) {
    ::sched_yield();
    const std::int64_t took_ns = now_ns() - yielded_ns;
    yielded_ns += took_ns;
    const bool is_ready = ready();
    if (took_ns > kSharedCoreNs) shared_until_ns = yielded_ns + kLookAgainNs;
    if (is_ready || took_ns > kSharedCoreNs) return is_ready;
  }
  return false;
}

// Sleeps one slice; returns true once ready.
bool sleep_slice(Doorbell& bell, std::int64_t slice_ns, const std::function<bool()>& ready) {
  const std::atomic_ref<std::uint32_t> rings(bell.rings), asleep(bell.asleep);
  const std::uint32_t seen = rings.load(std::memory_order_seq_cst);
  asleep.store(1, std::memory_order_seq_cst);
  const bool is_ready = ready();
  if (!is_ready) sleep_on(bell.rings, seen, slice_ns);
  asleep.store(0, std::memory_order_seq_cst);
  return is_ready || ready();
}

// Checks the watch and the clock; returns the time left.
std::int64_t look_up(const WaitFor& wait) {
  wait.watch->check(wait.describe());
  const std::int64_t left_ns = wait.deadline_ns - now_ns();
  if (left_ns <= 0)
    throw Error(ErrorCode::timeout,
                text("{}: the deadline has passed; is a rank stuck or stopped?", wait.describe()));
  return left_ns;
}

}  // namespace

WaitPolicy wait_policy(int ranks) {
  static const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return {ranks <= cores ? kPauses : 0, kYields};
}

SpinHistory& SpinHistory::of_this_thread() {
  static thread_local SpinHistory spins;
  return spins;
}

void wait_until(const WaitPolicy& policy, const WaitFor& wait, const std::function<bool()>& ready) {
  if (ready() || yield_until(policy.yields, ready)) return;
  std::int64_t slice_ns = std::min(kFirstSliceNs, policy.most_sleep_ns);
  while (!ready()) {
    const std::int64_t left_ns = look_up(wait);
    if (wait.watch->meanwhile()) slice_ns = std::min(slice_ns, kBusySliceNs);
    if (sleep_slice(*wait.bell, std::min(slice_ns, left_ns), ready)) return;
    slice_ns = std::min(slice_ns + slice_ns / 16, policy.most_sleep_ns);
  }
}

void ring(Doorbell& bell) noexcept {
  if (std::atomic_ref<std::uint32_t>(bell.asleep).load(std::memory_order_seq_cst) == 0) return;
  std::atomic_ref<std::uint32_t>(bell.rings).fetch_add(1, std::memory_order_seq_cst);
  ::syscall(SYS_futex, &bell.rings, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void raise(std::atomic_ref<std::uint32_t> flag, std::uint32_t value, Doorbell& owner_bell) {
  flag.store(value, std::memory_order_seq_cst);
  ring(owner_bell);
}

}  // namespace plait
