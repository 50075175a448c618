// N ranks as threads or processes, a GPU each, with a board in shared memory for barriers and
// exchange of bytes and numbers. For GPU benchmarks and tests without rendezvous.
#pragma once
#include <execinfo.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace plait::bench {

inline constexpr int kBoardRanks = 16;
inline constexpr std::size_t kRecordBytes = 4096;

/// Lies in memory that all ranks map.
struct Board {
  std::atomic<int> arrived{0};
  std::atomic<int> round{0};
  std::atomic<int> broken{0};
  int ranks = 1;
  std::uint64_t record_bytes[kBoardRanks] = {};
  char records[kBoardRanks][kRecordBytes] = {};
  double figures[kBoardRanks] = {};

  /// Barrier of all ranks; throws after `seconds` or if a rank has failed.
  void barrier(double seconds = 60) {
    const int mine = round.load();
    if (arrived.fetch_add(1) == ranks - 1) {
      arrived.store(0);
      round.fetch_add(1);
      return;
    }
    // A rank of a bench should leave at once. After a long wait a rank sleeps, which leaves the
    // core to the rank that is awaited.
    constexpr auto kYields = std::chrono::milliseconds(10);
    constexpr auto kSleep = std::chrono::microseconds(100);
    const auto begin = std::chrono::steady_clock::now();
    while (round.load() == mine) {
      if (broken.load() != 0) throw std::runtime_error("another rank failed");
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (waited > std::chrono::duration<double>(seconds))
        throw std::runtime_error("a rank did not come");
      if (waited < kYields)
        ::sched_yield();
      else
        std::this_thread::sleep_for(kSleep);
    }
  }
  std::vector<std::string> exchange(int rank, const std::string& mine) {
    const auto r = static_cast<std::size_t>(rank);
    if (mine.size() > kRecordBytes) throw std::runtime_error("set-up record too long");
    std::memcpy(records[r], mine.data(), mine.size());
    record_bytes[r] = mine.size();
    barrier();
    std::vector<std::string> all;
    for (std::size_t p = 0; p < static_cast<std::size_t>(ranks); ++p)
      all.emplace_back(records[p], record_bytes[p]);
    barrier();
    return all;
  }
  /// Maximum of all ranks' numbers.
  double largest(int rank, double mine) {
    figures[rank] = mine;
    barrier();
    const double most = *std::max_element(figures, figures + ranks);
    barrier();
    return most;
  }
  double total(int rank, double mine) {
    figures[rank] = mine;
    barrier();
    double sum = 0;
    for (int p = 0; p < ranks; ++p) sum += figures[p];
    barrier();
    return sum;
  }
};

/// Prints the place of a crash to stderr, as addresses for addr2line.
inline void trace_crashes() {
  const auto handler = [](int) {
    void* frames[40];
    ::backtrace_symbols_fd(frames, ::backtrace(frames, 40), 2);
    ::_exit(139);
  };
  ::signal(SIGSEGV, handler);
}

/// Memory shared by threads and forked processes.
inline std::byte* shared_memory(std::size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw std::runtime_error("no shared memory");
  return static_cast<std::byte*>(base);
}

inline Board* make_board(int ranks) {
  Board* board = new (shared_memory(sizeof(Board))) Board;
  board->ranks = ranks;
  return board;
}

/// Ends this process at once, as SIGKILL does, with a status. Sanitizers do not report what the
/// process leaves behind.
[[noreturn]] inline void end_as_killed(int status) {
  std::fflush(nullptr);
  ::syscall(SYS_exit_group, status);
  std::abort();
}

/// Runs body(i) in a process each, forked before any CUDA call; returns 0 if all returned 0.
inline int in_processes(int count, const std::function<int(int)>& body) {
  std::vector<pid_t> children;
  std::fflush(nullptr);  // Buffered output must not be printed again by each child.
  for (int i = 0; i < count; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const int status = body(i);
      std::fflush(nullptr);
      ::_exit(status);
    }
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
      std::fprintf(stderr, "a process ended by signal %d (14 = its seconds are over)\n",
                   WTERMSIG(status));
    failed |= status != 0 ? 1 : 0;
  }
  return failed;
}

/// Runs body(rank) on every rank; returns 0 if none threw.
inline int run_ranks(Board* board, bool processes, const std::function<void(int)>& body) {
  const auto guarded = [&](int rank) {
    try {
      body(rank);
      return 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      board->broken.store(1);
      return 1;
    }
  };
  if (processes) return in_processes(board->ranks, guarded);
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < board->ranks; ++rank)
    threads.emplace_back([&, rank] { failed |= guarded(rank); });
  for (std::thread& thread : threads) thread.join();
  return failed.load();
}

}  // namespace plait::bench
