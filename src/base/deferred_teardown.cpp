// A single thread per process runs all deferred teardowns and ends with the last teardown. Steps
// that may wait for the GPU run in separate threads, so that no teardown delays another.
#include "base/deferred_teardown.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"

namespace plait {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLookOften = std::chrono::microseconds(200);
constexpr auto kLookSeldom = std::chrono::milliseconds(20);
constexpr auto kSoon = std::chrono::seconds(3);  // a new teardown is checked often for this long
constexpr auto kExitTimeout = std::chrono::seconds(1);

enum class TeardownStep { works, awaits_ends, unmaps, awaits_unmapped, frees, done };

struct PendingTeardown {
  explicit PendingTeardown(DeferredTeardown given) : teardown(std::move(given)) {}
  DeferredTeardown teardown;
  const Clock::time_point started = Clock::now();
  std::atomic<TeardownStep> stage{TeardownStep::works};
};
using Shared = std::shared_ptr<PendingTeardown>;

class TeardownQueue {
 public:
  bool add(const Shared& mine, const TeardownTimeouts& waits) {
    {
      const std::lock_guard<std::mutex> hold(guard_);
      if (is_exiting_) return false;
      all_.push_back(mine);
      if (!runs_ && !start()) return false;  // the next teardown tries again
    }
    wake_.notify_one();
    const DeferredTeardown& teardown = mine->teardown;
    const auto is_past = [&](TeardownStep stage) { return mine->stage.load() > stage; };
    if (!await(waits.own_work_s, [&] { return is_past(TeardownStep::works); })) return false;
    await(waits.peers_work_s,
          [&] { return teardown.peers_reached(DetachStage::work_ended, true); });
    if (!teardown.peers_reached(DetachStage::work_ended, false)) return false;
    return await(waits.freed_s, [&] { return is_past(TeardownStep::frees); });
  }

  /// Called at exit: starts nothing new, and waits for running steps.
  void exit() {
    std::unique_lock<std::mutex> hold(guard_);
    is_exiting_ = true;
    moved_.wait_for(hold, kExitTimeout, [&] { return busy_ == 0; });
  }

  bool is_this_process() const { return owner_ == ::getpid(); }

 private:
  bool start() {
    try {
      quiet_thread([this] { run(); }).detach();
      runs_ = true;
    } catch (const std::exception& error) {
      log(LogLevel::warn, -1, text("device memory stays for now: {}", error.what()));
    }
    return runs_;
  }
  template <class Done>
  bool await(double wait_s, Done done) {
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(wait_s));
    std::unique_lock<std::mutex> hold(guard_);
    while (!done() && Clock::now() < end) moved_.wait_for(hold, kLookOften);
    return done();
  }

  /// Checks teardowns without the lock, since driver calls may block.
  void run() {
    std::unique_lock<std::mutex> hold(guard_);
    while (!all_.empty() && !is_exiting_) {
      const std::vector<Shared> now(all_.begin(), all_.end());
      hold.unlock();
      bool is_soon = false;
      for (const Shared& one : now) {
        step(one);
        is_soon |= Clock::now() - one->started < kSoon;
      }
      hold.lock();
      std::erase_if(all_,
                    [](const Shared& one) { return one->stage.load() == TeardownStep::done; });
      moved_.notify_all();
      if (!all_.empty()) wake_.wait_for(hold, is_soon ? Clock::duration(kLookOften) : kLookSeldom);
    }
    runs_ = false;
  }

  /// Advances a teardown as far as possible now.
  void step(const Shared& one) {
    const DeferredTeardown& teardown = one->teardown;
    if (one->stage.load() == TeardownStep::works && teardown.has_ended()) {
      teardown.publish(DetachStage::work_ended);
      one->stage.store(TeardownStep::awaits_ends);
    }
    if (one->stage.load() == TeardownStep::awaits_ends &&
        teardown.peers_reached(DetachStage::work_ended, false))
      begin(one, TeardownStep::unmaps, TeardownStep::awaits_unmapped, [one] {
        one->teardown.unmap();
        one->teardown.publish(DetachStage::unmapped);
      });
    if (one->stage.load() == TeardownStep::awaits_unmapped &&
        teardown.peers_reached(DetachStage::unmapped, false))
      begin(one, TeardownStep::frees, TeardownStep::done, [one] { one->teardown.free(); });
  }

  /// Runs a step in a separate thread. Without a thread the step is retried at the next check.
  template <class Work>
  void begin(const Shared& one, TeardownStep now, TeardownStep then, Work work) {
    const std::lock_guard<std::mutex> hold(guard_);
    if (is_exiting_) return;
    try {
      quiet_thread([this, one, then, work] {
        work();
        const std::lock_guard<std::mutex> again(guard_);
        one->stage.store(then);
        --busy_;
        wake_.notify_one();
        moved_.notify_all();
      }).detach();
      one->stage.store(now);
      ++busy_;
    } catch (const std::exception& error) {
      log(LogLevel::warn, -1, text("device memory stays for now: {}", error.what()));
    }
  }

  const pid_t owner_ = ::getpid();
  std::mutex guard_;
  std::condition_variable wake_;   // wakes the thread
  std::condition_variable moved_;  // wakes callers that wait for a teardown
  std::vector<Shared> all_;
  int busy_ = 0;
  bool runs_ = false;
  bool is_exiting_ = false;
};

std::atomic<TeardownQueue*> current{nullptr};

/// Never destroyed, since the thread may still run. A forked child has none of the parent's
/// teardowns.
TeardownQueue& teardowns() {
  TeardownQueue* existing = current.load();
  if (existing != nullptr && existing->is_this_process()) return *existing;
  auto* const made = new TeardownQueue;
  if (current.compare_exchange_strong(existing, made)) return *made;
  delete made;
  return *existing;
}

[[gnu::destructor]] void finish_teardowns() {
  TeardownQueue* const all = current.load();
  if (all != nullptr && all->is_this_process()) all->exit();
}

}  // namespace

bool defer_teardown(DeferredTeardown teardown, const TeardownTimeouts& waits) {
  return teardowns().add(std::make_shared<PendingTeardown>(std::move(teardown)), waits);
}

}  // namespace plait
