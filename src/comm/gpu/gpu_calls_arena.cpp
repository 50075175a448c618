// Chooses the arena of a call: the small arena, or steps of the large arena. gpu_calls.cpp reserves
// the steps.
#include "comm/gpu/gpu_calls.hpp"
#include "gpu/select/large_steps.hpp"

namespace plait {

GpuCalls::ArenaTier GpuCalls::tier_of(bool wants_large_arena) const {
  return cuda_->has_lazy_arena() && !wants_large_arena ? ArenaTier::small : ArenaTier::full;
}

const cuda::Selector& GpuCalls::selector_of(ArenaTier tier) const {
  return tier == ArenaTier::small ? *first_ : *whole_;
}

/// Returns the steps of the large arena that the call needs, eager or captured. Depends on the
/// request and agreed settings alone. A strategy named by the caller may need any tier, and a plan
/// any step.
unsigned GpuCalls::steps_needed(const Request& request, const CallOptions& options) const {
  if (!cuda_->has_lazy_arena() || request.count == 0) return 0;
  if (!options.strategy.empty() || !options_.forced.strategy.empty()) return cuda::kAllLargeSteps;
  if (!cuda::wants_large_arena(*first_, *whole_, request)) return 0;
  unsigned steps = 0;
  for (const Launch launch : {Launch::eager, Launch::graph}) {
    const std::optional<cuda::EngineChoice> choice = chosen(*whole_, request, options, launch);
    steps |=
        choice ? cuda::large_steps_of(*choice, request, cuda_->full_group()) : cuda::kAllLargeSteps;
  }
  return steps;
}

unsigned GpuCalls::large_steps(const LimitedRequest& request) {
  return cuda_->has_lazy_arena() ? offer(request).large_steps : 0;
}

}  // namespace plait
