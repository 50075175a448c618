// Streams, events, captures and graphs of the stand-in, for the host platform and the stand-in
// libnccl; test programs use standin.hpp.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/shims/standin/standin.hpp"

namespace standin {

using Task = std::function<void()>;  ///< run once, or at each replay

/// A point in a stream's work, reached once.
class Completion {
 public:
  void reach() {
    const std::lock_guard<std::mutex> hold(guard_);
    reached_ = true;
    come_.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> hold(guard_);
    come_.wait(hold, [this] { return reached_; });
  }

 private:
  std::mutex guard_;
  std::condition_variable come_;
  bool reached_ = false;
};

struct StreamEvent;

/// A task, or a record or wait of `event`, if set.
struct GraphNode {
  Task task;
  StreamEvent* event = nullptr;
  bool records = false;
  std::vector<std::size_t> after;
};

struct Capture {
  std::uint64_t number = 0;
  std::vector<GraphNode> nodes;
};

struct StreamEvent {
  std::shared_ptr<Completion> last;  ///< recorded outside of captures, or by a replay
  std::shared_ptr<Capture> capture;  ///< capture of the last record; null = none
  std::vector<std::size_t> ends;     ///< nodes of that capture
};

struct Graph {
  std::vector<GraphNode> nodes;
  std::shared_ptr<Completion> last;  ///< end of the last replay
};

class Queue {
 public:
  explicit Queue(std::uint64_t number);
  ~Queue();
  void push(Task task);
  void synchronize();
  bool idle();
  std::uint64_t number() const { return number_; }

  std::shared_ptr<Capture> capture;
  std::vector<std::size_t> ends;  ///< nodes that later work waits for

 private:
  void run();
  std::mutex guard_;
  std::condition_variable wake_, idle_;
  std::deque<Task> tasks_;
  bool busy_ = false;
  bool ends_ = false;
  const std::uint64_t number_;
  std::thread worker_;  // last member: the thread uses all earlier members
};

#define STANDIN_SHOWN [[gnu::visibility("default")]]

/// Runs a task in stream order; stream null = the process's default stream. A failed stream runs no
/// more tasks: a trapped kernel takes down all GPU work of the process.
STANDIN_SHOWN void push(void* stream, Task task);
/// at_replay: the node uses the event outside of the graph.
STANDIN_SHOWN void record(StreamEvent& event, void* stream, bool at_replay);
STANDIN_SHOWN void wait(void* stream, StreamEvent& event, bool at_replay);

struct StreamState {
  std::uint64_t stream, capture;  ///< no capture: 0
};
STANDIN_SHOWN StreamState stream_state(void* stream);
/// Returns the stream. Throws once after standin_refuse_next().
STANDIN_SHOWN void* accepted(void* stream, const char* call);
STANDIN_SHOWN std::vector<std::size_t> capture_ends(void* stream);
STANDIN_SHOWN void go_behind(void* stream, const std::vector<std::size_t>& nodes);
/// Adds a record to the stream's capture, behind `after`; returns its node.
STANDIN_SHOWN std::size_t add_record(void* stream, StreamEvent& event,
                                     const std::vector<std::size_t>& after);
STANDIN_SHOWN void move_behind(void* stream, std::size_t node,
                               const std::vector<std::size_t>& after);

}  // namespace standin
