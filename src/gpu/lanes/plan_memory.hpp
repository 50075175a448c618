// Flags, memory and kernels of plans by lanes.
#pragma once
#include <string>

#include "gpu/engine/resources.hpp"

namespace plait::cuda {

/// Flags of plans in a rank's memory, by the rank that raises them.
struct PlanFlags {
  std::uint32_t by[kMaxCudaRanks][kFlagsPerPair];
};
inline constexpr ArenaFlags<PlanFlags> kPlanFlags{"plans", 4096};
inline constexpr ArenaPart kPlanInbox{"inbox", "the inbox of plans", 2};
inline constexpr ArenaPart kPlanScratch{
    .name = "scratch", .what = "the scratch of plans", .is_own = true};
extern const KernelFamily kLaneKernels;
const Resources& lane_resources();

std::string lane_kernel(const Request& request);

}  // namespace plait::cuda
