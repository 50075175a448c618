// Entering a call: descriptor first, then the call number (release), then the doorbells. Waiting is
// a futex on this rank's own doorbell, so that one sleeper hears of all its peers.
#include "comm/control.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "base/text.hpp"

namespace plait {
namespace {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free,
              "words are shared between processes");

void futex_wake(std::atomic<std::uint32_t>& word) noexcept {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, 1 << 30, nullptr, nullptr,
          0);
}

void futex_sleep(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::int64_t ns) {
  timespec most{ns / 1'000'000'000, ns % 1'000'000'000};
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &most, nullptr, 0);
}

}  // namespace

void Controls::prepare(const Mapping& page, int rank) {
  auto& control = *reinterpret_cast<Control*>(page.base());
  control.magic = kControlMagic;
  control.version = kControlVersion;
  control.rank = rank;
}

void Controls::check(const Mapping& page, int rank) {
  const auto& control = *reinterpret_cast<const Control*>(page.base());
  if (control.magic != kControlMagic || control.version != kControlVersion || control.rank != rank)
    throw Error(ErrorCode::mismatch,
                text("control page of rank ", rank, ": wanted version ", kControlVersion,
                     ", found ", control.version, " of rank ", control.rank));
}

void Controls::ring(int rank) const noexcept {
  Control& control = of(rank);
  control.doorbell.fetch_add(1);  // seq_cst: against the sleeper's store to `asleep`
  if (control.asleep.load() != 0) futex_wake(control.doorbell);
}

void Controls::ring_all() const noexcept {
  for (int rank = 0; rank < ranks(); ++rank) ring(rank);
}

void Controls::enter(std::uint32_t call, const CallDescriptor& descriptor) const {
  mine().calls[call % 2] = descriptor;
  mine().entered.store(call, std::memory_order_release);
  for (int rank = 0; rank < ranks(); ++rank)
    if (rank != rank_) ring(rank);
}

void Controls::await_entered(std::uint32_t call, std::int64_t deadline_ns, Watch& watch) const {
  const auto missing = [&] {
    for (int rank = 0; rank < ranks(); ++rank)
      if (!reached(of(rank).entered.load(std::memory_order_acquire), call)) return rank;
    return -1;
  };
  constexpr int kYields = 200;  // about 50 us: longer than a peer that is on its way needs
  for (int turn = 0; turn < kYields; ++turn) {
    if (missing() < 0) return;
    sched_yield();
  }
  constexpr std::int64_t kSliceNs = 5'000'000;  // twice as often as Watch must be asked
  for (;;) {
    const std::uint32_t seen = mine().doorbell.load();
    mine().asleep.store(1);
    const int rank = missing();
    const std::int64_t left_ns = deadline_ns - now_ns();
    if (rank >= 0 && left_ns > 0) futex_sleep(mine().doorbell, seen, std::min(left_ns, kSliceNs));
    mine().asleep.store(0);
    if (rank < 0) return;
    const std::string waiting_for =
        text("rank ", rank_, " waits for rank ", rank, " to enter call ", call, " (",
             print(mine().calls[call % 2]), ")");
    watch.check(waiting_for);
    if (left_ns <= 0 && missing() >= 0) throw Error(ErrorCode::timeout, waiting_for);
  }
}

void Controls::raise_failure(ErrorCode code, const std::string& reason) const noexcept {
  Control& control = mine();
  std::uint32_t none = 0;
  if (!control.failed.compare_exchange_strong(none, 1)) return;
  control.failure_code = static_cast<std::int32_t>(code);
  const std::size_t bytes = std::min(reason.size(), sizeof(control.failure_text) - 1);
  std::memcpy(control.failure_text, reason.data(), bytes);
  control.failure_text[bytes] = '\0';
  control.failed.store(2);
  ring_all();
}

std::optional<std::pair<ErrorCode, std::string>> Controls::failure_of(int rank) const {
  const Control& control = of(rank);
  if (control.failed.load(std::memory_order_acquire) != 2) return std::nullopt;
  const std::int32_t code = control.failure_code;
  const bool known = code > 0 && code <= static_cast<int>(ErrorCode::internal);
  const std::size_t bytes = strnlen(control.failure_text, sizeof(control.failure_text));
  return std::pair(known ? static_cast<ErrorCode>(code) : ErrorCode::internal,
                   std::string(control.failure_text, bytes));
}

}  // namespace plait
