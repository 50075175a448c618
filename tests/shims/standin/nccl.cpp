// The stand-in libnccl: NCCL's functions over segments and stream threads (collectives, groups,
// split, abort, pre-multiplied sums). Slow and simple; tests compare its results with the
// drop-in's.
#include "tests/shims/standin/nccl.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "tests/shims/standin/streams.hpp"

STANDIN_API plait::nccl::Result ncclCommGetAsyncError(plait::nccl::Comm comm,
                                                      plait::nccl::Result* error);

plait::nccl::CommTag::~CommTag() {
  if (segment != nullptr) ::munmap(segment, sizeof(standin::Segment));
}

namespace standin {
namespace {

struct GroupTask {               // work of a group at its end
  std::function<Result()> make;  // set for a new communicator; comm waits for it
  std::shared_ptr<CommTag> comm;
  Stream stream = nullptr;
  bool point_to_point = false;
  std::function<void()> collective;
  StandinMessage message;
};

struct StandinGroup {
  int depth = 0;
  std::vector<GroupTask> tasks;
};

StandinGroup& group() {
  thread_local StandinGroup mine;
  return mine;
}

void run_guarded(CommTag& comm, const std::function<void()>& task) {
  try {
    task();
  } catch (const std::exception&) {
    comm.error.store(comm.aborted.load() ? ncclInternalError : ncclRemoteError);
  }
}

/// Moves all messages of a communicator's group concurrently, a piece each in turn, so that no
/// message blocks another; messages between the same two ranks in order.
void run_messages(std::vector<GroupTask>& tasks) {
  const auto step = [](GroupTask& task) { return task.message.step(*task.comm); };
  wait_for(
      [&] {
        std::set<std::pair<int, bool>> in_flight;
        for (GroupTask& task : tasks) {
          const std::pair<int, bool> end{task.message.peer, task.message.sends};
          if (!in_flight.contains(end) && !step(task)) in_flight.insert(end);
        }
        return in_flight.empty();
      },
      [&] { return tasks[0].comm->aborted.load(); });
}

/// Makes later work of `then` wait for all earlier work of `first`.
void order(Stream first, Stream then) {
  if (first == then) return;
  StreamEvent reached;
  record(reached, first, false);
  wait(then, reached, false);
}

/// Enqueues a call. As in NCCL, calls of a communicator run in turn on all streams; in captures,
/// the capture alone orders them.
void push_call(CommTag& comm, Stream stream, Task task) {
  const bool is_eager = stream_state(stream).capture == 0;
  if (is_eager) wait(stream, comm.last, false);
  push(stream, std::move(task));
  if (is_eager) record(comm.last, stream, false);
}

void launch_messages(const std::vector<GroupTask>& tasks) {
  push_call(*tasks[0].comm, tasks[0].stream, [list = tasks] {
    std::vector<GroupTask> in_flight = list;  // a graph repeats the task
    run_guarded(*list[0].comm, [&] { run_messages(in_flight); });
  });
}

/// Joins the streams of a communicator's calls in a group: calls begin after all earlier work of
/// the streams, and later work waits for all calls.
class JoinedStreams {
 public:
  explicit JoinedStreams(const std::vector<GroupTask>& tasks) {
    for (const GroupTask& task : tasks) streams_.insert(task.stream);
    barrier();
  }
  ~JoinedStreams() { barrier(); }
  JoinedStreams(const JoinedStreams&) = delete;
  JoinedStreams& operator=(const JoinedStreams&) = delete;

