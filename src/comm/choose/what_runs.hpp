// Tells what ranks on GPUs would run for a request: plan, proof and time. For `plait plan` and for
// counters, on machines that need not be present.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/env.hpp"
#include "comm/bootstrap/nodes.hpp"
#include "comm/choose/gpu_plans.hpp"
#include "gpu/select/select.hpp"
#include "plait/report.hpp"
#include "plait/timeline.hpp"

namespace plait {

struct WhatRuns {
  cuda::EngineChoice choice;
  Plan plan;
  double predicted_us = 0.0;
  Report proof;  ///< proof of a single call, and of two in a row
  /// The call launched in the other mode, if different.
  std::optional<cuda::EngineChoice> otherwise;
};

/// An exchange of two ranks has a host share that earlier calls correct. If the caller does not set
/// the share, an eager call's plan has the best share, and a captured call's plan has none. Where
/// arenas lie in host memory, the plan's paths go through the host.
Plan plan_as_launched(const cuda::EngineChoice& choice, const Topology& topology,
                      const Request& request, const cuda::Group& group, Launch launch);
/// Returns lines for users: time, bytes by path, proof.
std::string print(const WhatRuns& found);

/// Describes the call by the engine of `choice`. request: checked. Throws Error(unsupported) if the
/// time through host memory is not known.
WhatRuns what_runs(const cuda::EngineChoice& choice, const Topology& topology,
                   const Request& request, const cuda::Group& group, Launch launch);
/// Returns the model of each rank's GPU.
std::vector<std::string> models_of(const Topology& topology, const Request& request);
/// Memory of communicators on each GPU. 0 = as usual.
struct DescribedMemory {
  std::uint64_t bytes = 0;
  std::uint64_t plan_scratch = 0;  ///< part of that
  bool at_once = false;            ///< all of it is taken when the communicator is made
};
/// Returns the memory of PLAIT_DEVICE_MEMORY and PLAIT_DEVICE_SCRATCH.
DescribedMemory memory_of(const Env& env);
/// Returns the group that ranks on the topology's GPUs agree on, a process each: no kernels that a
/// GPU of the model cannot run (topo/gpu_models.hpp).
cuda::Group described_group(const Topology& topology, const Request& request,
                            const DescribedMemory& memory = {}, int pair_of = 0,
                            SumOrder order = SumOrder::rank_order);
/// Whether a pair of the request's GPUs, all of one node, has no link, and every such pair has a
/// path through host memory: arenas then lie there. Links that masks have left out count as links,
/// since GPUs still address each other. request: checked.
bool go_through_host(const Topology& topology, const Request& request);
/// Returns why masks leave no engine to the ranks; empty = engines may run. placed: checked.
std::string why_masked(const Topology& topology, const Request& placed);
/// Returns the path through host memory between two devices, if any.
std::optional<Path> way_through_host(const Topology& topology, int from, int to);
/// Whether engines can take a request of ranks there. placed: checked.
bool may_run_engines(const Topology& topology, const Request& placed);
/// Replaces links between GPUs by the ways through host memory, in an engine's plan.
void take_host_paths(Plan& plan, const Topology& topology);
/// Returns the topology with links between GPUs that have none.
Topology with_links(const Topology& topology);
/// Returns what ranks run on the topology's GPUs: a process each, with host memory that all map,
/// with this memory. launch: whether the call is captured, regardless of `wanted`.
/// table: the machine's tuning table. None = a plan by lanes, for example if two GPUs lie
/// on two nodes, if masks have left out a link, or if a plan is predicted to be faster. GPUs
/// without a direct link run engines through host memory; paths of the result's plan say so.
/// pair_of: not 0 = for a pair of two ranks out of this number. order: of sums, rank order or a
/// tree. Throws Error(unsupported) if the wanted engine refuses.
std::optional<WhatRuns> what_would_run(const Topology& topology, const Request& request,
                                       const cuda::EngineRequest& wanted, Launch launch,
                                       cuda::TuningTable table = {},
                                       const DescribedMemory& memory = {}, int pair_of = 0,
                                       SumOrder order = SumOrder::rank_order);
/// Returns the selector of ranks on the topology's GPUs, whose plans have the group's memory.
/// topology and placed outlive the result.
cuda::Selector described_selector(const Topology& topology, const Request& placed,
                                  const cuda::Group& group, cuda::TuningTable table);
/// Predicts a call in a graph by the engine or plan that runs, on one node without a tuning table.
/// placed: checked. Throws Error if the time is not known.
double predicted_call_ns(const Topology& topology, const Request& placed);
/// Returns the plans that ranks on the topology's GPUs may run, with the memory of
/// described_group(). Null for CPU ranks, for ranks on several nodes, and for GPUs that run no
/// kernel of plans: such plans obey the topology alone.
std::unique_ptr<GpuPlans> described_plans(const Topology& topology, const Request& request,
                                          bool bitwise = false,
                                          SumOrder order = SumOrder::rank_order,
                                          const DescribedMemory& memory = {});
/// Returns the plan by lanes for a call without a strategy. bitwise: PLAIT_BITWISE=1. Throws
/// Error(unsupported) if no plan serves.
Plan taken_by_calls(const Topology& topology, const Request& request, bool bitwise = false,
                    SumOrder order = SumOrder::rank_order, const DescribedMemory& memory = {});
/// The same for CPU ranks that play the machine: their arenas have the topology's memory.
Plan taken_by_cpu_ranks(const Topology& topology, const Request& request, bool bitwise = false,
                        SumOrder order = SumOrder::rank_order);
/// Returns the nodes of a described machine, with their network. request: checked.
Nodes described_nodes(const Topology& topology, const Request& request);
/// Returns why NCCL alone does a call between GPUs of several nodes; empty if plait takes part, and
/// for other calls.
std::string why_library_runs(const Topology& topology, const Request& request,
                             bool bitwise = false);
/// Predicts calls in graphs, for a selector of ranks on these devices (empty = the first devices).
cuda::Predict predictor(const Topology& topology, const cuda::Group& group,
                        const std::vector<int>& devices = {});
/// Predicts calls by the plan that `plan_for` returns; infinite if `plan_for` throws an Error.
/// `topology` must outlive the result.
cuda::PredictPlan plan_predictor(const Topology& topology,
                                 std::function<Plan(const Request&)> plan_for);

}  // namespace plait
