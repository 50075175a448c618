// Script: plans compiled for the simulator. Each op becomes a step with fixed costs, bytes, and the
// capacities it uses, all as flat indices. append() refuses a plan that does not fit the machine,
// with the first fault (verify() lists all).
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "plait/timeline.hpp"
#include "sim/machine.hpp"
#include "sim/simulate.hpp"

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
  int call = -1;            ///< join, begin of a priced call: dense index over all jobs
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

/// A lane's ops of a priced call, behind the op that waits for the begin.
struct PlayedOps {
  int count = 0;
  int first_span = 0;  ///< index into Script::played_spans, of the first op
};

struct Script {
  std::vector<ScriptStep> steps;
  std::vector<ResourceUse> uses;
  std::vector<LaneScript> lanes;
  int flag_count = 0;
  std::vector<int> members;  ///< by call over all jobs, a library's or priced: number of members
  std::map<int, PlayedOps> played;  ///< by step that begins a lane's part of a priced call
  std::vector<Span> played_spans;   ///< relative to the begin of the priced call
};

/// Appends a plan's lanes; ops start at `start_ns` or later. With `one_thread` a single host thread
/// enqueues for all ranks, else each rank has a thread. Error(invalid_argument) if the plan does
/// not fit the machine.
void append(Script& script, const Plan& plan, int job, double start_ns, bool one_thread,
            const SimMachine& machine);
/// Appends the ops of a priced call alone, without the waits for the begin.
void append_alone(Script& script, const Plan& plan, const PricedCall& call,
                  const SimMachine& machine);
/// Makes the ops of a priced call a single step of `ns` for each lane. alone: the call's ops
/// simulated alone, in `ns`; the spans are those of the call. Returns the index of the call. Called
/// after append(), for a job whose first lane is `first_lane`.
int append_priced(Script& script, const PricedCall& call, const Timeline& alone,
                  std::size_t first_lane, double start_ns);

}  // namespace plait::sim
