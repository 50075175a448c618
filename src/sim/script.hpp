// Script: plans compiled for the simulator. Each op becomes a step with fixed costs, bytes, and the
// capacities it uses, all as flat indices. append() refuses a plan that does not fit the machine,
// with the first fault (verify() lists all).
#pragma once
#include <cstdint>
#include <vector>

#include "plait/plan.hpp"
#include "sim/machine.hpp"

namespace plait::sim {

/// The bytes that a step moves, and the capacities in use.
struct Draw {
  int first_use = 0;   ///< index into Script::uses; joins of equal calls share uses
  int use_count = 0;   ///< 0 = no flow, a fixed time only
  double bytes = 0.0;  ///< size of the flow
  double limit = 0.0;  ///< largest rate of the flow, bytes per ns
};

struct ScriptStep : Draw {
  OpKind kind = OpKind::copy;
  std::uint32_t value = 0;  ///< signal, wait
  int flag = -1;            ///< signal, wait: dense index over all jobs
  int call = -1;            ///< join: dense index over all jobs
  int engine = -1;          ///< copy on a copy engine: the GPU of the engine
  int link = -1;            ///< for the port loss: copies of copy engines only
  double fixed_ns = 0.0;    ///< time before the flow starts, or of the whole step
  double lag_ns = 0.0;      ///< signal: time from the step's end to the flag's rise
  double ready_ns = 0.0;    ///< time at which the host has enqueued the step
};

struct LaneScript {
  int job = 0;
  int lane = 0;  ///< index in the job's plan
  int first_step = 0;
  int step_count = 0;
};

struct Script {
  std::vector<ScriptStep> steps;
  std::vector<ResourceUse> uses;
  std::vector<LaneScript> lanes;
  int flag_count = 0;
  std::vector<int> members;  ///< by library call over all jobs: number of members
};

/// Appends a plan's lanes; ops start at `start_ns` or later. With `one_thread` a single host thread
/// enqueues for all ranks, else each rank has a thread. Error(invalid_argument) if the plan does
/// not fit the machine.
void append(Script& script, const Plan& plan, int job, double start_ns, bool one_thread,
            const SimMachine& machine);

}  // namespace plait::sim
