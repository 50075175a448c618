// Cases of ranks that meet on their host while NCCL makes the communicator: each way of making one,
// ranks that cannot see each other, and ranks that end amid the call.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "tests/shims/programs/rank.hpp"

namespace program {
namespace {

/// Makes two communicators with one id, both alive, then a third after their end.
std::string twice(const TestJob& job, int rank) {
  TestRank r(job, rank);
  std::uint64_t wrong = 0;
  {
    const TestRank again(job, rank);
    wrong += wrong_sum(again, again.comm, again.ranks) + wrong_sum(r, r.comm, r.ranks);
  }
  const TestRank third(job, rank);
  wrong += wrong_sum(third, third.comm, third.ranks);
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

std::string scalable(const TestJob& job, int rank) {
  UniqueId ids[2] = {job.id, job.id};
  ids[1].bytes[100] = 1;
  TestRank r(job, rank);
  Comm comm = nullptr;
  MUST(nccl().ncclCommInitRankScalable(&comm, job.ranks, rank, 2, ids, nullptr));
  const std::uint64_t wrong = wrong_sum(r, comm, r.ranks);
  MUST(nccl().ncclCommDestroy(comm));
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

/// Returns how many wrong lists of excluded ranks NCCL's function did not refuse.
std::uint64_t wrong_shrinks(const TestRank& r) {
  int out = 0;
  std::uint64_t wrong = 0;
  Comm child = nullptr;
  for (const int count : {-1, 0, 1 << 30, -(1 << 30)}) {
    wrong += nccl().ncclCommShrink(r.comm, &out, count, &child, nullptr, 0) != ncclInvalidArgument;
    wrong += nccl().ncclCommShrink(r.comm, nullptr, count, &child, nullptr, 0) == ncclSuccess;
  }
  return wrong + (child != nullptr);
}

/// Makes three children, the last behind a reset of the device, which ends stagings made before.
std::string reset_device(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = wrong_sum(r, r.comm, r.ranks), made[3];
  for (int turn = 0; turn < 3; ++turn) {
    if (turn == 2) standin_count("device reset");
    const std::uint64_t before = standin_calls("staging made");
    Comm child = nullptr;
    MUST(nccl().ncclCommSplit(r.comm, 0, r.rank, &child, nullptr));
    wrong += wrong_sum(r, child, r.ranks);
    MUST(nccl().ncclCommDestroy(child));
    made[turn] = standin_calls("staging made") - before;
  }
  return number("wrong", wrong) + ", " + number("first", made[0]) + ", " +
         number("again", made[1]) + ", " + number("behind", made[2]) + ", " + counted("all_reduce");
}

/// Makes children and children of children: by colour, in reverse order, without the first rank.
std::string children(const TestJob& job, int rank) {
  const TestRank r(job, rank);
  std::uint64_t wrong = wrong_shrinks(r);
  for (int round = 0; round < 3; ++round) {
    Comm half = nullptr, reversed = nullptr, rest = nullptr;
    const int color = (rank + round) % 2;
    MUST(nccl().ncclCommSplit(r.comm, color, rank, &half, nullptr));
    MUST(nccl().ncclCommSplit(r.comm, 7, -rank, &reversed, nullptr));
    int mine = -1, out = round % r.ranks;
    MUST(nccl().ncclCommUserRank(reversed, &mine));
    wrong += mine != r.ranks - 1 - rank;
    if (rank != out) MUST(nccl().ncclCommShrink(r.comm, &out, 1, &rest, nullptr, 0));
    wrong += wrong_sum(r, half, (r.ranks + (color == round % 2)) / 2);
    wrong += wrong_sum(r, reversed, r.ranks);
    if (rest != nullptr) wrong += wrong_sum(r, rest, r.ranks - 1);
    Comm grandchild = nullptr;
    MUST(nccl().ncclCommSplit(reversed, 0, rank, &grandchild, nullptr));
    wrong += wrong_sum(r, grandchild, r.ranks);
    for (Comm made : {half, reversed, rest, grandchild})
      if (made != nullptr) MUST(nccl().ncclCommDestroy(made));
  }
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

/// Ranks whose rendezvous folders differ, as in unlike mount namespaces: MEET_FOLDERS has two.
std::string apart(const TestJob& job, int rank) {
  const std::string folders = std::getenv("MEET_FOLDERS");
  const std::size_t middle = folders.find(':');
  const std::string mine = rank == 0 ? folders.substr(0, middle) : folders.substr(middle + 1);
  ::setenv("XDG_RUNTIME_DIR", mine.c_str(), 1);
  const TestRank r(job, rank);
  std::uint64_t wrong = wrong_sum(r, r.comm, r.ranks);
  Comm child = nullptr;  // of the ranks with one folder, and rank 0
  MUST(nccl().ncclCommSplit(r.comm, rank == 0, rank, &child, nullptr));
  wrong += wrong_sum(r, child, rank == 0 ? 1 : r.ranks - 1);
  MUST(nccl().ncclCommDestroy(child));
  return number("wrong", wrong) + ", " + counted("all_reduce");
}

/// Makes communicators in turn. At a random time the last rank dies, or a second thread of the rank
/// aborts the communicator that is being made; the others' calls end, with or without an error.
std::string random_ends(const TestJob& job, int rank) {
  std::mt19937 random(static_cast<unsigned>(std::atoi(std::getenv("MEET_SEED"))));
  const bool dies = random() % 2 == 0;
  const auto end_us = std::chrono::microseconds(random() % 60'000);
  const TestRank all(job, rank);
  ConfigHead config{sizeof(ConfigHead), kConfigMagic, 22809, 0};
  Comm comm = nullptr;
  std::thread ender;
  std::atomic<Comm> started{nullptr};
  if (rank == job.ranks - 1)
    ender = std::thread([&] {
      std::this_thread::sleep_for(end_us);
      if (dies) ::kill(::getpid(), SIGKILL);
      while (started.load() == nullptr) std::this_thread::yield();
      nccl().ncclCommAbort(started.load());
    });
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
  std::uint64_t made = 0;
  Result state = ncclSuccess;
  while (state == ncclSuccess && std::chrono::steady_clock::now() < until) {
    state = nccl().ncclCommInitRankConfig(&comm, job.ranks, job.id, rank, &config);
    if (ender.joinable() && !dies) started.store(comm);
    if (ender.joinable() && !dies) break;
    while (state == ncclInProgress && nccl().ncclCommGetAsyncError(comm, &state) == ncclSuccess)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    made += state == ncclSuccess;
    nccl().ncclCommAbort(comm);
  }
  if (ender.joinable()) ender.join();
  return number("wrong", 0) + ", " + number("made", made);
}

}  // namespace

std::string run_meeting(const TestJob& job, int rank) {
  using Case = std::function<std::string(const TestJob&, int)>;
  static const std::map<std::string, Case> kMeetCases = {
      {"meet_twice", twice}, {"meet_scalable", scalable},  {"meet_children", children},
      {"meet_apart", apart}, {"meet_reset", reset_device}, {"meet_random_ends", random_ends}};
  return kMeetCases.at(job.name)(job, rank);
}

}  // namespace program
