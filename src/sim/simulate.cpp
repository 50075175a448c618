// Simulates plans: an event clock over lanes (each runs steps in order), flags, copy engines and
// flows. Events of one instant are handled together, in order of creation, and rates are computed
// once afterwards: results are deterministic.
#include "sim/simulate.hpp"

#include <algorithm>
#include <queue>
#include <utility>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/timeline.hpp"
#include "sim/bound.hpp"
#include "sim/fluid.hpp"
#include "sim/kernel_price.hpp"
#include "sim/script.hpp"

namespace plait {
namespace sim {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// Events closer than this are a single instant: rounding may delay the end of a flow.
constexpr double kInstantNs = 1e-4;

struct SimEvent {
  double at_ns = 0.0;
  std::uint64_t number = 0;   // order of creation
  int lane = -1;              // the timer of a lane, or
  int raised = -1;            // a signal step that raises a flag, or
  int flow = -1;              // the end of a flow,
  std::uint32_t version = 0;  // void unless the flow still has this version
  bool operator>(const SimEvent& other) const {
    return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number;
  }
};

enum class LanePhase : std::uint8_t { idle, timing, flowing, parked, done };

struct LaneState {
  int next = 0;  // index of the next step
  LanePhase phase = LanePhase::idle;
  double started_ns = 0.0;  // start of the current step
};

/// A library call: it begins for all members when the last has joined, and ends with the last of
/// the members' flows.
struct CallState {
  std::vector<int> arrived;  // lanes
  int in_flight = 0;
};

struct FlagState {
  std::uint32_t value = 0;
  std::vector<int> waiting;  // lanes
};

class Clock {
 public:
  Clock(const SimMachine& machine, const Script& script)
      : machine_(machine),
        script_(script),
        fluid_(machine, machine.topology().links.size()),
        lanes_(script.lanes.size()),
        flags_(at(script.flag_count)),
        calls_(script.members.size()),
        engines_(machine.topology().devices.size(), machine.costs().copy_engines),
        queues_(machine.topology().devices.size()),
        queue_heads_(machine.topology().devices.size(), 0) {
    spans_.resize(script.steps.size());
  }

  void run() {
    for (std::size_t i = 0; i < lanes_.size(); ++i) go_on(static_cast<int>(i));
    settle();
    while (!events_.empty()) {
      now_ns_ = events_.top().at_ns;
      while (!events_.empty() && events_.top().at_ns <= now_ns_ + kInstantNs) {
        const SimEvent event = events_.top();
        events_.pop();
        if (event.lane >= 0)
          timer(event.lane);
        else if (event.raised >= 0)
          raise(script_.steps[at(event.raised)]);
        else
          finish(event);
      }
      settle();
    }
  }

  /// The first lane that did not end; -1 = all ended.
  int stuck() const {
    for (std::size_t i = 0; i < lanes_.size(); ++i)
      if (lanes_[i].phase != LanePhase::done) return static_cast<int>(i);
    return -1;
  }
  int next_step(int lane) const { return lanes_[at(lane)].next; }
  const std::vector<Span>& spans() const { return spans_; }
  const std::vector<Rate>& rates(int resource) const { return fluid_.rates(resource); }

 private:
  const ScriptStep& step(int lane) const {
    return script_.steps[at(script_.lanes[at(lane)].first_step + lanes_[at(lane)].next)];
  }

  void schedule(int lane, double at_ns) { events_.push({at_ns, number_++, lane, -1, -1, 0}); }

  // Runs the lane's next steps until a step takes time.
  void go_on(int index) {
    LaneState& lane = lanes_[at(index)];
    const LaneScript& script = script_.lanes[at(index)];
    while (lane.next < script.step_count) {
      const ScriptStep& next = step(index);
      // The next step is used after many steps of other lanes, and lies in another cache line.
      if (lane.next + 1 < script.step_count) __builtin_prefetch(&(&next)[1].ready_ns);
      lane.started_ns = std::max(now_ns_, next.ready_ns);
      if (next.kind == OpKind::wait) {
        FlagState& flag = flags_[at(next.flag)];
        if (flag.value < next.value) {
          lane.phase = LanePhase::parked;
          flag.waiting.push_back(index);
          return;
        }
        if (lane.started_ns <= now_ns_ && next.fixed_ns == 0.0) {
          complete(index);
          continue;
        }
      }
      if (next.call >= 0) return arrive(next.call, index);
      if (next.engine >= 0 && !take_engine(next.engine, index)) return;
      begin(index);
      return;
    }
    lane.phase = LanePhase::done;
  }

  void arrive(int call, int index) {
    CallState& state = calls_[at(call)];
    lanes_[at(index)].phase = LanePhase::parked;
    state.arrived.push_back(index);
    if (static_cast<int>(state.arrived.size()) < script_.members[at(call)]) return;
    state.in_flight = static_cast<int>(state.arrived.size());
    for (const int lane : state.arrived) begin(lane);
  }

  void end_call(int call) {
    CallState& state = calls_[at(call)];
    if (--state.in_flight > 0) return;
    for (const int lane : state.arrived) {
      complete(lane);
      go_on(lane);
    }
  }

