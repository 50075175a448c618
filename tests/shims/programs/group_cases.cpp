// Cases of groups on several streams (synchronised by the group), and of other orders that NCCL
// keeps across streams.
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/shims/programs/rank.hpp"

namespace program {
namespace {

constexpr std::size_t kCount = 4096;
using Values = std::vector<std::int32_t>;

void slow(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(60)); }

void settle(Comm comm) {
  for (Result state = ncclInProgress; state == ncclInProgress;) {
    MUST(nccl().ncclCommGetAsyncError(comm, &state));
    if (state != ncclInProgress) MUST(state);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

/// Replaces the communicator by a non-blocking child.
void stop_blocking(TestRank& r) {
  ConfigHead config{sizeof(ConfigHead), kConfigMagic, 22809, 0};
  Comm child = nullptr;
  MUST(nccl().ncclCommSplit(r.comm, 0, r.rank, &child, &config));
  MUST(nccl().ncclCommDestroy(r.comm));
  r.comm = child;
  settle(child);
}

/// Copies the values in stream order, for a later check.
class Look {
 public:
  Look(Stream stream, const Values& at, std::int32_t wanted) : at_(at), wanted_(wanted) {
    standin_stream_push(stream, [](void* mine) { static_cast<Look*>(mine)->look(); }, this);
  }
  std::uint64_t wrong() const { return wrong_.load(); }

 private:
  void look() {
    std::uint64_t wrong = 0;
    for (const std::int32_t one : at_) wrong += one != wanted_;
    wrong_ = wrong;
  }
  const Values& at_;
  const std::int32_t wanted_;
  std::atomic<std::uint64_t> wrong_{~0ull};
};

}  // namespace

/// A group with a call on each of two streams; the second call's input is late. Work after the
/// group on the first stream must see the second result. Both calls are sums; or the second is a
/// broadcast, possibly left to NCCL by PLAIT_OPS; or each is a send and a receive. "later": on a
/// non-blocking communicator. "refused": the same, and the driver refuses the event behind NCCL's
/// call.
std::string group_streams(const TestJob& job, int rank) {
  TestRank r(job, rank);
  const bool is_refused = job.name == "group_mixed_refused";
  const bool later = is_refused || job.name == "group_mixed_later";
  if (later) stop_blocking(r);
  Stream s1 = r.stream, s2 = standin_stream_create();
  const int next = (rank + 1) % r.ranks, last = (rank + r.ranks - 1) % r.ranks;
  const auto& api = nccl();
  std::uint64_t early = 0, wrong = 0, errors = 0;
  for (int turn = 0; turn < 4; ++turn) {
    Values a(kCount, 1), b(kCount, 0), got_a(kCount, -1), got_b(kCount, -1), c(kCount, -1);
    if (turn == 0) {
      const Result first = api.ncclAllReduce(a.data(), c.data(), kCount, kInt32, kSum, r.comm, s1);
      if (first != ncclInProgress) MUST(first);
      settle(r.comm);
    }
    standin_stream_push(s2, slow, nullptr);
    standin_stream_push(
        s2, [](void* made) { std::fill_n(static_cast<std::int32_t*>(made), kCount, 1); }, b.data());
    const bool casts = later || job.name == "group_mixed", moves = job.name == "group_messages";
    MUST(api.ncclGroupStart());
    if (moves) {
      MUST(api.ncclSend(a.data(), kCount, kInt32, next, r.comm, s1));
      MUST(api.ncclRecv(got_a.data(), kCount, kInt32, last, r.comm, s1));
      MUST(api.ncclSend(b.data(), kCount, kInt32, next, r.comm, s2));
      MUST(api.ncclRecv(got_b.data(), kCount, kInt32, last, r.comm, s2));
    } else {
      MUST(api.ncclAllReduce(a.data(), got_a.data(), kCount, kInt32, kSum, r.comm, s1));
      if (casts)
        MUST(api.ncclBroadcast(b.data(), got_b.data(), kCount, kInt32, 0, r.comm, s2));
      else
        MUST(api.ncclAllReduce(b.data(), got_b.data(), kCount, kInt32, kSum, r.comm, s2));
    }
    const Result ended = api.ncclGroupEnd();
    if (ended != ncclInProgress) MUST(ended);
    if (is_refused) {
      standin_refuse_next(s2, "record");
      Result refused = ncclInProgress;
      while (refused == ncclInProgress) MUST(api.ncclCommGetAsyncError(r.comm, &refused));
      errors += refused != ncclSuccess;
    }
    settle(r.comm);
    const Look first(s1, got_b, moves || casts ? 1 : r.ranks);
    const Look second(s2, got_a, moves ? 1 : r.ranks);
    for (Stream one : {s1, s2}) standin_stream_synchronize(one);
    early += (first.wrong() != 0) + (second.wrong() != 0);
    for (const std::int32_t one : got_b) wrong += one != (moves || casts ? 1 : r.ranks);
  }
  standin_stream_destroy(s2);
  return number("wrong", wrong) + ", " + number("early", early) + ", " + number("errors", errors) +
         ", " + counted(nullptr);
}

/// The driver refuses a question of rank 0 about the stream of NCCL's calls at the end of a group.
/// A group and a single call follow.
std::string group_refused(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = 0;
  const auto broadcast = [&](bool is_grouped, bool is_refused) {
    Values values(kCount, rank == 0 ? 7 : -1);
    if (is_grouped) MUST(nccl().ncclGroupStart());
    MUST(nccl().ncclBroadcast(values.data(), values.data(), kCount, kInt32, 0, r.comm, r.stream));
    if (is_refused && rank == 0) standin_refuse_next(r.stream, "place");
    const Result ended = is_grouped ? nccl().ncclGroupEnd() : ncclSuccess;
    r.wait();
    for (const std::int32_t value : values) wrong += value != 7;
    return ended;
  };
  const Result refused = broadcast(true, true);
  MUST(broadcast(true, false));
  MUST(broadcast(false, false));
  return number("wrong", wrong) + ", " + number("refused", refused);
}

/// The driver refuses rank 0 an event behind NCCL's call of a group. The group has calls of plait
/// on two streams too, and makes a communicator.
std::string group_refused_late(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  const auto& api = nccl();
  Comm other = nullptr, made = nullptr;
  MUST(api.ncclCommSplit(r.comm, 0, rank, &other, nullptr));
  Stream second = standin_stream_create(), of_nccl = standin_stream_create();
  const Values ones(kCount, 1);
  Values sum(kCount, -1), more(kCount, -1), cast(kCount, rank == 0 ? 7 : -1);
  standin_stream_push(r.stream, slow, nullptr);
  MUST(api.ncclGroupStart());
  MUST(api.ncclAllReduce(ones.data(), sum.data(), kCount, kInt32, kSum, r.comm, r.stream));
  MUST(api.ncclAllReduce(ones.data(), more.data(), kCount, kInt32, kSum, r.comm, second));
  MUST(api.ncclBroadcast(cast.data(), cast.data(), kCount, kInt32, 0, other, of_nccl));
  MUST(api.ncclCommSplit(r.comm, 0, rank, &made, nullptr));
  if (rank == 0) standin_refuse_next(of_nccl, "record");
  const Result ended = api.ncclGroupEnd();
  const Look look(second, sum, r.ranks);
  for (Stream one : {second, of_nccl, r.stream}) standin_stream_synchronize(one);
  std::uint64_t wrong = wrong_sum(r, made, r.ranks);
  for (std::size_t i = 0; i < kCount; ++i) wrong += more[i] != r.ranks || cast[i] != 7;
  for (Stream one : {second, of_nccl}) standin_stream_destroy(one);
  for (Comm one : {made, other}) MUST(api.ncclCommDestroy(one));
  return number("wrong", wrong) + ", " + number("early", look.wrong() != 0) + ", " +
         number("refused", ended) + ", " + counted("all_reduce");
}

/// A group that NCCL refuses at the end, with calls of plait on two streams, late on rank 0. The
/// second stream waits for the sum on the first.
std::string group_refused_by_nccl(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  const auto& api = nccl();
  ConfigHead config{sizeof(ConfigHead), kConfigMagic, 22809, 0};
  Comm other = nullptr;  // does not block, hence no group may hold calls of both
  MUST(api.ncclCommSplit(r.comm, 0, rank, &other, &config));
  settle(r.comm);
  settle(other);
  Stream second = standin_stream_create(), of_nccl = standin_stream_create();
  const Values ones(kCount, 1);
  Values sum(kCount, -1), more(kCount, -1), never(kCount, -1);
  if (rank == 0) standin_stream_push(r.stream, slow, nullptr);
  MUST(api.ncclGroupStart());
  MUST(api.ncclAllReduce(ones.data(), sum.data(), kCount, kInt32, kSum, r.comm, r.stream));
  MUST(api.ncclAllReduce(ones.data(), more.data(), kCount, kInt32, kSum, r.comm, second));
  for (Comm comm : {r.comm, other})
    MUST(api.ncclBroadcast(never.data(), never.data(), kCount, kInt32, 0, comm, of_nccl));
  const Result ended = api.ncclGroupEnd();
  const Look look(second, sum, r.ranks);
  for (Stream one : {second, of_nccl, r.stream}) standin_stream_synchronize(one);
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < kCount; ++i) wrong += more[i] != r.ranks || never[i] != -1;
  for (Stream one : {second, of_nccl}) standin_stream_destroy(one);
  MUST(api.ncclCommDestroy(other));
  return number("wrong", wrong) + ", " + number("early", look.wrong() != 0) + ", " +
         number("refused", ended);
}

/// Two communicators with launchOrderImplicit: a call of the first on a slow stream, then a call of
/// the second on another. A child of the second inherits the setting.
std::string launch_order(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  char config[120];
  for (std::size_t at = 0; at < sizeof config; at += sizeof kConfigUndefined)
    std::memcpy(config + at, &kConfigUndefined, sizeof kConfigUndefined);
  std::memset(config + sizeof(ConfigHead), 0, sizeof(void*));  // netName
  std::memset(config + 48, 0, sizeof(void*));                  // commName
  const ConfigHead head{sizeof config, kConfigMagic, 23203, 1};
  std::memcpy(config, &head, sizeof head);
  const int in_order = 1;
  std::memcpy(config + kConfigLaunchOrder, &in_order, sizeof in_order);
  Comm first = nullptr, second = nullptr, heir = nullptr;
  MUST(nccl().ncclCommSplit(r.comm, 0, rank, &first, config));
  MUST(nccl().ncclCommSplit(r.comm, 0, rank, &second, config));
  MUST(nccl().ncclCommSplit(second, 0, rank, &heir, nullptr));
  Stream side = standin_stream_create();
  std::uint64_t wrong = 0, early = 0;
  for (Comm then : {second, heir}) {
    Values input(kCount, 1), one(kCount, -1), two(kCount, -1);
    StreamGate gate(r.stream);
    MUST(nccl().ncclAllReduce(input.data(), one.data(), kCount, kInt32, kSum, first, r.stream));
    MUST(nccl().ncclAllReduce(input.data(), two.data(), kCount, kInt32, kSum, then, side));
    const Look look(side, one, r.ranks);
    standin_stream_synchronize(side);
    early += look.wrong() != 0;
    gate.open();
    r.wait();
    for (std::size_t i = 0; i < kCount; ++i) wrong += one[i] != r.ranks || two[i] != r.ranks;
  }
  for (Comm one : {heir, second, first}) MUST(nccl().ncclCommDestroy(one));
  standin_stream_destroy(side);
  return number("wrong", wrong) + ", " + number("early", early) + ", " + counted("all_reduce");
}

/// Calls that NCCL always serves (with an algorithm, signals), each behind slow work, then a sum
/// of plait on another stream.
std::string always_nccls(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  const auto& api = nccl();
  Stream side = standin_stream_create();
  Values input(kCount, 1), sum(kCount, -1);
  MUST(api.ncclAllReduce(input.data(), sum.data(), kCount, kInt32, kSum, r.comm, r.stream));
  r.wait();
  std::uint64_t early = 0, wrong = 0;
  CallConfig by_ring{sizeof(CallConfig), kConfigMagic, 23203};
  by_ring.alg_selection = "ring";
  for (int turn = 0; turn < 3; ++turn) {
    Values work(kCount, 0), first(kCount, -1), second(kCount, -1);
    standin_stream_push(r.stream, slow, nullptr);
    standin_stream_push(
        r.stream, [](void* done) { std::fill_n(static_cast<std::int32_t*>(done), kCount, 1); },
        work.data());
    if (turn == 0)
      MUST(api.ncclAllReduceConfig(input.data(), first.data(), kCount, kInt32, kSum, r.comm,
                                   r.stream, &by_ring));
    else if (turn == 1)
      MUST(api.ncclSignal((rank + 1) % r.ranks, 0, 0, 0, r.comm, r.stream));
    else
      MUST(api.ncclWaitSignal(1, first.data(), r.comm, r.stream));
    MUST(api.ncclAllReduce(input.data(), second.data(), kCount, kInt32, kSum, r.comm, side));
    const Look look(side, work, 1);
    standin_stream_synchronize(side);
    r.wait();
    early += look.wrong() != 0;
    for (std::size_t i = 0; i < kCount; ++i)
      wrong += second[i] != r.ranks || (turn == 0 && first[i] != r.ranks);
  }
  standin_stream_destroy(side);
  return number("wrong", wrong) + ", " + number("early", early) + ", " + counted("all_reduce");
}

/// Limits blocks by configuration: of a communicator (by rank) and of children (inherited, own).
std::string limited(const TestJob& job, int rank) {
  ConfigHead config{sizeof(ConfigHead), kConfigMagic,     22809,    1,
                    kConfigUndefined,   kConfigUndefined, 16 - rank};
  Comm comm = nullptr, heir = nullptr, other = nullptr;
  MUST(nccl().ncclCommInitRankConfig(&comm, job.ranks, job.id, rank, &config));
  MUST(nccl().ncclCommSplit(comm, 0, rank, &heir, nullptr));
  config.max_ctas = 4;
  MUST(nccl().ncclCommSplit(comm, 0, rank, &other, &config));
  for (Comm made : {other, heir, comm}) MUST(nccl().ncclCommDestroy(made));
  return number("wrong", 0);
}

}  // namespace program
