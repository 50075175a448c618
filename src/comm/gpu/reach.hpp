// Where ranks' GPUs are in a topology, and what masks leave of it to kernels and copy engines.
// These store straight into every peer's memory, and take host memory beside it, whatever a
// topology says; plans go by it, as far as ranks have memory for them.
#pragma once
#include <string>
#include <vector>

#include "base/env.hpp"
#include "plait/plan.hpp"
#include "plait/topology.hpp"

namespace plait {

struct Reach {
  std::string why_no_kernels;  ///< empty = every pair of GPUs has a link of its own
  bool host = true;            ///< every GPU reaches host memory
};

/// devices: of the ranks, in the topology, which has been masked. Where no mask is about a link
/// between two GPUs, a pair without one never had it.
Reach reach_of(const Topology& topology, const std::vector<int>& devices,
               const std::vector<std::string>& masks);

/// Without ways over GPUs that are none of `devices`.
Topology without_others(const Topology& topology, const std::vector<int>& devices);

/// What every rank has for plans, in bytes.
struct PlanMemory {
  std::uint64_t scratch_bytes = 0;
  std::uint64_t inbox_bytes = 0;
  std::uint64_t ring_bytes = 0;  ///< of host memory
};
/// The topology as plans of ranks on `devices` may use it: with this room, and with no way over
/// GPUs outside the job, whose memory nobody lends.
Topology for_plans(const Topology& topology, const std::vector<int>& devices,
                   const PlanMemory& memory);
/// Why a plan cannot run there; empty where it can.
std::string why_no_plan_memory(const Plan& plan, const PlanMemory& memory);

/// The topology's device that is this GPU: by uuid where it states them, else by CUDA ordinal; -1 =
/// none.
int device_of_gpu(const Topology& topology, const std::string& uuid, int ordinal);

/// `given`, or where that is empty PLAIT_WITHOUT.
std::vector<std::string> requested_masks(const std::vector<std::string>& given, const Env& env);
/// The masks that are about links between GPUs, or (shm:) about those between processes.
std::vector<std::string> masks_of(const std::vector<std::string>& masks, bool between_processes);

}  // namespace plait