  bool take_engine(int device, int lane) {
    if (engines_[at(device)] > 0) {
      --engines_[at(device)];
      return true;
    }
    lanes_[at(lane)].phase = LanePhase::parked;
    queues_[at(device)].push_back(lane);
    return false;
  }

  // Starts the fixed time of a step.
  void begin(int index) {
    LaneState& lane = lanes_[at(index)];
    lane.phase = LanePhase::timing;
    schedule(index, std::max(now_ns_, lane.started_ns) + step(index).fixed_ns);
  }

  void timer(int index) {
    const ScriptStep& here = step(index);
    if (here.use_count > 0 && here.bytes > 0.0) {
      lanes_[at(index)].phase = LanePhase::flowing;
      fluid_.start(now_ns_, here.bytes, here.limit, &script_.uses[at(here.first_use)],
                   here.use_count, here.link, index);
      return;
    }
    end_step(index);
  }

  void finish(const SimEvent& event) {
    const Flow& flow = fluid_.flow(event.flow);
    if (!flow.active || flow.version != event.version || flow.queued_ns != event.at_ns) return;
    if (flow.finish_ns > now_ns_ + kInstantNs) {  // the flow has slowed down since
      push(fluid_.later(event.flow));
      return;
    }
    const int lane = flow.owner;
    fluid_.stop(event.flow);
    end_step(lane);
  }

  void push(const Finish& finish) {
    events_.push({finish.at_ns, number_++, -1, -1, finish.flow, finish.version});
  }

  void end_step(int index) {
    const ScriptStep& here = step(index);
    if (here.call >= 0) return end_call(here.call);
    complete(index);
    if (here.kind == OpKind::signal) {
      if (here.lag_ns > 0.0)
        events_.push({now_ns_ + here.lag_ns, number_++, -1,
                      static_cast<int>(&here - script_.steps.data()), -1, 0});
      else
        raise(here);
    }
    if (here.engine >= 0) free_engine(here.engine);
    go_on(index);
  }

  void complete(int index) {
    LaneState& lane = lanes_[at(index)];
    const LaneScript& script = script_.lanes[at(index)];
    spans_[at(script.first_step + lane.next)] = {script.lane, lane.next, lane.started_ns, now_ns_};
    ++lane.next;
  }

  void raise(const ScriptStep& signal) {
    FlagState& flag = flags_[at(signal.flag)];
    flag.value = std::max(flag.value, signal.value);
    std::vector<int> woken;
    std::erase_if(flag.waiting, [&](int lane) {
      if (step(lane).value > flag.value) return false;
      woken.push_back(lane);
      return true;
    });
    for (const int lane : woken) {
      if (lanes_[at(lane)].started_ns >
          now_ns_) {  // the flag rose before the host has enqueued the wait
        begin(lane);
        continue;
      }
      complete(lane);
      go_on(lane);
    }
  }

  void free_engine(int device) {
    std::vector<int>& queue = queues_[at(device)];
    std::size_t& head = queue_heads_[at(device)];
    if (head == queue.size()) {
      ++engines_[at(device)];
      return;
    }
    begin(queue[head++]);  // the lane that has waited longest gets the engine
  }

  void settle() {
    finishes_.clear();
    fluid_.settle(now_ns_, finishes_);
    for (const Finish& finish : finishes_) push(finish);
  }

  const SimMachine& machine_;
  const Script& script_;
  Fluid fluid_;
  std::vector<LaneState> lanes_;
  std::vector<FlagState> flags_;
  std::vector<CallState> calls_;
  std::vector<int> engines_;  // by device: free copy engines
  std::vector<std::vector<int>> queues_;
  std::vector<std::size_t> queue_heads_;
  std::vector<Span> spans_;
  std::vector<Finish> finishes_;
  std::priority_queue<SimEvent, std::vector<SimEvent>, std::greater<>> events_;
  std::uint64_t number_ = 0;
  double now_ns_ = 0.0;
};

[[noreturn]] void refuse_deadlock(const Clock& clock, const Script& script, int index,
                                  const Plan& plan) {
  const LaneScript& lane = script.lanes[at(index)];
  const Lane& of_plan = plan.lanes[at(lane.lane)];
  const int op = clock.next_step(index);
  throw Error(ErrorCode::invalid_argument,
              text("wanted a plan that ends, found {} stuck: rank {} lane {} op {} ({}) never "
                   "ends; see verify()",
                   label(plan), of_plan.rank, of_plan.name, op, print(of_plan.ops[at(op)], plan)));
}

// If the busiest resource is idle most of the time, fixed costs bound the plan.
bool is_latency_bound(const Timeline& timeline) {
  return std::none_of(
      timeline.resources.begin(), timeline.resources.end(),
      [&](const ResourceLoad& load) { return load.busy_ns >= 0.5 * timeline.total_ns; });
}

void add_bandwidth(Timeline& timeline, const Request& request) {
  if (timeline.total_ns <= 0.0) return;
  timeline.algbw_gb_per_s = static_cast<double>(message_bytes(request)) / timeline.total_ns;
  timeline.busbw_gb_per_s = timeline.algbw_gb_per_s * busbw_factor(request);
}

void add_loads(Timeline& timeline, const Clock& clock, const Script& script, int job,
               const SimMachine& machine) {
  std::vector<double> bytes(machine.capacities().size(), 0.0);
  for (const LaneScript& lane : script.lanes) {
    if (lane.job != job) continue;
    for (int i = lane.first_step; i < lane.first_step + lane.step_count; ++i) {
      const ScriptStep& step = script.steps[at(i)];
      for (int u = step.first_use; u < step.first_use + step.use_count; ++u) {
        const ResourceUse& use = script.uses[at(u)];
        bytes[at(use.resource)] += use.weight * step.bytes;
      }
    }
  }
  double busiest_ns = 0.0;
  timeline.bound_by = "latency";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] <= 0.0) continue;
    const double busy_ns = bytes[i] / machine.capacities()[i];
    timeline.resources.push_back(
        {machine.names()[i], bytes[i], busy_ns, clock.rates(static_cast<int>(i))});
    if (busy_ns > busiest_ns) {
      busiest_ns = busy_ns;
      timeline.bound_by = machine.names()[i];
    }
  }
  if (is_latency_bound(timeline)) timeline.bound_by = "latency";
}