 private:
  void barrier() {
    for (Stream one : streams_) order(one, *streams_.begin());
    for (Stream one : streams_) order(*streams_.begin(), one);
  }
  std::set<Stream> streams_;
};

/// Launches a communicator's calls of a group.
void launch(const std::vector<GroupTask>& tasks) {
  const JoinedStreams joined(tasks);
  std::vector<GroupTask> messages;
  for (const GroupTask& task : tasks) {
    if (task.point_to_point)
      messages.push_back(task);
    else
      push_call(*task.comm, task.stream, [task] { run_guarded(*task.comm, task.collective); });
  }
  if (!messages.empty()) launch_messages(messages);
}

/// Makes communicators concurrently, children of the same parent in sequence; then launches calls.
Result run(const std::vector<GroupTask>& tasks) {
  std::map<CommTag*, std::vector<GroupTask>> makes, calls;
  std::vector<CommTag*> order;  // of the communicators' first calls, the same on all ranks
  for (const GroupTask& task : tasks) {
    std::vector<GroupTask>& list = (task.make ? makes : calls)[task.comm.get()];
    if (!task.make && list.empty()) order.push_back(task.comm.get());
    list.push_back(task);
  }
  std::vector<std::thread> threads;
  std::atomic<Result> worst{ncclSuccess};
  for (const auto& [comm, list] : makes)
    threads.emplace_back([&worst, &mine = list] {
      for (const GroupTask& task : mine)
        if (const Result result = task.make(); result != ncclSuccess) worst.store(result);
    });
  for (std::thread& thread : threads) thread.join();
  for (CommTag* const comm : order) launch(calls[comm]);
  return worst.load();
}

/// Runs the tasks now, or in a thread for non-blocking communicators.
Result run_now_or_later(std::vector<GroupTask> tasks) {
  if (tasks.empty()) return ncclSuccess;
  for (const GroupTask& task : tasks)
    if (task.comm->blocks != tasks[0].comm->blocks) return ncclInvalidArgument;
  if (tasks[0].comm->blocks) return run(tasks);
  const auto begun = std::make_shared<GroupJob>();
  for (const GroupTask& task : tasks) {
    task.comm->error.store(ncclInProgress);
    if (task.comm->job == nullptr) task.comm->job = begun;
  }
  begun->thread = std::thread([tasks = std::move(tasks)] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const Result result = run(tasks);
    for (const GroupTask& task : tasks) task.comm->error.store(result);
  });
  return ncclInProgress;
}

Result end_group() { return run_now_or_later(std::exchange(group(), StandinGroup{}).tasks); }

/// Adds the task to the open group, or runs it now.
Result add(GroupTask task) {
  if (group().depth == 0) return run_now_or_later({std::move(task)});
  group().tasks.push_back(std::move(task));
  return ncclSuccess;
}

}  // namespace

/// Checks the state by NCCL's public function, as NCCL does; the drop-in must not intercept it.
bool ready(CommTag* comm) {
  Result error = ncclSuccess;
  return comm != nullptr && ncclCommGetAsyncError(comm, &error) == ncclSuccess &&
         error != ncclInProgress;
}

namespace {

Result submit(CommTag* comm, GroupTask task) {
  if (!ready(comm)) return ncclInvalidArgument;
  task.comm = comm->self;
  const Result result = add(std::move(task));
  return result == ncclInProgress ? state_of(comm) : result;
}

}  // namespace

Result submit(CommTag* comm, Stream stream, std::function<void()> collective) {
  GroupTask task;
  task.stream = stream;
  task.collective = std::move(collective);
  return submit(comm, std::move(task));
}

Result submit(CommTag* comm, Stream stream, const StandinMessage& message) {
  GroupTask task;
  task.stream = stream;
  task.point_to_point = true;
  task.message = message;
  return submit(comm, std::move(task));
}

Result make_now_or_later(CommTag* waiting, std::function<Result()> make) {
  GroupTask task;
  task.comm = waiting->self;
  task.make = std::move(make);
  const Result result = add(std::move(task));
  return result == ncclInProgress ? ncclSuccess : result;
}

Result state_of(CommTag* comm) {
  const Result state = comm->error.load();
  if (comm->blocks) return state;
  // Joining takes time; a second thread meanwhile would join twice.
  if (comm->inside.fetch_add(1) != 0) count("two threads inside NCCL");
  std::this_thread::sleep_for(std::chrono::microseconds(20));
  if (state == ncclSuccess) comm->job = nullptr;
  comm->inside.fetch_sub(1);
  return state;
}

bool StandinMessage::step(CommTag& comm) {
  if (at == bytes && started) return true;
  MessageSlot& mail =
      sends ? comm.segment->mail[comm.rank][peer] : comm.segment->mail[peer][comm.rank];
  const std::size_t piece = std::min(kMailBytes, bytes - at);
  if (sends) {
    if (mail.written.load() != mail.read.load()) return false;
    mail.bytes = piece;
    if (piece != 0) std::memcpy(mail.body, static_cast<const char*>(input) + at, piece);
    mail.written.fetch_add(1);
  } else {
    if (mail.written.load() == mail.read.load()) return false;
    if (mail.bytes != piece) throw std::runtime_error("send and receive differ in length");
    if (piece != 0) std::memcpy(static_cast<char*>(output) + at, mail.body, piece);
    mail.read.fetch_add(1);
  }
  at += piece;
  started = true;
  return at == bytes;
}

}  // namespace standin

using namespace standin;

STANDIN_API Result ncclGroupStart() {
  ++group().depth;
  return ncclSuccess;
}

STANDIN_API Result ncclGroupEnd() {
  if (group().depth == 0) return ncclInvalidUsage;
  if (--group().depth > 0) return ncclSuccess;
  return end_group();
}

STANDIN_API Result ncclGroupSimulateEnd(void*) {
  if (group().depth == 0) return ncclInvalidUsage;
  if (--group().depth == 0) group() = StandinGroup{};
  return ncclSuccess;
}
