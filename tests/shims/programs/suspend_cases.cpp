// Cases of ncclCommSuspend and ncclCommResume: calls of random sizes before, between and after, and
// ranks that cannot resume.
#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <thread>

#include "tests/shims/programs/rank.hpp"

namespace program {
namespace {

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

std::uint64_t stat(Comm comm, int which) {
  std::uint64_t bytes = 0;
  MUST(nccl().ncclCommMemStats(comm, which, &bytes));
  return bytes;
}

/// Returns the wrong elements of a call with values of this turn.
std::uint64_t wrong_of(const TestRank& r, std::size_t count, int turn) {
  std::vector<std::int32_t> values = filled<std::int32_t>(r.rank, count), sums(count, -1);
  for (std::int32_t& value : values) value += turn;
  MUST(nccl().ncclAllReduce(values.data(), sums.data(), count, kInt32, kSum, r.comm, r.stream));
  r.wait();
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i)
    wrong += sums[i] != expected<std::int32_t>(kSum, r.ranks, i) + r.ranks * turn;
  return wrong;
}

}  // namespace

/// Suspends and resumes at random amid calls, alike on all ranks; a call meanwhile is refused. With
/// PLAIT_TRIM_S ranks pause now and then, so that large arenas are given up.
std::string suspended(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::mt19937 random(7);
  std::uint64_t wrong = 0, suspends = 0, refused = 0, stats_wrong = 0;
  for (int turn = 0; turn < 60; ++turn) {
    if (std::getenv("PLAIT_TRIM_S") != nullptr && random() % 4 == 0) sleep_ms(150);
    if (random() % 4 != 0) {
      wrong += wrong_of(r, random() % 6 == 0 ? 300'000 : 1 + random() % 5000, turn);
      continue;
    }
    const std::uint64_t staying = stat(r.comm, 2), all = stat(r.comm, 3);
    MUST(nccl().ncclCommSuspend(r.comm, 1));
    ++suspends;
    std::int32_t value = 1;
    refused += nccl().ncclAllReduce(&value, &value, 1, kInt32, kSum, r.comm, r.stream) != 0;
    stats_wrong += stat(r.comm, 1) != 1 || stat(r.comm, 2) != staying || stat(r.comm, 3) != all;
    MUST(nccl().ncclCommResume(r.comm));
    stats_wrong += stat(r.comm, 1) != 0 || stat(r.comm, 3) != all;
  }
  return number("wrong", wrong) + ", " + number("suspends", suspends) + ", " +
         number("refused", refused) + ", " + number("stats_wrong", stats_wrong) + ", " +
         number("goes", stat(r.comm, 0)) + ", " + counted("all_reduce") + ", " +
         number("given_up", standin_calls("large arena given up"));
}

/// Suspends with rank 0 in a group, so that all ranks keep plait's memory; then alike, and tries to
/// resume in a group before all resume.
std::string suspend_groups(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = wrong_of(r, 300'000, 1);
  for (const bool in_group : {true, false}) {
    if (in_group && rank == 0) MUST(nccl().ncclGroupStart());
    MUST(nccl().ncclCommSuspend(r.comm, 1));
    if (in_group && rank == 0) MUST(nccl().ncclGroupEnd());
    if (in_group) MUST(nccl().ncclCommResume(r.comm));
    wrong += in_group ? wrong_of(r, 1000, 2) : 0;
  }
  std::vector<std::int32_t> values(300'000, 1);
  const Result large = nccl().ncclAllReduce(values.data(), values.data(), values.size(), kInt32,
                                            kSum, r.comm, r.stream);
  MUST(nccl().ncclGroupStart());
  const Result resumed = nccl().ncclCommResume(r.comm);
  MUST(nccl().ncclGroupEnd());
  MUST(nccl().ncclCommResume(r.comm));
  // Read before the calls: a rank that is late here may have given the arena up behind them.
  const auto least = standin_calls("large arena given up");
  for (int turn = 3; turn < 6; ++turn) wrong += wrong_of(r, 300'000, turn);
  for (int i = 0; i < 2000 && standin_calls("large arena given up") == least; ++i) sleep_ms(10);
  wrong += wrong_of(r, 1000, 6);
  return number("wrong", wrong) + ", " + number("large", static_cast<std::uint64_t>(large)) + ", " +
         number("in_group", static_cast<std::uint64_t>(resumed)) + ", " +
         number("given_up", standin_calls("large arena given up") - least);
}

/// Suspends and resumes, the latter in a group, with calls before and behind.
std::string resume_group(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = wrong_of(r, 1000, 1);
  MUST(nccl().ncclCommSuspend(r.comm, 1));
  MUST(nccl().ncclGroupStart());
  const Result resumed = nccl().ncclCommResume(r.comm);
  MUST(nccl().ncclGroupEnd());
  if (resumed == 0) wrong += wrong_of(r, 1000, 2);
  return number("wrong", wrong) + ", " + number("resumed", static_cast<std::uint64_t>(resumed)) +
         ", " + counted("all_reduce");
}

/// Suspends, then resumes in vain: a rank has no memory, or dies meanwhile.
std::string resume_fails(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = wrong_of(r, 1000, 1);
  MUST(nccl().ncclCommSuspend(r.comm, 1));
  const Result resumed = nccl().ncclCommResume(r.comm);
  std::int32_t value = 1;
  const Result called = nccl().ncclAllReduce(&value, &value, 1, kInt32, kSum, r.comm, r.stream);
  return number("wrong", wrong) + ", " + number("resumed", static_cast<std::uint64_t>(resumed)) +
         ", " + number("called", static_cast<std::uint64_t>(called));
}

}  // namespace program
