// Runs each attempt in a thread, from the first large call until the arena is ready or refused.
#include "gpu/consensus/lazy_arena.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "base/text.hpp"
#include "base/threads.hpp"
#include "plait/error.hpp"

namespace plait::cuda {

namespace {

constexpr double kLongestRetryS = 60;

std::int64_t steady_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

LazyArena::LazyArena(LazyArenaPage& page, int rank, int ranks, double wait_s,
                     std::function<void(const Exchange&)> make, double retry_s)
    : page_(page),
      make_(std::move(make)),
      owner_(::getpid()),
      agreed_(page.switched, rank, ranks),
      exchange_(page.exchange, rank, ranks),
      wait_s_(wait_s),
      wait_budget_s_(wait_s),
      retry_s_(retry_s) {}

LazyArena::~LazyArena() {
  if (::getpid() == owner_)
    stop();
  else
    static_cast<void>(thread_.release());  // A forked child does not have the thread.
}

/// True if an attempt should begin now.
bool LazyArena::is_due(bool may_retry) const {
  const std::uint32_t attempt = attempt_.load();
  if (stopping_.load() || paused_.load() || runs_.load()) return false;
  if (attempt == 0 || page_.wanted.load() > attempt) return true;
  if (may_retry && agreed_.is_spent(attempt)) return true;
  return may_retry && steady_ns() >= retry_ns_.load() && !failure().empty();
}

void LazyArena::start(bool may_retry) {
  if (!is_due(may_retry)) return;
  const std::lock_guard<std::mutex> hold(guard_);
  if (!is_due(may_retry)) return;
  if (thread_ != nullptr && thread_->joinable()) thread_->join();  // The thread has ended.
  std::uint32_t wanted = page_.wanted.load();
  const std::uint32_t attempt = std::max(attempt_.load() + 1, wanted);
  while (wanted < attempt && !page_.wanted.compare_exchange_weak(wanted, attempt)) {
  }
  exchange_.begin(attempt);
  runs_.store(true);
  attempt_.store(attempt);
  try {
    thread_ = std::make_unique<std::thread>(quiet_thread([this] { run(); }));
  } catch (const std::system_error& error) {
    exchange_.fail(text("no thread to allocate the large arena in: {}", error.what()));
    end_attempt();
  }
}

void LazyArena::run() noexcept {
  const auto give_up = [this] {
    if (stopping_.load()) throw Error(ErrorCode::aborted, "the communicator was closed");
    if (paused_.load()) throw Error(ErrorCode::aborted, "the communicator was suspended");
  };
  try {
    make_([&](const std::string& mine) { return exchange_.exchange(mine, give_up); });
    memory_of_.store(attempt_.load());
    agreed_.set_ready(attempt_.load());
  } catch (const std::exception& error) {
    exchange_.fail(error.what());
    // trim() finds no memory of a failed attempt, so the memory goes now.
    if (give_up_ && !agreed_.is_on() && !stopping_.load()) {
      give_up_();
      memory_of_.store(0);
    }
  }
  end_attempt();
}

void LazyArena::end_attempt() noexcept {
  retry_ns_.store(steady_ns() + static_cast<std::int64_t>(retry_s_ * 1e9));
  if (retry_s_ < kLongestRetryS) retry_s_ = std::min(2 * retry_s_, kLongestRetryS);
  runs_.store(false);
}

/// Waits until all ranks are ready, a rank has failed, or the wait budget is spent.
void LazyArena::wait_for_peers() {
  const auto began = std::chrono::steady_clock::now();
  std::chrono::duration<double> waited(0);
  while (waited.count() < wait_budget_s_ && !stopping_.load() && !agreed_.all_ready() &&
         failure().empty()) {
    start(true);  // In vain before, if the thread was giving memory up.
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    waited = std::chrono::steady_clock::now() - began;
  }
  wait_budget_s_ -= waited.count();
}

bool LazyArena::next(CallMode call) {
  const bool waits = call == CallMode::alone || call == CallMode::captured_waiting;
  if ((waits || call == CallMode::grouped) && !agreed_.is_on()) start(true);
  if (waits && !agreed_.is_on()) wait_for_peers();
  const std::lock_guard<std::mutex> hold(calls_);
  last_call_ns_.store(steady_ns());
  if (!agreed_.next()) return false;
  open_calls_.fetch_add(1);
  has_granted_ = true;
  wait_budget_s_ = wait_s_;
  return true;
}

bool LazyArena::await() {
  while (!agreed_.all_ready()) {
    if (stopping_.load()) throw Error(ErrorCode::aborted, "the communicator was ended");
    start(true);
    if (!runs_.load() && !failure().empty() && !is_due(true)) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

void LazyArena::cancel_last(bool is_held) {
  const std::lock_guard<std::mutex> hold(calls_);
  if (agreed_.cancel_last() && is_held) open_calls_.fetch_sub(1);
}

void LazyArena::allow_trim(double idle_s, std::function<void()> give_up) {
  idle_s_ = idle_s;
  give_up_ = std::move(give_up);
}

bool LazyArena::is_idle() const noexcept {
  return open_calls_.load() == 0 && !is_pinned_.load() &&
         static_cast<double>(steady_ns() - last_call_ns_.load()) >= idle_s_ * 1e9;
}

bool LazyArena::wants_trim() const noexcept {
  const std::uint32_t made = memory_of_.load();
  if (!give_up_ || made == 0 || stopping_.load() || paused_.load() || runs_.load()) return false;
  if (agreed_.is_spent(made)) return true;
  return agreed_.is_on() && is_idle() && steady_ns() >= next_trim_ns_.load();
}

/// Asks whether calls have ended without the lock: the answer counts if no call has come meanwhile.
bool LazyArena::offer_off(const std::function<bool()>& have_ended) {
  std::unique_lock<std::mutex> hold(calls_);
  if (!is_idle() || !agreed_.is_on() || !has_granted_) return false;
  const std::uint64_t calls = agreed_.calls();
  hold.unlock();
  const bool ended = have_ended();
  hold.lock();
  return ended && !paused_.load() && agreed_.calls() == calls && is_idle() && agreed_.offer_off();
}

void LazyArena::trim(const std::function<bool()>& have_ended) {
  if (!wants_trim()) return;
  next_trim_ns_.store(steady_ns() + static_cast<std::int64_t>(std::min(idle_s_, 1.0) * 0.25e9));
  if (agreed_.is_spent(memory_of_.load()) || offer_off(have_ended)) start_give_up();
}

void LazyArena::start_give_up() {
  const std::lock_guard<std::mutex> hold(guard_);
  if (stopping_.load() || paused_.load() || runs_.load()) return;
  if (!agreed_.is_spent(memory_of_.load())) return;  // A call has made the memory again.
  if (thread_ != nullptr && thread_->joinable()) thread_->join();  // The thread has ended.
  runs_.store(true);
  try {
    thread_ = std::make_unique<std::thread>(quiet_thread([this] {
      give_up_();
      memory_of_.store(0);
      runs_.store(false);
    }));
  } catch (const std::system_error&) {  // The next look tries again.
    runs_.store(false);
  }
}

void LazyArena::pause() noexcept {
  {
    const std::lock_guard<std::mutex> hold(calls_);  // Once all ranks pause, none switches off.
    paused_.store(true);
  }
  join();
}

void LazyArena::stop() noexcept {
  cancel();
  join();
}

void LazyArena::join() noexcept {
  const std::lock_guard<std::mutex> hold(guard_);
  if (thread_ != nullptr && thread_->joinable()) thread_->join();
}

}  // namespace plait::cuda
