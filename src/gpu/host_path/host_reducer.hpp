// CPU side of a part that cores reduce (host_reduction.hpp). A thread sleeps until the GPU reaches
// such a call, then reduces this rank's chunks as flags report arrivals, and signals the results.
// GPU and cores synchronise by flags in host memory alone: a driver call per chunk would take
// longer than the chunk.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "cpu/reduce_team.hpp"
#include "gpu/abi/call_args.hpp"
#include "gpu/copy/host_job.hpp"

namespace plait::cuda {

class HostReducer : public HostJobs {
 public:
  /// threads: that reduce. stop_page: read only; jobs are dropped once a kernel has given up.
  HostReducer(HostFlags& flags, int rank, int threads, const StopPage& stop_page, double wait_s);
  ~HostReducer() override;
  HostReducer(const HostReducer&) = delete;
  HostReducer& operator=(const HostReducer&) = delete;

  void start() override;
  void begin(const HostJob& job) override;

 private:
  void serve();
  bool run(const HostJob& job);
  bool await_chunk(std::uint32_t value, int ranks);
  bool is_over() const;

  HostFlags& flags_;
  const int rank_;
  const StopPage& stop_page_;
  const double wait_s_;
  ReduceTeam team_;
  std::optional<ReduceTeam::Shift> shift_;
  std::uint32_t counted_;  // chunks of finished jobs
  std::atomic<bool> stops_{false};
  std::mutex guard_;
  std::condition_variable wake_;
  std::deque<HostJob> jobs_;
  std::thread thread_;
};

}  // namespace plait::cuda
