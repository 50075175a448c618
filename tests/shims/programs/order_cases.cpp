// Cases of calls of a communicator on several streams, in and outside of captures, without waits:
// calls run in turn, in call order. Streams are delayed at different points on each rank, to make
// unordered calls give wrong sums or hang.
#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/shims/programs/rank.hpp"

namespace program {

/// A communicator on three streams in turn, without waits: calls of NCCL and plait.
std::string streams(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  constexpr std::size_t kCalls = 60, kCount = 3000;
  Stream turns[3] = {standin_stream_create(), standin_stream_create(), standin_stream_create()};
  std::vector<std::vector<std::int32_t>> sums(kCalls), received(kCalls);
  const int last = (rank + r.ranks - 1) % r.ranks;
  const std::vector<std::int32_t> mine = filled<std::int32_t>(rank, kCount);
  for (std::size_t i = 0; i < kCalls; ++i) {
    Stream stream = turns[(i * 7) % 3];
    sums[i] = mine;
    received[i].resize(kCount);
    MUST(
        nccl().ncclAllReduce(sums[i].data(), sums[i].data(), kCount, kInt32, kSum, r.comm, stream));
    if (i % 4 == 0) pass_around(r, mine, received[i], turns[i % 3]);
  }
  for (Stream stream : turns) standin_stream_destroy(stream);  // waits for the stream's work
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < kCalls; ++i) {
    for (std::size_t at = 0; at < kCount; ++at)
      wrong += sums[i][at] != expected<std::int32_t>(kSum, r.ranks, at);
    if (i % 4 == 0) wrong += received[i] != filled<std::int32_t>(last, kCount);
  }
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

namespace {

constexpr std::size_t kCount = 500;

/// Delays some ranks' streams, in turn.
void dawdle(Stream stream, int rank, int turn) {
  if ((turn + rank) % 3 != 0) return;
  standin_stream_push(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::microseconds(700)); }, nullptr);
}

/// An all_reduce with values that depend on the call's number.
struct NumberedSum {
  NumberedSum(int rank, int number) : number_(number), input(filled<std::int32_t>(rank, kCount)) {
    for (std::int32_t& value : input) value += number;
  }
  void enqueue(const TestRank& r, Stream stream) {
    MUST(nccl().ncclAllReduce(input.data(), output.data(), kCount, kInt32, kSum, r.comm, stream));
  }
  std::uint64_t wrong(int ranks) const {
    std::uint64_t found = 0;
    for (std::size_t i = 0; i < kCount; ++i)
      found += output[i] != expected<std::int32_t>(kSum, ranks, i) + ranks * number_;
    return found;
  }

 private:
  int number_;

 public:
  std::vector<std::int32_t> input, output = std::vector<std::int32_t>(kCount, -1);
};

/// Forks a capture on `main` to other streams and joins them.
class Fork {
 public:
  explicit Fork(Stream main) : main_(main) {}
  ~Fork() {
    for (void* event : events_) standin_event_destroy(event);
  }
  Fork(const Fork&) = delete;
  Fork& operator=(const Fork&) = delete;
  void out(Stream side) { order(main_, side); }
  void back(Stream side) { order(side, main_); }

 private:
  void order(Stream first, Stream then) {
    events_.push_back(standin_event_create());
    standin_event_record(events_.back(), first);
    standin_event_wait(then, events_.back());
  }
  Stream main_;
  std::vector<void*> events_;
};

/// Replaces the communicator by a child with this graphUsageMode.
void use_graphs_as(TestRank& r, int usage) {
  char config[kConfigGraphUsage + sizeof usage + 4] = {};
  ConfigHead head{sizeof config, kConfigMagic, 22900, 1};
  std::memcpy(config, &head, sizeof head);
  std::memcpy(config + kConfigGraphUsage, &usage, sizeof usage);
  Comm child = nullptr;
  MUST(nccl().ncclCommSplit(r.comm, 0, r.rank, &child, config));
  MUST(nccl().ncclCommDestroy(r.comm));
  r.comm = child;
}

/// Leaves communicators made from now on to NCCL.
void leave_new() {
  void* const found = ::dlsym(RTLD_DEFAULT, "plait_nccl_leave_new");
  if (found != nullptr) reinterpret_cast<void (*)(int)>(found)(1);
}

/// Captures two calls on two streams.
void* capture_two(const TestRank& r, NumberedSum& one, NumberedSum& two, Stream s1, Stream s2) {
  Fork fork(r.stream);
  standin_capture_begin(r.stream);
  fork.out(s1);
  fork.out(s2);
  dawdle(s1, r.rank, 0);
  one.enqueue(r, s1);
  dawdle(s2, r.rank, 1);
  two.enqueue(r, s2);
  fork.back(s1);
  fork.back(s2);
  return standin_capture_end(r.stream);
}

}  // namespace

