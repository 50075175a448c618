// The stand-in's streams, events, captures and graphs, as the drop-in's host platform and the
// stand-in libnccl use them; programs go by standin.hpp.
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

/// A moment that a stream comes to.
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

/// A task; or, where there is an event, a record of it or a wait for it.
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
  std::shared_ptr<Capture> capture;  ///< that it was last recorded in; null = in none
  std::vector<std::size_t> ends;     ///< there
};

struct Graph {
  std::vector<GraphNode> nodes;
  std::shared_ptr<Completion> last;  ///< end of its last replay
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
  std::vector<std::size_t> ends;  ///< what it goes on behind, in the capture

 private:
  void run();
  std::mutex guard_;
  std::condition_variable wake_, idle_;
  std::deque<Task> tasks_;
  bool busy_ = false;
  bool ends_ = false;
  const std::uint64_t number_;
  std::thread worker_;  // last: it uses all of the above
};

#define STANDIN_SHOWN [[gnu::visibility("default")]]

/// In stream order; null = the process's default stream. Not run any more where a stream has
/// failed: a kernel that traps takes with it all that its process has on the GPU.
STANDIN_SHOWN void push(void* stream, Task task);
/// at_replay: a node of the graph, which means the event outside of it.
STANDIN_SHOWN void record(StreamEvent& event, void* stream, bool at_replay);
STANDIN_SHOWN void wait(void* stream, StreamEvent& event, bool at_replay);

struct StreamState {
  std::uint64_t stream, capture;  ///< no capture: 0
};
STANDIN_SHOWN StreamState stream_state(void* stream);
STANDIN_SHOWN std::vector<std::size_t> capture_ends(void* stream);
STANDIN_SHOWN void go_behind(void* stream, const std::vector<std::size_t>& nodes);
/// Beside the stream, in its capture; returns the node.
STANDIN_SHOWN std::size_t add_record(void* stream, StreamEvent& event,
                                     const std::vector<std::size_t>& after);
STANDIN_SHOWN void move_behind(void* stream, std::size_t node,
                               const std::vector<std::size_t>& after);

}  // namespace standin
