// Plan + machine -> one step an op: fixed costs, bytes, and the capacities it draws on, all as flat
// indices, so that the event clock looks nothing up by name. Refuses what cannot be meant on the
// machine (verify() lists all that is wrong with a plan; this names the first).
#pragma once
#include <cstdint>
#include <vector>

#include "plait/plan.hpp"
#include "sim/machine.hpp"

namespace plait::sim {

/// What a step moves, and on what that draws.
struct Draw {
  int first_use = 0;   ///< into Script::uses; joins of alike calls share theirs
  int use_count = 0;   ///< 0 = no flow: a fixed time only
  double bytes = 0.0;  ///< of the flow
  double limit = 0.0;  ///< of the flow's rate
};

struct ScriptStep : Draw {
  OpKind kind = OpKind::copy;
  std::uint32_t value = 0;  ///< signal, wait
  int flag = -1;            ///< signal, wait: dense index over all jobs
  int call = -1;            ///< join: dense index over all jobs
  int engine = -1;          ///< copy on a copy engine: the GPU whose engines it needs
  int link = -1;            ///< for the port loss: copies of copy engines only
  double fixed_ns = 0.0;    ///< before the flow starts, or all there is
  double lag_ns = 0.0;      ///< signal: from the end of the step to the flag's rise
  double ready_ns = 0.0;    ///< the host has not enqueued it before
};

struct LaneScript {
  int job = 0;
  int lane = 0;  ///< in the job's plan
  int first_step = 0;
  int step_count = 0;
};

struct Script {
  std::vector<ScriptStep> steps;
  std::vector<ResourceUse> uses;
  std::vector<LaneScript> lanes;
  int flag_count = 0;
  std::vector<int> members;  ///< of each library call, over all jobs
};

/// Appends a plan's lanes; its ops start at `start_ns`. With `one_thread` a single host thread
/// enqueues for all ranks, else each rank has its own.
void append(Script& script, const Plan& plan, int job, double start_ns, bool one_thread,
            const SimMachine& machine);

}  // namespace plait::sim
