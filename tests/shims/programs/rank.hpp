// Shared parts of the cases: a rank with a communicator, values to send, and the drop-in's
// counters.
#pragma once
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/trace/call_book.hpp"
#include "tests/shims/programs/nccl.hpp"

namespace program {

inline constexpr int kInt32 = 2, kFloat = 7, kDouble = 8, kBf16 = 9;

inline void require(int result, const char* what) {
  if (result != ncclSuccess)
    throw std::runtime_error(std::string(what) + " returned " + std::to_string(result));
}
#define MUST(call) require(call, #call)

inline std::string number(const char* name, std::uint64_t value) {
  return std::string("\"") + name + "\": " + std::to_string(value);
}

/// Returns the drop-in's counters; none without the drop-in.
inline std::optional<std::vector<plait::CounterRow>> counter_rows() {
  using Read = int (*)(plait::CounterRow*, int);
  void* drop_in = ::dlopen("libplait_nccl.so", RTLD_LAZY | RTLD_NOLOAD);
  const auto read = drop_in == nullptr
                        ? nullptr
                        : reinterpret_cast<Read>(::dlsym(drop_in, "plait_nccl_counters"));
  if (read == nullptr) return std::nullopt;
  std::vector<plait::CounterRow> rows(4096);
  rows.resize(static_cast<std::size_t>(read(rows.data(), 4096)));
  return rows;
}

/// Returns the drop-in's counts of served and forwarded calls (-1 without the drop-in), and the
/// all_gathers that reached the stand-in: set-up exchanges over NCCL, unless the program made them.
/// staged_late: stagings of set-up exchanges that were allocated after NCCL made the communicator.
inline std::string counted(const char* name) {
  const auto rows = counter_rows();
  if (!rows) return "\"served\": -1, \"passed\": -1";
  std::uint64_t served = 0, passed = 0;
  for (const plait::CounterRow& row : *rows)
    if (name == nullptr || std::strcmp(row.name, name) == 0)
      (row.served != 0 ? served : passed) += row.calls;
  return number("served", served) + ", " + number("passed", passed) + ", " +
         number("gathered", standin_calls("ncclAllGather")) + ", " +
         number("staged_late", standin_calls("late staging"));
}

/// Communicator and stream of a rank.
struct TestRank {
  explicit TestRank(const TestJob& job, int rank_) : rank(rank_), ranks(job.ranks) {
    MUST(nccl().ncclCommInitRank(&comm, ranks, job.id, rank));
    stream = standin_stream_create();
  }
  ~TestRank() {
    standin_stream_destroy(stream);
    if (comm != nullptr) nccl().ncclCommDestroy(comm);
  }
  void wait() const { standin_stream_synchronize(stream); }
  Comm comm = nullptr;
  Stream stream = nullptr;
  int rank, ranks;
};

/// Waits until the job's ranks have counted in that often, at most a minute.
inline void await_counted(const TestJob& job, int count) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (*job.attached < count && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// Counts this rank in, and waits for all ranks. turn: 1 for a case's first wait, 2 for its next.
inline void meet(const TestJob& job, int turn = 1) {
  ++*job.attached;
  await_counted(job, turn * job.ranks);
}

/// Holds a stream until open(), or for GATE_S: a call behind it is late, however busy the machine.
class StreamGate {
 public:
  explicit StreamGate(Stream stream) {
    standin_stream_push(stream, [](void* mine) { static_cast<StreamGate*>(mine)->wait(); }, this);
  }
  void open() { is_open_ = true; }

 private:
  void wait() const {
    const char* const given = std::getenv("GATE_S");
    const std::chrono::duration<double> longest(given == nullptr ? 20 : std::atof(given));
    const auto end = std::chrono::steady_clock::now() + longest;
    while (!is_open_ && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::atomic<bool> is_open_{false};
};

/// Returns small integers, different for each rank and index, so that sums are exact in every type.
template <class T>
std::vector<T> filled(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<T>((i * 7 + static_cast<std::size_t>(rank) * 3 + 1) % 13);
  return values;
}

template <class T>
T expected(int op, int ranks, std::size_t i) {
  double total = op == kProd ? 1 : op == kMin ? 1e9 : 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const double value = static_cast<double>((i * 7 + static_cast<std::size_t>(rank) * 3 + 1) % 13);
    if (op == kSum || op == kAvg) total += value;
    if (op == kProd) total *= value;
    if (op == kMax) total = std::max(total, value);
    if (op == kMin) total = std::min(total, value);
  }
  return static_cast<T>(op == kAvg ? total / ranks : total);
}

/// Sends to the next rank and receives from the previous rank, as a single group.
inline void pass_around(const TestRank& r, const std::vector<std::int32_t>& mine,
                        std::vector<std::int32_t>& got, Stream stream) {
  MUST(nccl().ncclGroupStart());
  const int next = (r.rank + 1) % r.ranks, last = (r.rank + r.ranks - 1) % r.ranks;
  MUST(nccl().ncclSend(mine.data(), got.size(), kInt32, next, r.comm, stream));
  MUST(nccl().ncclRecv(got.data(), got.size(), kInt32, last, r.comm, stream));
  MUST(nccl().ncclGroupEnd());
}

/// Returns the error of a one-element sum on the communicator, or 1 if the sum is wrong.
inline std::uint64_t wrong_sum(const TestRank& r, Comm comm, int ranks) {
  std::vector<std::int32_t> value{1};
  MUST(nccl().ncclAllReduce(value.data(), value.data(), 1, kInt32, kSum, comm, r.stream));
  r.wait();
  return value[0] != ranks;
}

/// Cases of calls on several streams, destroyed streams and graphs (order_cases.cpp).
std::string streams(const TestJob& job, int rank);
std::string lost_streams(const TestJob& job, int rank);
std::string forked_capture(const TestJob& job, int rank);
std::string begun_capture(const TestJob& job, int rank);
std::string mixed_graphs(const TestJob& job, int rank);
std::string two_communicators(const TestJob& job, int rank);

/// Cases of non-blocking communicators (background_cases.cpp).
std::string nonblocking(const TestJob& job, int rank);
std::string child_later(const TestJob& job, int rank);
std::string child_beside_calls(const TestJob& job, int rank);
std::string grow_later(const TestJob& job, int rank);
std::string order_later(const TestJob& job, int rank);

/// Cases of groups on several streams and of NCCL's order (group_cases.cpp).
std::string group_streams(const TestJob& job, int rank);
std::string group_refused(const TestJob& job, int rank);
std::string group_refused_late(const TestJob& job, int rank);
std::string group_refused_by_nccl(const TestJob& job, int rank);
std::string launch_order(const TestJob& job, int rank);
std::string always_nccls(const TestJob& job, int rank);
std::string limited(const TestJob& job, int rank);

/// Cases of strict mode and the large arena.
std::string strict(const TestJob& job, int rank);
std::string rank_order(const TestJob& job, int rank);
std::string large_arena(const TestJob& job, int rank);
std::string large_arena_simulated_late(const TestJob& job, int rank);
std::string large_arena_captured(const TestJob& job, int rank);
std::string large_arena_crossed(const TestJob& job, int rank);
std::string large_arena_of_one_thread(const TestJob& job, int rank);
std::string large_arena_closed_early(const TestJob& job, int rank);

/// Cases of pre-multiplied sums (factor_cases.cpp).
std::string factors(const TestJob& job, int rank);
std::string factor_ended(const TestJob& job, int rank);
/// Cases of the first arena (first_arena_cases.cpp).
std::string first_arena(const TestJob& job, int rank);
std::string first_arena_alone(const TestJob& job, int rank);
std::string first_arena_lost(const TestJob& job, int rank);
std::string first_arena_simulated(const TestJob& job, int rank);
std::string first_arena_suspended(const TestJob& job, int rank);
std::string first_arena_closed_early(const TestJob& job, int rank);
std::string arenas_soak(const TestJob& job, int rank);

/// Cases of suspended communicators (suspend_cases.cpp).
std::string suspended(const TestJob& job, int rank);
std::string suspend_groups(const TestJob& job, int rank);
std::string resume_group(const TestJob& job, int rank);
std::string resume_fails(const TestJob& job, int rank);

/// Cases of sends and receives (message_cases.cpp).
std::string messages(const TestJob& job, int rank);
std::string random_messages(const TestJob& job, int rank);
/// Cases of ranks that wait for others (hang_cases.cpp).
std::string hang(const TestJob& job, int rank);
/// Cases of communicators that end and ranks that die (end_cases.cpp).
std::string node_deaths(const TestJob& job, int rank);
std::string let_go_and_die(const TestJob& job, int rank);
std::string unseen(const TestJob& job, int rank);
std::string many_lives(const TestJob& job, int rank);
std::string leave_new(const TestJob& job, int rank);
std::string dies_attaching(const TestJob& job, int rank);
std::string short_page(const TestJob& job, int rank);
std::string leave_late(const TestJob& job, int rank);
std::string abort_frees(const TestJob& job, int rank);
std::string finalize(const TestJob& job, int rank);
std::string abort_in_group(const TestJob& job, int rank);
std::string abort_attaching(const TestJob& job, int rank);
std::string revoke_refused(const TestJob& job, int rank);
std::string split_alone(const TestJob& job, int rank);
std::string many_at_once(const TestJob& job, int rank);
std::string split_refused(const TestJob& job, int rank);

}  // namespace program
