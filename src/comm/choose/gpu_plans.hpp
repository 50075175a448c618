// Plans by lanes that a job of ranks on the GPUs of one node may run. Communicators, the drop-in
// and described machines all ask GpuPlans, so that `plait plan` states no plan that calls refuse.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/choose/choose.hpp"
#include "gpu/engine/group.hpp"
#include "plait/plan.hpp"
#include "plait/topology.hpp"

namespace plait {

/// Memory that every rank has for plans, in bytes.
struct PlanMemory {
  std::uint64_t scratch_bytes = 0;
  std::uint64_t inbox_bytes = 0;
  std::uint64_t ring_bytes = 0;  ///< of host memory
};
/// Returns the memory that the group's ranks have for plans. ring_bytes: of a host ring.
PlanMemory plan_memory(const cuda::Group& group, std::uint64_t ring_bytes);
/// Returns the bytes of a host ring for plans in a group that is described, without its ranks.
std::uint64_t usual_plan_ring(const cuda::Group& group);
/// Returns the topology for plans of ranks on `devices`: with this memory, and without paths over
/// GPUs outside the job, since no process lends the memory.
Topology for_plans(const Topology& topology, const std::vector<int>& devices,
                   const PlanMemory& memory);
/// Returns why a plan lacks memory, with the setting that raises the memory; empty if memory
/// suffices.
std::string why_no_plan_memory(const Plan& plan, const PlanMemory& memory);

class GpuPlans {
 public:
  /// topology: of the communicator. devices: of the ranks. group: values that the ranks agree on,
  /// with the sizes of their arenas. ring_bytes: of each host ring. forced and bitwise: as for
  /// Chooser.
  GpuPlans(const Topology& topology, const std::vector<int>& devices, const cuda::Group& group,
           std::uint64_t ring_bytes, CallOptions forced = {}, bool bitwise = false);
  GpuPlans(const GpuPlans&) = delete;
  GpuPlans& operator=(const GpuPlans&) = delete;

  /// Returns the topology with the limits of the ranks, for proposals.
  const Topology& topology() const { return topology_; }
  Chooser& chooser() { return chooser_; }
  /// Returns why the ranks refuse a plan; empty if they run the plan.
  std::string why_not(const Plan& plan) const { return why_no_plan_memory(plan, memory_); }

 private:
  const PlanMemory memory_;
  const Topology topology_;
  Chooser chooser_;
};

}  // namespace plait
