// Keeps the slots of all threads, and the times at which looks have first found their calls.
#include "comm/trace/open_calls.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <new>
#include <utility>

#include "base/forks.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/bootstrap/wait_warning.hpp"
#include "comm/trace/status.hpp"

namespace plait {

/// All slots of the process. Never destroyed: calls may come while the process ends.
struct CallSlots {
  static constexpr int kMostLines = 10;
  static constexpr std::int64_t kAnswerAfterNs = 1'000'000'000;

  explicit CallSlots(OpenCallsInfo found) : info(std::move(found)) {}

  const OpenCallsInfo info;
  const std::uint32_t forks = forks_so_far();  ///< a forked child has no watch thread
  std::mutex guard;                            ///< guards the readers' fields
  std::atomic<std::int64_t> next_ns{0};        ///< no look before
  int lines = 0;

  static std::atomic<CallSlots*> current;
  static std::atomic<CallSlot*> first;
  /// Null if this process looks at no calls.
  static CallSlots* mine() {
    CallSlots* const found = current.load();
    return found != nullptr && found->forks == forks_so_far() ? found : nullptr;
  }

  static CallSlot& take() {
    CallSlot* found = first.load();
    while (found != nullptr && found->is_taken_.exchange(true)) found = found->next_;
    if (found == nullptr) {
      found = new CallSlot;
      found->is_taken_.store(true);
      found->next_ = first.load();
      while (!first.compare_exchange_weak(found->next_, found)) {
      }
    }
    found->thread_.store(::gettid());
    return *found;
  }
  static void give(CallSlot& slot) noexcept {
    if (CallSlot::is_open(slot.sequence_.load())) slot.leave();
    slot.is_taken_.store(false);
  }

  /// Calls visit(slot, call) for each call that a thread is in, with the time of the first look at
  /// the call up to date.
  template <class Visit>
  void visit_open(std::int64_t now, const Visit& visit) {
    const std::lock_guard<std::mutex> hold(guard);
    for (CallSlot* slot = first.load(); slot != nullptr; slot = slot->next_) {
      const std::optional<CallSlot::OpenCall> call = slot->read();
      if (!call) continue;
      if (call->sequence != slot->seen_) {
        slot->seen_ = call->sequence;
        slot->seen_ns_ = now;
        slot->is_said_ = false;
      }
      visit(*slot, *call);
    }
  }

  /// A tenth of the wait, so that a line comes at most a tenth late.
  static std::int64_t period_ns() {
    return static_cast<std::int64_t>(std::clamp(wait_warning_s() * 0.1, 0.01, 1.0) * 1e9);
  }

  void look(std::int64_t now) {
    next_ns.store(now + period_ns());
    const double after_ns = wait_warning_s() * 1e9;
    std::vector<std::string> said;
    bool is_any_long = false;
    visit_open(now, [&](CallSlot& slot, const CallSlot::OpenCall& call) {
      const std::int64_t waited_ns = now - slot.seen_ns_;
      is_any_long = is_any_long || waited_ns >= kAnswerAfterNs;
      if (slot.is_said_ || static_cast<double>(waited_ns) < after_ns || lines == kMostLines) return;
      std::string line = text("rank {} waits in {}: {} s so far; `plait status {}` shows more",
                              info.rank, info.describe(call.words), seconds(waited_ns), ::getpid());
      if (!slot.is_in(call)) return;
      slot.is_said_ = true;
      ++lines;
      said.push_back(std::move(line));
    });
    if (is_any_long || !said.empty()) StatusSocket::open();
    for (const std::string& line : said) warn_unasked(info.rank, line);
  }

  /// Returns the time in seconds, to a tenth.
  static double seconds(std::int64_t ns) {
    return std::round(static_cast<double>(ns) * 1e-8) * 0.1;
  }
  static int thread_of(const CallSlot& slot) { return slot.thread_.load(); }
  static std::int64_t waited_ns(const CallSlot& slot, std::int64_t now) {
    return now - slot.seen_ns_;
  }
};

std::atomic<CallSlots*> CallSlots::current{nullptr};
std::atomic<CallSlot*> CallSlots::first{nullptr};

std::optional<CallSlot::OpenCall> CallSlot::read() const {
  OpenCall call;
  call.sequence = sequence_.load(std::memory_order_acquire);
  if (!is_open(call.sequence)) return std::nullopt;
  for (std::size_t i = 0; i < kWords; ++i)
    call.words[i] = words_[i].load(std::memory_order_acquire);
  // Behind the words: a word of a later call shows that the number has changed.
  if (!is_in(call)) return std::nullopt;
  return call;
}

void begin_open_calls(OpenCallsInfo info) {
  if (CallSlots::mine() == nullptr) CallSlots::current.store(new CallSlots(std::move(info)));
}

CallSlot& take_call_slot() { return CallSlots::take(); }

void give_call_slot(CallSlot& slot) noexcept { CallSlots::give(slot); }

int open_calls_due_ms() noexcept {
  const CallSlots* const mine = CallSlots::mine();
  if (mine == nullptr) return -1;
  const std::int64_t left_ns = mine->next_ns.load() - now_ns();
  return static_cast<int>(std::max<std::int64_t>(left_ns, 0) / 1'000'000) + 1;
}

void look_at_open_calls() {
  CallSlots* const mine = CallSlots::mine();
  if (mine == nullptr) return;
  if (const std::int64_t now = now_ns(); now >= mine->next_ns.load()) mine->look(now);
}

std::vector<ThreadCall> open_calls() {
  CallSlots* const mine = CallSlots::mine();
  std::vector<ThreadCall> found;
  if (mine == nullptr) return found;
  const std::int64_t now = now_ns();
  mine->visit_open(now, [&](const CallSlot& slot, const CallSlot::OpenCall& call) {
    ThreadCall one{CallSlots::thread_of(slot), mine->info.describe(call.words),
                   CallSlots::seconds(CallSlots::waited_ns(slot, now))};
    if (slot.is_in(call)) found.push_back(std::move(one));
  });
  return found;
}

const OpenCallsInfo* open_calls_info() noexcept {
  const CallSlots* const mine = CallSlots::mine();
  return mine == nullptr ? nullptr : &mine->info;
}

}  // namespace plait
