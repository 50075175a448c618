// ReduceTeam: reduces in host memory with several threads, a slice each.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// Arguments of reduce_cpu (cpu/cpu.hpp) for a last reduction.
struct ReduceJob {
  static constexpr int kMostSources = 16;
  DataType type = DataType::fp32;
  ReduceOp op = ReduceOp::sum;
  void* dst = nullptr;  ///< may be one of the sources
  const void* sources[kMostSources] = {};
  double scales[kMostSources] = {};  ///< premul_sum
  int source_count = 0;
  SumOrder order = SumOrder::rank_order;
  std::uint64_t count = 0;  ///< elements
};

class ReduceTeam {
 public:
  /// helpers: threads in addition to the calling thread. Helpers start at the first large job or in
  /// start(), spin for a moment after each job, and then sleep.
  explicit ReduceTeam(int helpers);
  ~ReduceTeam();
  ReduceTeam(const ReduceTeam&) = delete;
  ReduceTeam& operator=(const ReduceTeam&) = delete;

  /// Starts the helpers; std::system_error if a thread cannot be created.
  void start();
  /// While a Shift lives, helpers do not sleep, since jobs follow closely.
  class Shift {
   public:
    explicit Shift(ReduceTeam& team) : team_(team) { ++team_.shifts_; }
    ~Shift() { --team_.shifts_; }
    Shift(const Shift&) = delete;
    Shift& operator=(const Shift&) = delete;

   private:
    ReduceTeam& team_;
  };
  /// Runs a job, and returns when the job is complete. Thread-safe; one job at a time.
  void reduce(const ReduceJob& job);

 private:
  void wake();
  void help(std::size_t slice);

  const std::size_t helpers_;
  std::mutex asking_;
  std::mutex guard_;
  std::condition_variable begin_;
  ReduceJob job_;
  std::atomic<std::uint64_t> jobs_{0};  // number of jobs begun
  std::atomic<std::size_t> busy_{0};    // helpers at work
  std::atomic<std::size_t> sleeping_{0};
  std::atomic<std::size_t> shifts_{0};
  std::atomic<bool> is_over_{false};
  std::vector<std::thread> threads_;
};

}  // namespace plait