/// Makes each call on a new stream, destroyed at once; "late": NCCL serves the first calls.
std::string lost_streams(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  constexpr int kCalls = 60;
  std::vector<NumberedSum> sums;
  for (int i = 0; i < kCalls; ++i) sums.emplace_back(rank, i);
  std::vector<std::vector<std::int32_t>> received(kCalls, std::vector<std::int32_t>(kCount));
  const bool is_late = job.name == "lost_streams_late";
  for (int i = 0; i < kCalls; ++i) {
    Stream stream = standin_stream_create();
    dawdle(stream, rank, i);
    auto& into = received[static_cast<std::size_t>(i)];
    if (is_late ? i < 20 : i % 5 == 4) pass_around(r, sums[0].input, into, stream);
    if (!is_late || i >= 20) sums[static_cast<std::size_t>(i)].enqueue(r, stream);
    standin_stream_let_go(stream);
  }
  NumberedSum last(rank, kCalls);
  last.enqueue(r, r.stream);
  r.wait();  // runs behind all earlier calls
  std::uint64_t wrong = last.wrong(r.ranks);
  for (int i = is_late ? 20 : 0; i < kCalls; ++i)
    wrong += sums[static_cast<std::size_t>(i)].wrong(r.ranks);
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

/// Captures fork, a call on each stream, join; replays it a thousand times.
std::string forked_capture(const TestJob& job, int rank) {
  TestRank r(job, rank);
  if (job.name != "forked_capture") use_graphs_as(r, job.name == "forked_capture_mixed" ? 2 : 1);
  Stream s1 = standin_stream_create(), s2 = standin_stream_create();
  NumberedSum one(rank, 1), two(rank, 2);
  void* graph = capture_two(r, one, two, s1, s2);
  std::uint64_t wrong = 0;
  for (int i = 0; i < 1000; ++i) {
    standin_graph_launch(graph, r.stream);
    if (i % 100 != 99) continue;
    r.wait();
    wrong += one.wrong(r.ranks) + two.wrong(r.ranks);
    std::fill(one.output.begin(), one.output.end(), -1);
    std::fill(two.output.begin(), two.output.end(), -1);
  }
  const std::size_t nodes = standin_graph_nodes(graph);
  standin_graph_destroy(graph);
  standin_stream_destroy(s1);
  standin_stream_destroy(s2);
  return number("wrong", wrong) + ", " + number("nodes", nodes) + ", " + counted("all_reduce");
}

/// Begins a capture on the stream of the last call before the next call on another stream.
std::string begun_capture(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = 0;
  for (int turn = 0; turn < 20; ++turn) {
    Comm child = nullptr;
    MUST(nccl().ncclCommSplit(r.comm, 0, rank, &child, nullptr));
    Stream first = standin_stream_create(), second = standin_stream_create();
    NumberedSum eager(rank, 1), beside(rank, 2), captured(rank, 3);
    dawdle(first, rank, turn);
    const auto enqueue = [&](NumberedSum& sum, Stream stream) {
      MUST(nccl().ncclAllReduce(sum.input.data(), sum.output.data(), kCount, kInt32, kSum, child,
                                stream));
    };
    enqueue(eager, first);
    standin_capture_begin(first);
    enqueue(captured, first);
    enqueue(beside, second);
    void* graph = standin_capture_end(first);
    standin_graph_launch(graph, first);
    standin_stream_synchronize(first);
    standin_stream_synchronize(second);
    wrong += eager.wrong(r.ranks) + beside.wrong(r.ranks) + captured.wrong(r.ranks);
    standin_graph_destroy(graph);
    standin_stream_destroy(first);
    standin_stream_destroy(second);
    MUST(nccl().ncclCommDestroy(child));
  }
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

/// Two graphs and eager calls on three streams in turn.
std::string mixed_graphs(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  constexpr int kTurns = 300;
  Stream turns[3] = {standin_stream_create(), standin_stream_create(), standin_stream_create()};
  NumberedSum one(rank, 1), two(rank, 2), three(rank, 3), four(rank, 4);
  std::vector<NumberedSum> eager;
  for (int i = 0; i < kTurns; ++i) eager.emplace_back(rank, 10 + i);
  void* graphs[] = {capture_two(r, one, two, turns[0], turns[1]),
                    capture_two(r, three, four, turns[2], turns[0])};
  for (int i = 0; i < kTurns; ++i) {
    Stream stream = turns[i % 3];
    dawdle(stream, rank, i);
    if (i % 4 != 3)
      standin_graph_launch(graphs[i % 2], stream);
    else
      eager[static_cast<std::size_t>(i)].enqueue(r, stream);
  }
  for (Stream stream : turns) standin_stream_synchronize(stream);
  std::uint64_t wrong =
      one.wrong(r.ranks) + two.wrong(r.ranks) + three.wrong(r.ranks) + four.wrong(r.ranks);
  for (int i = 3; i < kTurns; i += 4) wrong += eager[static_cast<std::size_t>(i)].wrong(r.ranks);
  for (void* graph : graphs) standin_graph_destroy(graph);
  for (Stream stream : turns) standin_stream_destroy(stream);
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

/// A call of each of two communicators on a stream each, the first call late: reports whether the
/// second ends first. NEW_STAYS: NCCL keeps the second communicator.
std::string two_communicators(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  if (std::getenv("NEW_STAYS") != nullptr) leave_new();
  Comm other = nullptr;
  MUST(nccl().ncclCommSplit(r.comm, 0, rank, &other, nullptr));
  Stream side = standin_stream_create();
  std::uint64_t wrong = 0, early = 0;
  for (const bool grouped : {false, true}) {
    NumberedSum sum(rank, 1);
    std::vector<std::int32_t> cast(kCount, rank == 0 ? 7 : 0);
    StreamGate gate(r.stream);
    sum.enqueue(r, r.stream);
    if (grouped) MUST(nccl().ncclGroupStart());
    MUST(nccl().ncclBroadcast(cast.data(), cast.data(), kCount, kInt32, 0, other, side));
    if (grouped) MUST(nccl().ncclGroupEnd());
    standin_stream_synchronize(side);
    early += sum.wrong(r.ranks) != 0;
    gate.open();
    r.wait();
    wrong += sum.wrong(r.ranks) + (cast != std::vector<std::int32_t>(kCount, 7));
  }
  standin_stream_destroy(side);
  MUST(nccl().ncclCommDestroy(other));
  return number("wrong", wrong) + ", " + number("early", early);
}

}  // namespace program
