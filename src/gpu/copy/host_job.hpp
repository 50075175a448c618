// A part of a call that CPU cores reduce, as a copy queue puts it into stream order: the part's
// cut, and the flags in host memory by which GPUs and cores synchronise.
#pragma once
#include <cstdint>

#include "cpu/reduce_team.hpp"
#include "gpu/abi/call_args.hpp"
#include "gpu/copy/exchange_cut.hpp"
#include "plait/plan.hpp"

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
  SumOrder order = SumOrder::rank_order;
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

/// Threads that run a rank's jobs (host_path/host_reducer.hpp).
class HostJobs {
 public:
  virtual ~HostJobs() = default;
  /// To be called before the first job. std::system_error if threads cannot be created.
  virtual void start() = 0;
  /// Queues a job that the GPU has reached, in order. Callable from any thread; never waits.
  virtual void begin(const HostJob& job) = 0;
};

}  // namespace plait::cuda
