// Streams as threads: a queue of tasks each, run one after the other. And who called what.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "tests/shims/standin/standin.hpp"

namespace {

class Stream {
 public:
  Stream() : worker_([this] { run(); }) {}
  ~Stream() {
    synchronize();
    {
      const std::lock_guard<std::mutex> hold(guard_);
      ends_ = true;
    }
    wake_.notify_all();
    worker_.join();
  }
  void push(std::function<void()> task) {
    const std::lock_guard<std::mutex> hold(guard_);
    tasks_.push_back(std::move(task));
    wake_.notify_all();
  }
  void synchronize() {
    std::unique_lock<std::mutex> hold(guard_);
    idle_.wait(hold, [this] { return tasks_.empty() && !busy_; });
  }
  void fail() { failed_.store(true); }
  bool failed() const { return failed_.load(); }
  bool idle() {
    const std::lock_guard<std::mutex> hold(guard_);
    return tasks_.empty() && !busy_;
  }

 private:
  void run() {
    std::unique_lock<std::mutex> hold(guard_);
    for (;;) {
      wake_.wait(hold, [this] { return ends_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
      hold.unlock();
      task();
      hold.lock();
      busy_ = false;
      idle_.notify_all();
    }
  }
  std::mutex guard_;
  std::condition_variable wake_, idle_;
  std::deque<std::function<void()>> tasks_;
  std::atomic<bool> failed_{false};
  bool busy_ = false;
  bool ends_ = false;
  std::thread worker_;  // last: it uses all of the above
};

Stream& stream_of(void* stream) {
  static auto* const standard = new Stream;
  return stream == nullptr ? *standard : *static_cast<Stream*>(stream);
}

std::mutex counting;
std::map<std::string, std::uint64_t>& seen() {
  static auto* const counts = new std::map<std::string, std::uint64_t>;
  return *counts;
}

}  // namespace

void standin_count(const char* name) {
  const std::lock_guard<std::mutex> hold(counting);
  ++seen()[name];
}

std::uint64_t standin_calls(const char* name) {
  const std::lock_guard<std::mutex> hold(counting);
  return seen()[name];
}

void* standin_stream_create() { return new Stream; }
void standin_stream_destroy(void* stream) { delete static_cast<Stream*>(stream); }
void standin_stream_synchronize(void* stream) { stream_of(stream).synchronize(); }
void standin_stream_fail(void* stream) { stream_of(stream).fail(); }
int standin_stream_failed(void* stream) { return stream_of(stream).failed() ? 1 : 0; }
int standin_stream_idle(void* stream) { return stream_of(stream).idle() ? 1 : 0; }
void standin_stream_push(void* stream, void (*task)(void*), void* argument) {
  stream_of(stream).push([task, argument] { task(argument); });
}
