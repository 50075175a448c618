// Simulates plans: an event clock over lanes (each runs steps in order), flags, copy engines and
// flows. Events of one instant are handled together, in order of creation, and rates are computed
// once afterwards: results are deterministic.
#include "sim/simulate.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
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

/// A call of a library or a priced call: it begins for all members when the last has come, and ends
/// with the last of the members' flows.
struct CallState {
  double begun_ns = 0.0;
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
  double begun_ns(int call) const { return calls_[at(call)].begun_ns; }

 private:
  int step_index(int lane) const {
    return script_.lanes[at(lane)].first_step + lanes_[at(lane)].next;
  }
  const ScriptStep& step(int lane) const { return script_.steps[at(step_index(lane))]; }

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
        if (next.call < 0 && lane.started_ns <= now_ns_ && next.fixed_ns == 0.0) {
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
    state.begun_ns = now_ns_;
    for (const int lane : state.arrived) begin(lane);
  }

  void end_call(int call) {
    CallState& state = calls_[at(call)];
    if (--state.in_flight > 0) return;
    for (const int lane : state.arrived) {
      if (const auto played = script_.played.find(step_index(lane)); played != script_.played.end())
        play(lane, played->second, state.begun_ns);
      else
        complete(lane);
      go_on(lane);
    }
  }

  // Ends a lane's part of a priced call: the wait for the begin, then the ops.
  void play(int index, const PlayedOps& ops, double begun_ns) {
    LaneState& lane = lanes_[at(index)];
    const LaneScript& script = script_.lanes[at(index)];
    spans_[at(script.first_step + lane.next)] = {script.lane, lane.next, lane.started_ns, begun_ns};
    for (int i = 0; i < ops.count; ++i) {
      const Span& of_call = script_.played_spans[at(ops.first_span + i)];
      const int op = ++lane.next;
      spans_[at(script.first_step + op)] = {script.lane, op, begun_ns + of_call.start_ns,
                                            begun_ns + of_call.end_ns};
    }
    ++lane.next;
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
      if (const int call = step(lane).call; call >= 0) {
        arrive(call, lane);
        continue;
      }
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

/// The ops of a priced call, simulated alone and scaled to the price.
struct PricedTimeline {
  int call = 0;
  std::shared_ptr<const Timeline> alone;
};

/// Returns the rates of a resource by flows and by priced calls together.
std::vector<Rate> rates_of(const Clock& clock, int resource, const std::string& name,
                           const std::vector<PricedTimeline>& priced) {
  std::map<double, double> changes;
  const auto add = [&](const std::vector<Rate>& rates, double begun_ns) {
    double before = 0.0;
    for (const Rate& rate : rates) {
      changes[begun_ns + rate.at_ns] += rate.gb_per_s - before;
      before = rate.gb_per_s;
    }
  };
  for (const PricedTimeline& one : priced)
    for (const ResourceLoad& load : one.alone->resources)
      if (load.name == name) add(load.rates, clock.begun_ns(one.call));
  if (changes.empty()) return clock.rates(resource);
  add(clock.rates(resource), 0.0);
  std::vector<Rate> rates;
  double gb_per_s = 0.0;
  constexpr double kNone = 1e-9;  // rounding of sums of changes
  for (const auto& [at_ns, change] : changes) {
    gb_per_s += change;
    rates.push_back({at_ns, gb_per_s < kNone ? 0.0 : gb_per_s});
  }
  return rates;
}

void add_loads(Timeline& timeline, const Clock& clock, const Script& script, int job,
               const SimMachine& machine, const std::vector<PricedTimeline>& priced) {
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
        {machine.names()[i], bytes[i], busy_ns,
         rates_of(clock, static_cast<int>(i), machine.names()[i], priced)});
    if (busy_ns > busiest_ns) {
      busiest_ns = busy_ns;
      timeline.bound_by = machine.names()[i];
    }
  }
  if (is_latency_bound(timeline)) timeline.bound_by = "latency";
}

Timeline timeline_of(const Clock& clock, const Script& script, const Plan& plan, double start_ns,
                     int index, const SimMachine& machine,
                     const std::vector<PricedTimeline>& priced) {
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
  add_loads(timeline, clock, script, index, machine, priced);
  return timeline;
}

// Scales the timeline of a kernel's plan, or of a priced call, to the predicted time.
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

