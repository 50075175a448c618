// The reduction of a chunk by CPU cores.
#include "gpu/copy/host_job.hpp"

namespace plait::cuda {

ReduceJob HostJob::reduction(std::uint32_t chunk) const {
  ReduceJob job;
  job.type = type;
  job.op = op;
  job.order = order;
  job.source_count = ranks;
  job.count = cut.length_of(chunk) / bytes_of(type);
  const std::uint64_t at = cut.slot_at(chunk);
  for (int rank = 0; rank < ranks; ++rank) {
    job.sources[rank] = rings[rank] + at;
    job.scales[rank] = scales[rank];
  }
  job.dst = rings[owner(chunk)] + at;
  return job;
}

}  // namespace plait::cuda
