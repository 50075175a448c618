// What ranks on GPUs would run for a request, with its plan, its proof and its time: for people and
// for counters, on machines that need not be there.
#pragma once
#include <optional>
#include <string>

#include "exec/cuda/select.hpp"
#include "plait/report.hpp"
#include "plait/timeline.hpp"

namespace plait {

struct WhatRuns {
  cuda::EngineChoice choice;
  Plan plan;
  double predicted_us = 0.0;
  Report proof;  ///< of a call, and of two in a row
  std::optional<cuda::EngineChoice>
      otherwise;  ///< of the call launched the other way, if it differs
};

/// Two ranks' exchanges have a share through host memory that earlier calls correct. Where it is
/// left to be chosen, an eager call's plan has the best one, and a captured one's has none.
Plan plan_as_launched(const cuda::EngineChoice& choice, const Topology& topology,
                      const Request& request, const cuda::Group& group, Launch launch);
/// Lines for people: time, bytes by path, proof.
std::string print(const WhatRuns& found);

/// By the engine of `choice`; `request`: checked.
WhatRuns what_runs(const cuda::EngineChoice& choice, const Topology& topology,
                   const Request& request, const cuda::Group& group, Launch launch);
/// What ranks on such GPUs agree on, a process each, where no budget or mask says otherwise: a
/// usual group, without the kernels that a GPU of its model does not run (gpu_models.hpp).
cuda::Group described_group(const Topology& topology, const Request& request,
                            std::uint64_t memory_bytes = 0, int pair_of = 0);
/// What ranks run on such GPUs, a process each and with host memory that all map, where no budget
/// or mask says otherwise. `launch` says whether the call is captured, whatever `wanted` says.
/// table: the machine's. None: a plan by lanes, as where two of the GPUs have no link of their own
/// or lie on two nodes, or where a plan is faster by prediction. pair_of: not 0 = of two ranks by
/// themselves, of so many.
std::optional<WhatRuns> what_would_run(const Topology& topology, const Request& request,
                                       const cuda::EngineRequest& wanted, Launch launch,
                                       cuda::TuningTable table = {}, std::uint64_t memory_bytes = 0,
                                       int pair_of = 0);
/// The plan by lanes that a call takes where it names no strategy and no setting says otherwise.
/// Error(unsupported) where there is none.
Plan taken_by_calls(const Topology& topology, const Request& request);
/// For a selector of ranks on these devices of the topology (empty = the first ones): calls in
/// graphs.
cuda::Predict predictor(const Topology& topology, const cuda::Group& group,
                        const std::vector<int>& devices = {});
/// The same for calls by the plan that `plan_for` gives; infinite where it throws an Error.
/// `topology` outlives what is returned.
cuda::PredictPlan plan_predictor(const Topology& topology,
                                 std::function<Plan(const Request&)> plan_for);

}  // namespace plait
