// Cases of non-blocking communicators, used as NCCL requires: the program polls a communicator
// until ready, and a child's handle is valid when the parent is ready.
#include <chrono>
#include <thread>

#include "tests/shims/programs/rank.hpp"

namespace program {
namespace {

constexpr std::size_t kCount = 4096;

/// Polls until the communicator is ready; returns the result.
Result settled(Comm comm) {
  Result state = ncclInProgress;
  for (int polls = 0; state == ncclInProgress; ++polls) {
    MUST(nccl().ncclCommGetAsyncError(comm, &state));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (polls > 200'000) throw std::runtime_error("never ready");
  }
  return state;
}

void begin(Result result, Comm comm) {
  if (result != ncclInProgress) MUST(result);
  MUST(settled(comm));
}

Comm made(const TestJob& job, int rank, Result& result) {
  ConfigHead config{sizeof(ConfigHead), kConfigMagic, 22809, 0};
  Comm comm = nullptr;
  result = nccl().ncclCommInitRankConfig(&comm, job.ranks, job.id, rank, &config);
  return comm;
}

/// Returns the wrong elements of a sum over all ranks.
std::uint64_t wrong_sums(Comm comm, int ranks) {
  Stream stream = standin_stream_create();
  std::vector<std::int32_t> value(kCount, 1);
  begin(nccl().ncclAllReduce(value.data(), value.data(), kCount, kInt32, kSum, comm, stream), comm);
  standin_stream_destroy(stream);
  std::uint64_t wrong = 0;
  for (const std::int32_t one : value) wrong += one != ranks;
  return wrong;
}

/// Returns how often two threads were inside NCCL for a communicator, which corrupts it.
std::string crowded() { return number("crowded", standin_calls("two threads inside NCCL")); }

}  // namespace

/// Queries a communicator before it is ready, then uses it.
std::string nonblocking(const TestJob& job, int rank) {
  Result result = ncclSuccess;
  Comm comm = made(job, rank, result);
  int ranks = 0, mine = -1, device = -1;
  Result early = nccl().ncclCommCount(comm, &ranks), state = ncclSuccess;
  MUST(nccl().ncclCommGetAsyncError(comm, &state));
  if (state != ncclInProgress) early = ncclInvalidArgument;  // this thread was late: no early query
  state = settled(comm);
  MUST(nccl().ncclCommCount(comm, &ranks));
  MUST(nccl().ncclCommUserRank(comm, &mine));
  MUST(nccl().ncclCommCuDevice(comm, &device));
  std::uint64_t wrong = ranks != job.ranks || mine != rank || device != rank;
  for (int call = 0; call < 3; ++call) wrong += wrong_sums(comm, job.ranks);
  MUST(nccl().ncclCommDestroy(comm));
  return number("wrong", wrong) + ", " + number("progress", result == ncclInProgress) + ", " +
         number("early", early) + ", " + number("state", state) + ", " + crowded() + ", " +
         counted("all_reduce");
}

/// Makes children: split, shrunk, grown, or two in a group. NCCL's thread stores a handle when the
/// child is made (a grown one's at once).
std::string child_later(const TestJob& job, int rank) {
  Result result = ncclSuccess;
  Comm parent = made(job, rank, result), children[2] = {};
  MUST(settled(parent));
  int ranks = job.ranks;
  if (job.name == "split_later") {
    begin(nccl().ncclCommSplit(parent, 0, rank, &children[0], nullptr), parent);
  } else if (job.name == "shrink_later" || job.name == "shrink_abort_later") {
    int out = 0;
    ranks -= 1;
    const int flags = job.name == "shrink_later" ? 0 : kShrinkAbort;
    if (rank != out)
      begin(nccl().ncclCommShrink(parent, &out, 1, &children[0], nullptr, flags), parent);
  } else {
    MUST(nccl().ncclGroupStart());
    for (Comm& child : children) MUST(nccl().ncclCommSplit(parent, 0, rank, &child, nullptr));
    begin(nccl().ncclGroupEnd(), parent);
  }
  std::uint64_t wrong = 0, there = 0;
  for (Comm child : children) {
    if (child == nullptr) continue;
    ++there;
    MUST(settled(child));
    wrong += wrong_sums(child, ranks);
    MUST(nccl().ncclCommDestroy(child));
  }
  if (job.name != "shrink_abort_later") wrong += wrong_sums(parent, job.ranks);
  MUST(nccl().ncclCommDestroy(parent));
  return number("wrong", wrong) + ", " + number("there", there) + ", " + crowded() + ", " +
         counted("all_reduce");
}

/// Groups a sum with the making of a child. NCCL's thread makes the child after ncclGroupEnd. Of
/// an odd count, NCCL sums the last element on the parent itself if there are two ranks a node.
std::string child_beside_calls(const TestJob& job, int rank) {
  Result result = ncclSuccess;
  Comm parent = made(job, rank, result), child = nullptr;
  MUST(settled(parent));
  Stream stream = standin_stream_create();
  constexpr std::size_t odd = kCount - 1;
  std::vector<std::int32_t> value(odd, 1);
  MUST(nccl().ncclGroupStart());
  MUST(nccl().ncclAllReduce(value.data(), value.data(), odd, kInt32, kSum, parent, stream));
  MUST(nccl().ncclCommSplit(parent, 0, rank, &child, nullptr));
  begin(nccl().ncclGroupEnd(), parent);
  MUST(settled(child));
  standin_stream_synchronize(stream);
  std::uint64_t wrong = wrong_sums(child, job.ranks) + wrong_sums(parent, job.ranks);
  for (const std::int32_t one : value) wrong += one != job.ranks;
  standin_stream_destroy(stream);
  for (Comm one : {child, parent}) MUST(nccl().ncclCommDestroy(one));
  return number("wrong", wrong) + ", " + crowded() + ", " + counted("all_reduce");
}

/// Adds the last rank to a communicator of all earlier ranks.
std::string grow_later(const TestJob& job, int rank) {
  const TestRank all(job, rank);
  const int joins = job.ranks - 1;
  ConfigHead config{sizeof(ConfigHead), kConfigMagic, 22809, 0};
  Comm parent = nullptr, grown = nullptr;
  MUST(nccl().ncclCommSplit(all.comm, rank == joins ? kSplitNoColor : 0, rank, &parent, &config));
  if (parent != nullptr) MUST(settled(parent));
  UniqueId id{};
  if (rank == 0) MUST(nccl().ncclCommGetUniqueId(parent, &id));
  MUST(nccl().ncclBroadcast(&id, &id, sizeof id, kUint8, 0, all.comm, all.stream));
  all.wait();
  MUST(rank == joins ? nccl().ncclCommGrow(nullptr, job.ranks, &id, rank, &grown, &config)
                     : nccl().ncclCommGrow(parent, job.ranks, nullptr, -1, &grown, nullptr));
  MUST(settled(grown));
  const std::uint64_t wrong = wrong_sums(grown, job.ranks);
  for (Comm one : {grown, parent})
    if (one != nullptr) MUST(nccl().ncclCommDestroy(one));
  return number("wrong", wrong) + ", " + crowded() + ", " + counted("all_reduce");
}

/// Makes a call that NCCL enqueues later, alone or in a group; then a call of plait on another
/// stream reads its output.
std::string order_later(const TestJob& job, int rank) {
  Result result = ncclSuccess;
  Comm comm = made(job, rank, result);
  MUST(settled(comm));
  Stream first = standin_stream_create(), second = standin_stream_create();
  std::uint64_t wrong = wrong_sums(comm, job.ranks);
  for (const bool grouped : {false, true}) {
    std::vector<std::int32_t> cast(kCount, rank == 0 ? 1 : -1), sum(kCount, -1);
    standin_stream_push(
        first, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }, nullptr);
    if (grouped) MUST(nccl().ncclGroupStart());
    const Result given =
        nccl().ncclBroadcast(cast.data(), cast.data(), kCount, kInt32, 0, comm, first);
    begin(grouped ? nccl().ncclGroupEnd() : given, comm);
    begin(nccl().ncclAllReduce(cast.data(), sum.data(), kCount, kInt32, kSum, comm, second), comm);
    standin_stream_synchronize(second);
    for (const std::int32_t one : sum) wrong += one != job.ranks;
    standin_stream_synchronize(first);
  }
  standin_stream_destroy(first);
  standin_stream_destroy(second);
  MUST(nccl().ncclCommDestroy(comm));
  return number("wrong", wrong) + ", " + crowded() + ", " + counted("all_reduce");
}

}  // namespace program
