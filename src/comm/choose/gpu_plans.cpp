// States the limits of a job's plans: in the topology, so that strategies cut chunks to the memory,
// and as a test of each plan.
#include "comm/choose/gpu_plans.hpp"

#include <utility>

#include "base/text.hpp"
#include "comm/choose/reach.hpp"
#include "cpu/cpu.hpp"
#include "gpu/abi/call_args.hpp"
#include "gpu/lanes/plan_memory.hpp"

namespace plait {
namespace {

/// how: the setting that raises the memory.
std::string too_little(const char* what, std::uint64_t wanted, std::uint64_t found,
                       const std::string& how) {
  return text("wants {} bytes of {}, the ranks' arenas have {}; {}", wanted, what, found, how);
}

}  // namespace

PlanMemory plan_memory(const cuda::Group& group, std::uint64_t ring_bytes) {
  return {group.sizes[cuda::kPlanScratch], group.sizes[cuda::kPlanInbox], ring_bytes};
}

std::uint64_t usual_plan_ring(const cuda::Group& group) {
  return group.host_bytes == 0 ? 0 : cuda::kPlanRingBytes;
}

Topology for_plans(const Topology& topology, const std::vector<int>& devices,
                   const PlanMemory& memory) {
  Topology bounded = without_others(topology, devices);
  const auto bound = [&](const char* name, std::uint64_t bytes) {
    bounded.parameters[name] = {static_cast<double>(bytes), "this communicator's memory"};
  };
  bound("arena_scratch_bytes", memory.scratch_bytes);
  bound("arena_inbox_bytes", memory.inbox_bytes);
  bound("arena_ring_bytes", memory.ring_bytes);
  return bounded;
}

std::string why_no_plan_memory(const Plan& plan, const PlanMemory& memory) {
  const ArenaSizes wanted = sizes_for(plan);
  if (plan.symmetric) return "wants buffers that all ranks see";
  if (!plan.relay_devices.empty())
    return "wants a GPU outside the job, and no process lends the memory of a GPU without a rank";
  if (wanted.scratch_bytes > memory.scratch_bytes)
    return too_little("scratch", wanted.scratch_bytes, memory.scratch_bytes,
                      text("PLAIT_DEVICE_SCRATCH={} gives as much, within PLAIT_DEVICE_MEMORY",
                           wanted.scratch_bytes));
  if (wanted.inbox_bytes > memory.inbox_bytes)
    return too_little("inbox", wanted.inbox_bytes, memory.inbox_bytes,
                      "a larger PLAIT_DEVICE_MEMORY gives more");
  if (wanted.ring_bytes > memory.ring_bytes)
    return too_little("host ring", wanted.ring_bytes, memory.ring_bytes, "no setting gives more");
  if (wanted.flags_per_pair > cuda::kFlagsPerPair)
    return text("wants {} flags a pair, there are {}", wanted.flags_per_pair, cuda::kFlagsPerPair);
  return "";
}

GpuPlans::GpuPlans(const Topology& topology, const std::vector<int>& devices,
                   const cuda::Group& group, std::uint64_t ring_bytes, CallOptions forced,
                   bool bitwise)
    : memory_(plan_memory(group, ring_bytes)),
      topology_(for_plans(topology, devices, memory_)),
      chooser_(
          topology_, std::move(forced), bitwise, [this](const Plan& plan) { return why_not(plan); },
          false, group.sum_order) {}

}  // namespace plait
