// Gives pairs of ranks a part of a communicator's device memory and thread blocks.
#include <algorithm>

#include "base/text.hpp"
#include "comm/gpu/gpu_side.hpp"
#include "driver/cuda/api.hpp"
#include "gpu/engine/group.hpp"

namespace plait {

void GpuSide::lend_to(PairOf& pair) const {
  int mode = cuda::kCaptureRelaxed;
  cuda::api().exchange_capture_mode(&mode);
  const cuda::ArenaTiers& tiers = calls_->rank().full_group().tiers;
  const GpuGroup& group = calls_->group();
  pair.device_bytes = tiers.pair_bytes;
  // The path check has proved the paths inside islands.
  if (!group.are_in_one_island(pair.ranks[0], pair.ranks[1]))
    pair.through_host = group.through_host;
  pair.sm_budget = cuda::pair_blocks(std::max(options_.ranks, 2), options_.sm_budget);
  if (tiers.pair_bytes > 0)
    pair.device = ordinal();
  else
    pair.why_no_gpu = text("it wants {} MiB of device memory; {} leaves none for {} pairs of ranks",
                           cuda::kArenaGrainBytes >> 20, tiers.budget, options_.ranks - 1);
}

}  // namespace plait
