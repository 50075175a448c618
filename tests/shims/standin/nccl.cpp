// NCCL's names over segments and stream threads: collectives, groups, split, abort, pre-multiplied
// sums. Slow and plain; what it computes is checked by the tests that compare it with the drop-in.
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

struct Job {                     // something a group does at its end
  std::function<Result()> make;  // set for communicators being made; comm is who waits for it
  std::shared_ptr<CommTag> comm;
  Stream stream = nullptr;
  bool point_to_point = false;
  std::function<void()> collective;
  Message message;
};

struct Group {
  int depth = 0;
  std::vector<Job> jobs;
};

Group& group() {
  thread_local Group mine;
  return mine;
}

void run_guarded(CommTag& comm, const std::function<void()>& task) {
  try {
    task();
  } catch (const std::exception&) {
    comm.error.store(comm.aborted.load() ? ncclInternalError : ncclRemoteError);
  }
}

/// All messages of a communicator's group at once, a piece each in turn, so that none blocks
/// another; those between the same two ranks in order.
void run_messages(std::vector<Job>& jobs) {
  const auto step = [](Job& job) { return job.message.step(*job.comm); };
  wait_for(
      [&] {
        std::set<std::pair<int, bool>> under_way;
        for (Job& job : jobs) {
          const std::pair<int, bool> end{job.message.peer, job.message.sends};
          if (!under_way.contains(end) && !step(job)) under_way.insert(end);
        }
        return under_way.empty();
      },
      [&] { return jobs[0].comm->aborted.load(); });
}

/// What `then` gets from now on comes after all that `first` holds.
void order(Stream first, Stream then) {
  if (first == then) return;
  Event reached;
  record(reached, first, false);
  wait(then, reached, false);
}

/// As NCCL does, calls of one communicator run one after the other, whatever their streams; those
/// in captures are ordered by the capture alone.
void push_call(CommTag& comm, Stream stream, Task task) {
  const bool is_eager = place(stream).capture == 0;
  if (is_eager) wait(stream, comm.last, false);
  push(stream, std::move(task));
  if (is_eager) record(comm.last, stream, false);
}

void launch_messages(const std::vector<Job>& jobs) {
  push_call(*jobs[0].comm, jobs[0].stream, [list = jobs] {
    std::vector<Job> under_way = list;  // a graph does it again
    run_guarded(*list[0].comm, [&] { run_messages(under_way); });
  });
}

/// The streams of one communicator's calls in a group, which is one point of synchronisation of
/// all: nothing begins before all that they hold has ended, and nothing that they get afterwards
/// before all calls have.
class JoinedStreams {
 public:
  explicit JoinedStreams(const std::vector<Job>& jobs) {
    for (const Job& job : jobs) streams_.insert(job.stream);
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

/// One communicator's calls of a group.
void launch(const std::vector<Job>& jobs) {
  const JoinedStreams joined(jobs);
  std::vector<Job> messages;
  for (const Job& job : jobs) {
    if (job.point_to_point)
      messages.push_back(job);
    else
      push_call(*job.comm, job.stream, [job] { run_guarded(*job.comm, job.collective); });
  }
  if (!messages.empty()) launch_messages(messages);
}

/// Communicators side by side, but those of one parent one after the other; then calls.
Result run(const std::vector<Job>& jobs) {
  std::map<CommTag*, std::vector<Job>> makes, calls;
  for (const Job& job : jobs) (job.make ? makes : calls)[job.comm.get()].push_back(job);
  std::vector<std::thread> threads;
  std::atomic<Result> worst{ncclSuccess};
  for (const auto& [comm, list] : makes)
    threads.emplace_back([&worst, &mine = list] {
      for (const Job& job : mine)
        if (const Result result = job.make(); result != ncclSuccess) worst.store(result);
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& [comm, list] : calls) launch(list);
  return worst.load();
}

/// All at once, or in a thread where the communicators do not block.
Result run_now_or_later(std::vector<Job> jobs) {
  if (jobs.empty()) return ncclSuccess;
  for (const Job& job : jobs)
    if (job.comm->blocks != jobs[0].comm->blocks) return ncclInvalidArgument;
  if (jobs[0].comm->blocks) return run(jobs);
  const auto begun = std::make_shared<GroupJob>();
  for (const Job& job : jobs) {
    job.comm->error.store(ncclInProgress);
    if (job.comm->job == nullptr) job.comm->job = begun;
  }
  begun->thread = std::thread([jobs = std::move(jobs)] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const Result result = run(jobs);
    for (const Job& job : jobs) job.comm->error.store(result);
  });
  return ncclInProgress;
}

Result end_group() { return run_now_or_later(std::exchange(group(), Group{}).jobs); }

/// In the open group, or at once.
Result add(Job job) {
  if (group().depth == 0) return run_now_or_later({std::move(job)});
  group().jobs.push_back(std::move(job));
  return ncclSuccess;
}

}  // namespace

/// As NCCL does, by its own public function: a drop-in must not answer in its place.
bool ready(CommTag* comm) {
  Result error = ncclSuccess;
  return comm != nullptr && ncclCommGetAsyncError(comm, &error) == ncclSuccess &&
         error != ncclInProgress;
}

namespace {

Result submit(CommTag* comm, Job job) {
  if (!ready(comm)) return ncclInvalidArgument;
  job.comm = comm->self;
  const Result result = add(std::move(job));
  return result == ncclInProgress ? state_of(comm) : result;
}

}  // namespace

Result submit(CommTag* comm, Stream stream, std::function<void()> collective) {
  Job job;
  job.stream = stream;
  job.collective = std::move(collective);
  return submit(comm, std::move(job));
}

Result submit(CommTag* comm, Stream stream, const Message& message) {
  Job job;
  job.stream = stream;
  job.point_to_point = true;
  job.message = message;
  return submit(comm, std::move(job));
}

Result make_now_or_later(CommTag* waiting, std::function<Result()> make) {
  Job job;
  job.comm = waiting->self;
  job.make = std::move(make);
  const Result result = add(std::move(job));
  return result == ncclInProgress ? ncclSuccess : result;
}

Result state_of(CommTag* comm) {
  const Result state = comm->error.load();
  if (comm->blocks) return state;
  // Joining takes a while, and a second thread that comes meanwhile would do it again.
  if (comm->inside.fetch_add(1) != 0) count("two threads inside NCCL");
  std::this_thread::sleep_for(std::chrono::microseconds(20));
  if (state == ncclSuccess) comm->job = nullptr;
  comm->inside.fetch_sub(1);
  return state;
}

bool Message::step(CommTag& comm) {
  if (at == bytes && started) return true;
  Mail& mail = sends ? comm.segment->mail[comm.rank][peer] : comm.segment->mail[peer][comm.rank];
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
  if (--group().depth == 0) group() = Group{};
  return ncclSuccess;
}