/// Simulates the ops of priced calls alone, once for calls of the same ops.
class AloneSimulator {
 public:
  AloneSimulator(const Plan& plan, const SimMachine& machine) : plan_(plan), machine_(machine) {}

  /// Returns the timeline of the call's ops, scaled to the price.
  std::shared_ptr<const Timeline> timeline(const PricedCall& call) {
    std::shared_ptr<const Timeline>& known = known_[key_of(call)];
    if (known == nullptr) known = std::make_shared<const Timeline>(simulated(call));
    return known;
  }

 private:
  using Key = std::pair<double, std::vector<std::uint64_t>>;
  /// Equal for calls whose ops differ in offsets and flags alone.
  Key key_of(const PricedCall& call) const {
    Key key{call.ns, {}};
    for (const LaneOps& ops : call.ops) {
      key.second.push_back(static_cast<std::uint64_t>(ops.lane));
      for (int i = ops.first; i < ops.first + ops.count; ++i) {
        const Op& op = plan_.lanes[at(ops.lane)].ops[at(i)];
        key.second.push_back(static_cast<std::uint64_t>(op.kind) << 56 ^
                             static_cast<std::uint64_t>(op.srcs.size()) << 48 ^
                             static_cast<std::uint64_t>(op.path + 1) << 8 ^
                             static_cast<std::uint64_t>(op.hop));
        key.second.push_back(op.dst.bytes);
      }
    }
    return key;
  }

  Timeline simulated(const PricedCall& call) const {
    Script script;
    append_alone(script, plan_, call, machine_);
    Clock clock(machine_, script);
    clock.run();
    if (const int lane = clock.stuck(); lane >= 0) refuse_deadlock(clock, script, lane, plan_);
    Timeline timeline = timeline_of(clock, script, plan_, 0.0, 0, machine_, {});
    rescale(timeline, plan_.request, call.ns);
    return timeline;
  }

  const Plan& plan_;
  const SimMachine& machine_;
  std::map<Key, std::shared_ptr<const Timeline>> known_;
};

// Simulates plans that share the machine, without bounds and speeds.
std::vector<Timeline> run_jobs(const std::vector<SimJob>& jobs, const SimMachine& machine,
                               const SimulateOptions& options) {
  Script script;
  std::vector<PricedTimeline> priced;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const SimJob& job = jobs[i];
    const std::size_t first_lane = script.lanes.size();
    append(script, *job.plan, static_cast<int>(i), job.start_ns, options.one_thread, machine);
    AloneSimulator simulator(*job.plan, machine);
    for (const PricedCall& call : job.priced) {
      std::shared_ptr<const Timeline> alone = simulator.timeline(call);
      const int index = append_priced(script, call, *alone, first_lane, job.start_ns);
      priced.push_back({index, std::move(alone)});
    }
  }
  Clock clock(machine, script);
  clock.run();
  if (const int lane = clock.stuck(); lane >= 0)
    refuse_deadlock(clock, script, lane, *jobs[at(script.lanes[at(lane)].job)].plan);
  std::vector<Timeline> timelines;
  for (std::size_t i = 0; i < jobs.size(); ++i)
    timelines.push_back(timeline_of(clock, script, *jobs[i].plan, jobs[i].start_ns,
                                    static_cast<int>(i), machine, priced));
  return timelines;
}

}  // namespace

std::vector<Timeline> simulate(const std::vector<SimJob>& jobs, const SimMachine& machine,
                               const SimulateOptions& options) {
  std::vector<Timeline> timelines = run_jobs(jobs, machine, options);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Request request = checked(jobs[i].plan->request, machine.topology());
    timelines[i].lower_bound_ns = lower_bound_ns(request, machine);
    add_bandwidth(timelines[i], request);
  }
  return timelines;
}

Timeline simulate(const Plan& plan, const SimMachine& machine,
                  const std::vector<PricedCall>& priced) {
  Timeline timeline = std::move(simulate({{&plan, 0.0, priced}}, machine).front());
  if (is_kernel_call(plan))
    rescale(timeline, plan.request, kernel_call_ns(plan, machine.topology(), Launch::graph));
  return timeline;
}

}  // namespace sim

double lower_bound_ns(const Request& request, const Topology& topology) {
  return sim::lower_bound_ns(checked(request, topology), sim::SimMachine(topology));
}

}  // namespace plait
