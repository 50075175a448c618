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
#include "gpu/copy/exchange_cut.hpp"

namespace plait::cuda {

/// Flags in host memory that all ranks map, by rank with a single writer each, initially zero. The
/// flags count the chunks of all calls and are never reset.
struct HostFlags {
  alignas(128) std::uint32_t arrived[kMaxCudaRanks];  ///< by the rank's GPU: chunks brought down
  alignas(128) std::uint32_t reduced[kMaxCudaRanks];  ///< by the rank's cores: its latest chunk
  alignas(128) std::uint32_t taken[kMaxCudaRanks];    ///< by the rank's GPU: chunks brought up
};
/// Bytes of HostFlags in whole pages, for a separate registration.
inline constexpr std::uint64_t kHostFlagsBytes = 4096;
static_assert(sizeof(HostFlags) <= kHostFlagsBytes);

/// The part of a call: chunk after chunk in slots of the rings, owned by the ranks in turn.
struct HostJob {
  DataType type = DataType::fp32;
  ReduceOp op = ReduceOp::sum;
  int ranks = 0;
  char* rings[kMaxCudaRanks] = {};  ///< as this process sees them
  double scales[kMaxCudaRanks] = {};
  HostCut cut;

  int owner(std::uint32_t chunk) const { return static_cast<int>(chunk) % ranks; }
  /// Returns the reduction of a chunk: all rings in rank order, into the owner's ring.
  ReduceJob reduction(std::uint32_t chunk) const;
};

/// Runs a rank's cores through a job: waits until a chunk of all ranks has arrived, reduces the
/// chunk if the rank owns it, and reports progress, at the end the progress of the whole job.
/// Returns false if await_chunk gave up.
template <class Await, class Reduce, class Tell>
bool run_host_job(const HostJob& job, int rank, const Await& await_chunk, const Reduce& reduce,
                  const Tell& signal) {
  std::uint32_t signal_value = 0;
  for (std::uint32_t chunk = 0; chunk < job.cut.chunks; ++chunk) {
    if (job.owner(chunk) != rank) continue;
    if (!await_chunk(chunk + 1)) return false;
    reduce(chunk);
    signal(signal_value = chunk + 1);
  }
  if (signal_value != job.cut.chunks) signal(job.cut.chunks);
  return true;
}

class HostReducer {
 public:
  /// threads: that reduce. stop_page: read only; jobs are dropped once a kernel has given up.
  HostReducer(HostFlags& flags, int rank, int threads, const StopPage& stop_page, double wait_s);
  ~HostReducer();
  HostReducer(const HostReducer&) = delete;
  HostReducer& operator=(const HostReducer&) = delete;

  /// To be called before the first job. std::system_error if threads cannot be created.
  void start();
  /// Queues a job that the GPU has reached, in order. Callable from any thread; never waits.
  void begin(const HostJob& job);

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