Timeline timeline_of(const Clock& clock, const Script& script, const Plan& plan, double start_ns,
                     int index, const SimMachine& machine) {
  Timeline timeline;
  timeline.plan = label(plan);
  timeline.topology = machine.topology().name;
  double end_ns = start_ns;
  for (const LaneScript& lane : script.lanes) {
    if (lane.job != index) continue;
    const auto first = clock.spans().begin() + lane.first_step;
    timeline.spans.insert(timeline.spans.end(), first, first + lane.step_count);
    if (lane.step_count > 0) end_ns = std::max(end_ns, (first + lane.step_count - 1)->end_ns);
  }
  timeline.total_ns = end_ns - start_ns;
  add_loads(timeline, clock, script, index, machine);
  timeline.lower_bound_ns = lower_bound_ns(plan.request, machine);
  add_bandwidth(timeline, plan.request);
  return timeline;
}

// Scales the timeline of a kernel's plan to the kernel's predicted time.
void rescale(Timeline& timeline, const Request& request, double total_ns) {
  const double factor = timeline.total_ns > 0.0 ? total_ns / timeline.total_ns : 0.0;
  for (Span& span : timeline.spans) {
    span.start_ns *= factor;
    span.end_ns *= factor;
  }
  for (ResourceLoad& load : timeline.resources)
    for (Rate& rate : load.rates) {
      rate.at_ns *= factor;
      rate.gb_per_s /= factor;
    }
  timeline.total_ns = total_ns;
  if (is_latency_bound(timeline)) timeline.bound_by = "latency";
  add_bandwidth(timeline, request);
}

}  // namespace
}  // namespace sim

namespace {

struct JobView {
  const Plan* plan = nullptr;
  double start_ns = 0.0;
};

std::vector<Timeline> simulate_views(const std::vector<JobView>& jobs,
                                     const sim::SimMachine& machine,
                                     const SimulateOptions& options) {
  sim::Script script;
  for (std::size_t i = 0; i < jobs.size(); ++i)
    sim::append(script, *jobs[i].plan, static_cast<int>(i), jobs[i].start_ns, options.one_thread,
                machine);
  sim::Clock clock(machine, script);
  clock.run();
  if (const int lane = clock.stuck(); lane >= 0)
    sim::refuse_deadlock(
        clock, script, lane,
        *jobs[static_cast<std::size_t>(script.lanes[static_cast<std::size_t>(lane)].job)].plan);
  std::vector<Timeline> timelines;
  for (std::size_t i = 0; i < jobs.size(); ++i)
    timelines.push_back(sim::timeline_of(clock, script, *jobs[i].plan, jobs[i].start_ns,
                                         static_cast<int>(i), machine));
  return timelines;
}

}  // namespace

std::vector<Timeline> simulate(const std::vector<Job>& jobs, const Topology& topology,
                               const SimulateOptions& options) {
  std::vector<JobView> views;
  for (const Job& job : jobs) views.push_back({&job.plan, job.start_ns});
  return simulate_views(views, sim::SimMachine(topology), options);
}

Timeline sim::simulate(const Plan& plan, const SimMachine& machine) {
  Timeline timeline = std::move(simulate_views({{&plan, 0.0}}, machine, SimulateOptions{}).front());
  if (is_kernel_call(plan))
    rescale(timeline, plan.request, kernel_call_ns(plan, machine.topology(), Launch::graph));
  return timeline;
}

Timeline simulate(const Plan& plan, const Topology& topology) {
  return sim::simulate(plan, sim::SimMachine(topology));
}

double lower_bound_ns(const Request& request, const Topology& topology) {
  return sim::lower_bound_ns(checked(request, topology), sim::SimMachine(topology));
}

}  // namespace plait
