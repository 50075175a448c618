// Cases of communicators that get their first arena at the first call: all ranks switch from NCCL
// to plait at the same call, no rank waits for another rank's program, and captures, groups,
// messages, suspends and resumes keep all values right.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

#include "tests/shims/programs/rank.hpp"

namespace program {
namespace {

constexpr std::size_t kSmall = 1000, kLarge = 300'000;
constexpr std::uint64_t kOfStandin = 1000;  // bytes that a suspend of the stand-in frees

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

/// A communicator of all ranks, split off the job's communicator.
struct Child {
  explicit Child(const TestRank& r) {
    MUST(nccl().ncclCommSplit(r.comm, 0, r.rank, &comm, nullptr));
  }
  ~Child() {
    if (comm != nullptr) nccl().ncclCommDestroy(comm);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  Comm comm = nullptr;
};

/// An all_reduce with values of its number, so that no two calls have the same sums.
struct NumberedCall {
  NumberedCall(const TestRank& r, std::size_t count, int number)
      : ranks_(r.ranks), number_(number), values(filled<std::int32_t>(r.rank, count)) {
    for (std::int32_t& value : values) value += number;
    sums.assign(count, -1);
  }
  void enqueue(Comm comm, Stream stream) {
    MUST(nccl().ncclAllReduce(values.data(), sums.data(), values.size(), kInt32, kSum, comm,
                              stream));
  }
  std::uint64_t wrong() const {
    std::uint64_t found = 0;
    for (std::size_t i = 0; i < sums.size(); ++i)
      found += sums[i] != expected<std::int32_t>(kSum, ranks_, i) + ranks_ * number_;
    return found;
  }

 private:
  int ranks_, number_;

