// Threads of the host that run kernel threads, and the barriers of these threads.
#pragma once
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace plait_test {

/// A barrier of some threads of a block. Threads outnumber cores, so a waiting thread sleeps.
class ThreadBarrier {
 public:
  explicit ThreadBarrier(unsigned threads) : threads_(threads) {}
  void arrive_and_wait() { any(false); }
  /// Waits for all threads; returns true if any thread came with true.
  bool any(bool mine) {
    std::unique_lock hold(guard_);
    is_found_ = is_found_ || mine;
    if (++arrived_ == threads_) {
      arrived_ = 0;
      result_ = is_found_;
      is_found_ = false;
      ++phase_;
      all_came_.notify_all();
      return result_;
    }
    all_came_.wait(hold, [this, phase = phase_] { return phase_ != phase; });
    return result_;  // the next phase ends only once this thread has come again
  }

 private:
  const unsigned threads_;
  std::mutex guard_;
  std::condition_variable all_came_;
  unsigned arrived_ = 0, phase_ = 0;
  bool is_found_ = false, result_ = false;
};

/// Threads that run launch after launch, since a kernel of a test takes less time than the start of
/// its threads. The threads of an idle launch sleep until the process ends.
class HostThreads {
 public:
  /// Runs body(0) to body(count - 1), all at once, and returns when all have ended.
  static void run(unsigned count, const std::function<void(unsigned)>& body) {
    HostThreads& all = of_process();
    Launch launch{body, count};
    for (unsigned number = 0; number < count; ++number) all.take().begin(launch, number);
    launch.await_end();
  }

 private:
  struct Launch {
    const std::function<void(unsigned)>& body;
    unsigned running;
    std::mutex guard = {};
    std::condition_variable has_ended = {};
    void end_one() {
      const std::lock_guard hold(guard);
      if (--running == 0) has_ended.notify_one();
    }
    void await_end() {
      std::unique_lock hold(guard);
      has_ended.wait(hold, [this] { return running == 0; });
    }
  };
  class Worker {
   public:
    explicit Worker(HostThreads& all) : all_(all) {
      std::thread([this] { work(); }).detach();
    }
    void begin(Launch& launch, unsigned number) {
      const std::lock_guard hold(guard_);
      launch_ = &launch;
      number_ = number;
      has_work_.notify_one();
    }

   private:
    void work() {
      while (true) {
        std::unique_lock hold(guard_);
        has_work_.wait(hold, [this] { return launch_ != nullptr; });
        Launch& launch = *launch_;
        launch_ = nullptr;
        hold.unlock();
        launch.body(number_);
        all_.put_back(*this);
        launch.end_one();
      }
    }

    HostThreads& all_;
    std::mutex guard_;
    std::condition_variable has_work_;
    Launch* launch_ = nullptr;
    unsigned number_ = 0;
  };

  /// A child of fork() has no threads of the parent's pool, and gets a new pool.
  static HostThreads& of_process() {
    static std::mutex guard;
    static HostThreads* all = nullptr;
    static pid_t owner = 0;
    const std::lock_guard hold(guard);
    if (owner != ::getpid()) all = new HostThreads, owner = ::getpid();
    return *all;
  }
  Worker& take() {
    const std::lock_guard hold(guard_);
    if (idle_.empty()) return *all_.emplace_back(std::make_unique<Worker>(*this));
    Worker& last = *idle_.back();
    idle_.pop_back();
    return last;
  }
  void put_back(Worker& worker) {
    const std::lock_guard hold(guard_);
    idle_.push_back(&worker);
  }

  std::mutex guard_;
  std::vector<std::unique_ptr<Worker>> all_;
  std::vector<Worker*> idle_;
};

}  // namespace plait_test
