// Runs ranks as child processes: the ranks join over socket pairs, run a body, and report to the
// parent. The parent may kill ranks. A rank with a fault applies it to itself at the given step
// (cpu/fault.hpp).
#pragma once
#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>

#include "base/env.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "plait/communicator.hpp"
#include "plait/error.hpp"
#include "unit/folder.hpp"

namespace plait {

/// ThreadSanitizer loses the threads in a forked child.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kCanFork = false;
#else
inline constexpr bool kCanFork = true;
#endif
inline constexpr const char* kNoFork =
    "left out under ThreadSanitizer: it does not work in children made by fork that start threads";

/// A rank's final report; small enough for a single atomic write to a pipe.
struct RankResult {
  int rank;
  int code;
  std::uint64_t calls;
  char sentence[400];
};

/// Ranks as child processes that join over socket pairs and report to a pipe.
class RankProcesses {
 public:
  /// A rank's count of finished calls, read by the parent to time a kill.
  using Calls = std::atomic<std::uint64_t>;
  using Body = std::function<void(Communicator&, Calls& calls)>;

  RankProcesses(int ranks, double deadline_s, const Body& body) {
    std::vector<std::array<int, 2>> pairs(ranks - 1);
    for (auto& pair : pairs) REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) == 0);
    REQUIRE(pipe(pipe_) == 0);
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(page != MAP_FAILED);
    calls_ = static_cast<Calls*>(page);
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t pid = fork();
      REQUIRE(pid >= 0);
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_rank(rank, ranks, deadline_s, pairs, body);
      }
      pids_.push_back(pid);
    }
    for (auto& pair : pairs) close(pair[0]), close(pair[1]);
    close(pipe_[1]);
  }

  ~RankProcesses() {
    for (pid_t pid : pids_) kill(pid, SIGKILL);
    for (pid_t pid : pids_) waitpid(pid, nullptr, 0);
    close(pipe_[0]);
    munmap(calls_, 4096);
  }

  std::uint64_t calls_of(int rank) const { return calls_[rank]; }
  void signal_rank(int rank, int number) { kill(pids_[rank], number); }

  /// Reads the next report. Returns false if none comes in time.
  bool next(RankResult& result, int timeout_ms) {
    pollfd entry{pipe_[0], POLLIN, 0};
    return poll(&entry, 1, timeout_ms) == 1 &&
           read(pipe_[0], &result, sizeof(result)) == sizeof(result);
  }

 private:
  [[noreturn]] void be_rank(int rank, int ranks, double deadline_s,
                            const std::vector<std::array<int, 2>>& pairs, const Body& body) {
    RankResult result{rank, 0, 0, ""};
    CommunicatorOptions options;
    options.rank = rank;
    options.ranks = ranks;
    options.deadline_s = deadline_s;
    options.arrive_s = 5;
    options.topology = "hgx-h200";  // a known topology, to keep set-up from measuring
    for (int peer = 1; peer < ranks; ++peer) {
      const bool mine = rank == 0 || rank == peer;
      const int end = pairs[peer - 1][rank == 0 ? 0 : 1];
      if (mine) options.rendezvous += text("{}{}", options.rendezvous.empty() ? "fd:" : ",", end);
      if (rank != 0 || !mine) close(pairs[peer - 1][0]);
      if (rank == 0 || !mine) close(pairs[peer - 1][1]);
    }
    try {
      const auto communicator = Communicator::create(options);
      for (int peer = 1; peer < ranks; ++peer)  // closes the originals; the communicator has copies
        if (rank == 0 || rank == peer) close(pairs[peer - 1][rank == 0 ? 0 : 1]);
      body(*communicator, calls_[rank]);
    } catch (const Error& error) {
      result.code = static_cast<int>(error.code());
      std::strncpy(result.sentence, error.what(), sizeof(result.sentence) - 1);
    }
    result.calls = calls_[rank];
    const bool reported = write(pipe_[1], &result, sizeof(result)) == sizeof(result);
    _exit(reported ? 0 : 1);
  }

  int pipe_[2];
  Calls* calls_ = nullptr;
  std::vector<pid_t> pids_;
};

inline void sum_for_ever(Communicator& comm, RankProcesses::Calls& calls) {
  Request request;
  request.ranks = comm.ranks();
  std::vector<float> in(300000, 1.0f);
  std::vector<float> out(in.size());
  for (;; ++calls) {
    request.count = calls % 3 == 0 ? in.size() : 1 + calls % 1000;  // long and short calls
    comm.run(request, in.data(), out.data());
    if (out[0] != static_cast<float>(comm.ranks()) || out[request.count - 1] != out[0])
      throw Error(ErrorCode::internal, "wrong sum");
  }
}

}  // namespace plait
