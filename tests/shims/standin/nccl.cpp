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
  std::function<Result()> make;  // set for communicators being made
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

/// On the first one's stream, joined with the others'.
void launch_messages(const std::vector<Job>& jobs) {
  const Stream main = jobs[0].stream;
  for (const Job& job : jobs) order(job.stream, main);
  push_call(*jobs[0].comm, main, [list = jobs] {
    std::vector<Job> under_way = list;  // a graph does it again
    run_guarded(*list[0].comm, [&] { run_messages(under_way); });
  });
  for (const Job& job : jobs) order(main, job.stream);
}

void launch(std::vector<Job> jobs) {
  std::map<CommTag*, std::vector<Job>> messages;
  for (Job& job : jobs) {
    if (job.point_to_point)
      messages[job.comm.get()].push_back(job);
    else
      push_call(*job.comm, job.stream, [job] { run_guarded(*job.comm, job.collective); });
  }
  for (const auto& [comm, list] : messages) launch_messages(list);
}

Result end_group() {
  Group ended = std::exchange(group(), Group{});
  std::vector<std::thread> threads;
  std::vector<Result> results(ended.jobs.size(), ncclSuccess);
  std::vector<Job> calls;
  for (std::size_t i = 0; i < ended.jobs.size(); ++i) {
    if (ended.jobs[i].make)
      threads.emplace_back([&, i] { results[i] = ended.jobs[i].make(); });
    else
      calls.push_back(ended.jobs[i]);
  }
  for (std::thread& thread : threads) thread.join();
  launch(std::move(calls));
  for (const Result result : results)
    if (result != ncclSuccess) return result;
  return ncclSuccess;
}

}  // namespace

/// As NCCL does, by its own public function: a drop-in must not answer in its place.
bool ready(CommTag* comm) {
  Result error = ncclSuccess;
  return comm != nullptr && ncclCommGetAsyncError(comm, &error) == ncclSuccess &&
         error != ncclInProgress;
}

Result submit(CommTag* comm, Stream stream, std::function<void()> collective) {
  if (!ready(comm)) return ncclInvalidArgument;
  Job job;
  job.comm = comm->self;
  job.stream = stream;
  job.collective = std::move(collective);
  if (group().depth > 0)
    group().jobs.push_back(std::move(job));
  else
    launch({job});
  return ncclSuccess;
}

Result submit(CommTag* comm, Stream stream, const Message& message) {
  if (!ready(comm)) return ncclInvalidArgument;
  Job job;
  job.comm = comm->self;
  job.stream = stream;
  job.point_to_point = true;
  job.message = message;
  if (group().depth > 0)
    group().jobs.push_back(std::move(job));
  else
    launch({job});
  return ncclSuccess;
}

Result make_now_or_later(CommTag* comm, bool blocking, std::function<Result()> make) {
  if (group().depth > 0) {
    Job job;
    job.make = std::move(make);
    group().jobs.push_back(std::move(job));
    return ncclSuccess;
  }
  if (blocking) return make();
  comm->error.store(ncclInProgress);
  std::thread([comm, make = std::move(make)] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    comm->error.store(make());
  }).detach();
  return ncclInProgress;
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
