// One reduction in host memory by several threads, each a slice of it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// What reduce_cpu (exec/cpu/cpu.hpp) is given, with all sources finished.
struct ReduceJob {
  static constexpr int kMostSources = 16;
  DataType type = DataType::fp32;
  ReduceOp op = ReduceOp::sum;
  void* dst = nullptr;  ///< may be one of the sources
  const void* sources[kMostSources] = {};
  double scales[kMostSources] = {};  ///< premul_sum
  int source_count = 0;
  std::uint64_t count = 0;  ///< elements
};

class ReduceTeam {
 public:
  /// helpers: threads beside the one that asks. They start at the first large job unless start()
  /// has been called, spin for a moment after each job, and sleep.
  explicit ReduceTeam(int helpers);
  ~ReduceTeam();
  ReduceTeam(const ReduceTeam&) = delete;
  ReduceTeam& operator=(const ReduceTeam&) = delete;

  /// std::system_error where a thread cannot be had.
  void start();
  /// While it lives, helpers do not sleep: jobs follow each other closely.
  class Shift {
   public:
    explicit Shift(ReduceTeam& team) : team_(team) { ++team_.shifts_; }
    ~Shift() { --team_.shifts_; }
    Shift(const Shift&) = delete;
    Shift& operator=(const Shift&) = delete;

   private:
    ReduceTeam& team_;
  };
  /// Returns when all of it is done. One job at a time, whoever asks.
  void reduce(const ReduceJob& job);

 private:
  void wake();
  void help(std::size_t slice);

  const std::size_t helpers_;
  std::mutex asking_;
  std::mutex guard_;
  std::condition_variable begin_;
  ReduceJob job_;
  std::atomic<std::uint64_t> jobs_{0};  // begun so far
  std::atomic<std::size_t> busy_{0};    // helpers
  std::atomic<std::size_t> sleeping_{0};
  std::atomic<std::size_t> shifts_{0};
  std::atomic<bool> is_over_{false};
  std::vector<std::thread> threads_;
};

}  // namespace plait