 public:
  std::vector<std::int32_t> values, sums;
};

std::uint64_t arenas() { return standin_calls("first arena made"); }

std::uint64_t suspendable(Comm comm) {
  std::uint64_t bytes = 0;
  MUST(nccl().ncclCommMemStats(comm, 0, &bytes));
  return bytes;
}

std::uint64_t wrong_once(const TestRank& r, Comm comm, std::size_t count, int turn) {
  NumberedCall call(r, count, turn);
  call.enqueue(comm, r.stream);
  r.wait();
  return call.wrong();
}

/// Captures the communicator's first call, and replays the graph.
std::uint64_t wrong_captured(const TestRank& r, Comm comm) {
  NumberedCall call(r, kSmall, 3);
  standin_capture_begin(r.stream);
  call.enqueue(comm, r.stream);
  void* graph = standin_capture_end(r.stream);
  std::uint64_t wrong = 0;
  for (int turn = 0; turn < 3; ++turn) {
    call.sums.assign(kSmall, -1);
    standin_graph_launch(graph, r.stream);
    r.wait();
    wrong += call.wrong();
  }
  standin_graph_destroy(graph);
  return wrong;
}

std::uint64_t wrong_message(const TestRank& r, Comm comm) {
  const std::vector<std::int32_t> mine = filled<std::int32_t>(r.rank, kSmall);
  std::vector<std::int32_t> got(kSmall, -1);
  const int next = (r.rank + 1) % r.ranks, last = (r.rank + r.ranks - 1) % r.ranks;
  MUST(nccl().ncclGroupStart());
  MUST(nccl().ncclSend(mine.data(), kSmall, kInt32, next, comm, r.stream));
  MUST(nccl().ncclRecv(got.data(), kSmall, kInt32, last, comm, r.stream));
  MUST(nccl().ncclGroupEnd());
  r.wait();
  return got != filled<std::int32_t>(last, kSmall);
}

}  // namespace

/// Runs communicators whose first call is small, large, captured, or in a group that a rank has
/// simulated.
std::string first_arena(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = wrong_sum(r, r.comm, r.ranks);
  const std::uint64_t before = arenas();
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 5; ++i) children.push_back(std::make_unique<Child>(r));
  const std::uint64_t made_early = arenas() - before, early = suspendable(children[0]->comm);
  // A peer's first call makes this rank's arena, so a call of all ranks holds the peers until this
  // rank has counted arenas.
  wrong += wrong_sum(r, r.comm, r.ranks);
  wrong += wrong_once(r, children[0]->comm, kSmall, 1);
  const std::uint64_t first = arenas() - before;
  wrong += wrong_sum(r, r.comm, r.ranks);
  wrong += wrong_once(r, children[1]->comm, kLarge, 2);
  wrong += wrong_captured(r, children[2]->comm);
  if (rank == 0) {
    NumberedCall dropped(r, kSmall, 0);
    MUST(nccl().ncclGroupStart());
    dropped.enqueue(children[3]->comm, r.stream);
    MUST(nccl().ncclGroupSimulateEnd(nullptr));
  }
  for (int turn = 5; turn < 8; ++turn) wrong += wrong_once(r, children[3]->comm, kSmall, turn);
  return number("wrong", wrong) + ", " + number("made_early", made_early) + ", " +
         number("early", early) + ", " + number("late", suspendable(children[0]->comm)) + ", " +
         number("first", first) + ", " + number("arenas", arenas() - before) + ", " +
         counted("all_reduce") + ", " + number("nccl", standin_calls("ncclAllReduce"));
}

/// Rank 0 simulates a group of two first calls. The second call gets the arena.
std::string first_arena_simulated(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = wrong_sum(r, r.comm, r.ranks);
  const std::uint64_t before = arenas();
  const Child child(r);
  if (rank == 0) {
    NumberedCall dropped(r, kSmall, 0);
    MUST(nccl().ncclGroupStart());
    dropped.enqueue(child.comm, r.stream);
    for (int i = 0; i < 500 && arenas() - before < static_cast<std::uint64_t>(r.ranks); ++i)
      sleep_ms(10);
    sleep_ms(100);  // a rank publishes its arena after the counter has risen
    dropped.enqueue(child.comm, r.stream);
    MUST(nccl().ncclGroupSimulateEnd(nullptr));
  }
  wrong += wrong_sum(r, r.comm, r.ranks);  // no rank goes on before rank 0 has simulated
  for (int turn = 1; turn < 5; ++turn) wrong += wrong_once(r, child.comm, kSmall, turn);
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

/// All ranks suspend before a first call. Rank 0 resumes and calls at once. The watch threads of
/// the other ranks open, and the other ranks then resume in a group.
std::string first_arena_suspended(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = wrong_sum(r, r.comm, r.ranks);
  const Child child(r);
  MUST(nccl().ncclCommSuspend(child.comm, 1));
  if (rank != 0) {
    for (int i = 0; i < 500 && suspendable(child.comm) <= kOfStandin; ++i) sleep_ms(10);
    MUST(nccl().ncclGroupStart());
  }
  const Result resumed = nccl().ncclCommResume(child.comm);
  if (rank != 0) MUST(nccl().ncclGroupEnd());
  wrong += wrong_once(r, child.comm, kSmall, 1);
  return number("wrong", wrong) + ", " + number("resumed", static_cast<std::uint64_t>(resumed)) +
         ", " + number("late", suspendable(child.comm)) + ", " + counted("all_reduce");
}

/// Ranks after rank 0 call once rank 0 has enqueued a call: watch threads of these ranks open.
std::string first_arena_alone(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = wrong_sum(r, r.comm, r.ranks);
  const Child child(r);
  NumberedCall call(r, kSmall, 1);
  if (rank != 0) await_counted(job, 1);
  const auto began = std::chrono::steady_clock::now();
  call.enqueue(child.comm, r.stream);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  if (rank == 0) ++*job.attached;
  r.wait();
  return number("wrong", wrong + call.wrong()) + ", " +
         number("enqueued_ms", static_cast<std::uint64_t>(took.count())) + ", " +
         counted("all_reduce");
}

/// Makes a first call. A rank dies while the ranks open.
std::string first_arena_lost(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  const std::uint64_t wrong = wrong_sum(r, r.comm, r.ranks);
  const Child child(r);
  std::vector<std::int32_t> values(kSmall, 1);
  const Result called = nccl().ncclAllReduce(values.data(), values.data(), kSmall, kInt32, kSum,
                                             child.comm, r.stream);
  return number("wrong", wrong) + ", " + number("called", static_cast<std::uint64_t>(called));
}

/// Rank 0 begins to open. All ranks close before another rank makes a call.
std::string first_arena_closed_early(const TestJob& job, int rank) {
  {
    const TestRank r(job, rank);
    const Child child(r);
    NumberedCall never(r, kSmall, 0);
    if (rank == 0) {
      MUST(nccl().ncclGroupStart());
      never.enqueue(child.comm, r.stream);
      MUST(nccl().ncclGroupSimulateEnd(nullptr));
    }
  }
  const auto freed = [] { return standin_calls("engine freed"); };
  for (int i = 0; rank == 0 && i < 1500 && freed() < 2; ++i) sleep_ms(10);  // a thread frees
  return number("freed", freed());
}

/// Random communicators, calls, captures, messages, suspends and resumes, the same on all ranks, in
/// random order and with random pauses of single ranks.
std::string arenas_soak(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  const char* const given = std::getenv("SOAK_SEED");
  const auto seed = static_cast<unsigned>(given == nullptr ? 1 : std::atoi(given));
  std::mt19937 random(seed), own(seed * 100 + static_cast<unsigned>(rank));
  std::vector<std::unique_ptr<Child>> all;
  std::uint64_t wrong = 0, suspends = 0;
  for (int turn = 0; turn < 150; ++turn) {
    if (all.size() < 2 || (all.size() < 6 && random() % 12 == 0))
      all.push_back(std::make_unique<Child>(r));
    const std::size_t at = random() % all.size();
    Comm const comm = all[at]->comm;
    const auto what = random() % 16;
    if (own() % 8 == 0) sleep_ms(static_cast<int>(own() % 30));
    if (what == 0) {
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (what < 3) {
      MUST(nccl().ncclCommSuspend(comm, 1));
      MUST(nccl().ncclCommResume(comm));
      ++suspends;
    } else if (what < 5) {
      wrong += wrong_message(r, comm);
    } else if (what < 7) {
      wrong += wrong_captured(r, comm);
    } else {
      wrong += wrong_once(r, comm, what < 10 ? kLarge : 1 + random() % 3000, turn);
    }
  }
  return number("wrong", wrong) + ", " + number("suspends", suspends) + ", " +
         number("arenas", arenas()) + ", " +
         number("trims", standin_calls("large arena given up")) + ", " + counted("all_reduce");
}

}  // namespace program
