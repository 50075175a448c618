// Compiles ops to steps with costs. Capacities: a copy over a hop uses the hop's link; a copy
// inside a memory reads and writes that memory; a reduction reads every source, writes the result,
// and uses the links to sources or results on other devices.
#include "sim/script.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plan/library_call.hpp"
#include "plan/library_price.hpp"

namespace plait::sim {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

class Compiler {
 public:
  /// has_calls: false = ops of the plan that join no calls.
  Compiler(Script& script, const Plan& plan, int job, const SimMachine& machine,
           bool has_calls = true)
      : script_(script), plan_(plan), job_(job), machine_(machine) {
    devices_ = checked(plan.request, machine.topology()).devices;
    devices_.insert(devices_.end(), plan.relay_devices.begin(), plan.relay_devices.end());
    for (const int device : devices_)
      if (device < 0 || device >= device_count())
        refuse(text("device {} is not in topology {}", device, machine.topology().name));
    flags_.resize(at(plan.request.ranks) * at(plan.request.ranks));
    last_use_of_.assign(machine.capacities().size(), -1);
    if (!has_calls) return;
    check_calls();
    std::size_t ops = script.steps.size();
    for (const Lane& lane : plan.lanes) ops += lane.ops.size();
    script.steps.reserve(ops);
    first_call_ = static_cast<int>(script.members.size());
    for (const LibraryCall& call : plan.calls)
      script.members.push_back(static_cast<int>(call.ranks.size()));
    prices_ = prices_of(plan, machine.topology(), devices_);
  }

  void lane(int index) { lane(index, 0, static_cast<int>(plan_.lanes[at(index)].ops.size())); }

  /// Compiles `count` ops of a lane.
  void lane(int index, int first_op, int count) {
    const Lane& lane = plan_.lanes[at(index)];
    if (lane.rank < 0 || lane.rank >= plan_.request.ranks)
      refuse(text("lane {} belongs to rank {}", lane.name, lane.rank));
    const int first = static_cast<int>(script_.steps.size());
    lane_ = &lane;
    last_ = StreamWork::none;
    for (int i = first_op; i < first_op + count; ++i) {
      op_index_ = at(i);
      step(lane.ops[at(i)], i == first_op ? nullptr : &lane.ops[at(i - 1)]);
    }
    script_.lanes.push_back({job_, index, first, count});
  }

 private:
  const Topology& topology() const { return machine_.topology(); }
  int device_count() const { return static_cast<int>(topology().devices.size()); }

  [[noreturn]] void refuse(const std::string& what) const {
    const std::string where =
        lane_ == nullptr ? std::string()
                         : text(" (rank {} lane {} op {})", lane_->rank, lane_->name, op_index_);
    throw Error(ErrorCode::invalid_argument,
                text("cannot simulate plan {}{}: {}; verify() lists all that is wrong with a plan",
                     label(plan_), where, what));
  }

  /// Refuses library calls whose ranks, root or joins do not fit.
  void check_calls() const {
    if (plan_.calls.empty()) return;
    if (const std::vector<std::string> faults = call_faults(plan_); !faults.empty())
      refuse(faults.front());
    if (const std::vector<MemberFault> faults = member_faults(plan_); !faults.empty())
      refuse(faults.front().fault);
  }

  /// Returns the dense number of a flag; numbers follow first use.
  int flag(const Flag& wanted) {
    const int ranks = plan_.request.ranks;
    for (const int rank : {wanted.owner, wanted.writer})
      if (rank < 0 || rank >= ranks) refuse(text("a flag belongs to rank {}", rank));
    if (wanted.index < 0 || wanted.index >= kMostFlags)
      refuse(
          text("wanted at most {} flags of two ranks, found index {}", kMostFlags, wanted.index));
    std::vector<int>& flags = flags_[at(wanted.owner * ranks + wanted.writer)];
    if (flags.size() <= at(wanted.index)) flags.resize(at(wanted.index) + 1, -1);
    int& number = flags[at(wanted.index)];
    if (number < 0) number = script_.flag_count++;
    return number;
  }

  // The device with the memory of a region.
  int place(const Region& region) const {
    if (region.rank < 0 || region.rank >= static_cast<int>(devices_.size()))
      refuse(text("region {} lies at no place of the plan", print(region)));
    const int device = devices_[at(region.rank)];
    return region.space == Space::ring ? machine_.host_of(device) : device;
  }

  void step(const Op& op, const Op* before) {
    ScriptStep step;
    step.kind = op.kind;
    switch (op.kind) {
      case OpKind::copy: copy(step, op, before); break;
      case OpKind::reduce: reduce(step, op); break;
      case OpKind::signal:
        signal(step, op, before);
        step.flag = flag(op.flag);
        step.value = op.value;
        break;
      case OpKind::wait:
        step.flag = flag(op.flag);
        step.value = op.value;
        if (is_stream() && begins_step(op, before)) step.fixed_ns = machine_.costs().engine_step_ns;
        break;
      case OpKind::join: join(step, op); break;
    }
    if (is_stream()) step.fixed_ns += switch_ns(op, before);
    script_.steps.push_back(step);
  }

  // Half of a stream's signal is in the step, half is lag until the flag rises. A kernel's threads
  // raise the flags of all peers at once, after their stores to a peer's memory were acknowledged
  // (a release waits for the acknowledgement); messages to other nodes are posted in turn. In the
  // one_shot kernel every LL packet carries a flag.
  void signal(ScriptStep& step, const Op& op, const Op* before) const {
    const Costs& costs = machine_.costs();
    const Flag& raised = op.flag;
    if (raised.owner < 0 || raised.owner >= plan_.request.ranks)
      refuse(text("a signal goes to rank {}", raised.owner));
    const int here = devices_[at(lane_->rank)], there = devices_[at(raised.owner)];
    const bool follows_data = before != nullptr && before->kind == OpKind::copy;
    if (node_of(here) != node_of(there) && !follows_data) step.lag_ns = costs.network_signal_ns;
    if (is_stream()) {
      if (begins_step(op, before)) step.fixed_ns = costs.engine_step_ns;
    } else if (lane_->kind == LaneKind::copy_engine) {
      step.fixed_ns = costs.stream_signal_ns / 2.0;
      step.lag_ns += costs.stream_signal_ns / 2.0;
    } else if (lane_->kind == LaneKind::cpu) {
      step.fixed_ns = costs.cpu_signal_ns;
    } else if (!has_line_flags()) {
      const bool goes_on = before != nullptr && before->kind == OpKind::signal;
      if (goes_on)
        step.fixed_ns = node_of(here) == node_of(there) ? 0.0 : costs.kernel_op_ns;
      else
        step.fixed_ns = costs.signal_ns + return_latency_ns(before);
    }
  }

  // True for lanes of an engine that fills streams: the plan has the order of enqueued ops.
  bool is_stream() const { return !plan_.enqueued.empty() && lane_->kind != LaneKind::cpu; }
  // A rank's streams synchronise by events; ranks synchronise by flags that small kernels handle.
  bool is_event(const Op& op) const {
    return op.flag.owner == lane_->rank && op.flag.writer == lane_->rank;
  }
  bool begins_step(const Op& op, const Op* before) const {
    const bool goes_on = before != nullptr && !is_event(*before) &&
                         (before->kind == OpKind::signal || before->kind == OpKind::wait);
    return !is_event(op) && !goes_on;
  }
  double switch_ns(const Op& op, const Op* before) {
    const bool is_copy = op.kind == OpKind::copy;
    if (!is_copy && op.kind != OpKind::reduce && !begins_step(op, before)) return 0.0;
    const StreamWork work = is_copy ? StreamWork::copy : StreamWork::kernel,
                     last = std::exchange(last_, work);
    return last == StreamWork::none || last == work ? 0.0 : machine_.costs().engine_switch_ns;
  }
  int node_of(int device) const { return topology().devices[at(device)].node; }

  // Latency of the acknowledgement of a store to a peer in the same node; 0 for other ops.
  double return_latency_ns(const Op* stored) const {
    if (stored == nullptr || (stored->kind != OpKind::copy && stored->kind != OpKind::reduce))
      return 0.0;
    const int here = devices_[at(lane_->rank)], there = place(stored->dst);
    if (here == there || node_of(here) != node_of(there)) return 0.0;
    const int link = machine_.link_between(there, here);
    return link < 0 ? 0.0 : topology().links[at(link)].latency_ns;
  }

  // Messages that need no separate signal: LL packets, and messages of an MPI library.
  bool has_line_flags() const { return plan_.kernel == "one_shot" || is_host_loop(); }
  // An MPI library: a host thread posts each message, launches each reduction and waits for it.
  bool is_host_loop() const { return plan_.kernel == "host_loop"; }

  // Bytes on the link for each byte of data. Without a parameter, one_shot's packets are half
  // flags.
  double line_factor() const {
    const auto stated = plan_.params.find("line_bytes");
    if (stated != plan_.params.end()) return static_cast<double>(stated->second) / 16.0;
    return plan_.kernel == "one_shot" ? 2.0 : 1.0;
  }

  double op_ns() const {
    const Costs& costs = machine_.costs();
    if (is_stream()) return costs.engine_copy_ns;
    return lane_->kind == LaneKind::copy_engine ? copy_launch_ns()
           : lane_->kind == LaneKind::kernel    ? costs.kernel_op_ns
                                                : costs.host_call_ns;
  }

  // GPUs start copies at different speeds: GPUs that should copy in step drift apart until copies
  // meet at a port. The last rank is assumed to be the slowest.
  double copy_launch_ns() const {
    const Costs& costs = machine_.costs();
    const bool is_slowest = plan_.request.ranks > 1 && lane_->rank == plan_.request.ranks - 1;
    return costs.copy_launch_ns + (is_slowest ? costs.copy_launch_spread_ns : 0.0);
  }

  void copy(ScriptStep& step, const Op& op, const Op* before) {
    if (op.srcs.size() != 1) refuse(text("a copy of {} sources", op.srcs.size()));
    step.fixed_ns = op_ns();
    step.bytes = static_cast<double>(op.dst.bytes);
    if (op.dst.space == Space::inbox) step.bytes *= line_factor();
    step.first_use = static_cast<int>(script_.uses.size());
    const bool by_engine = is_stream() || lane_->kind == LaneKind::copy_engine;
    if (by_engine) step.engine = devices_[at(lane_->rank)];
    const int device = place(op.dst), from = place(op.srcs[0]);
    if (op.path == kLocalPath) {
      script_.uses.push_back({machine_.memory(device), 2.0});
      step.use_count = 1;
      step.limit = local_gb_per_s(device);
      return;
    }
    const int link = hop_link(op);
    const Link& hop = topology().links[at(link)];
    const double weight = link_weight(link);
    for (const int resource : machine_.link_resources(link))
      script_.uses.push_back({resource, weight});
    // A stream's copy reads a ring of another NUMA node over the bus. Plans by lanes keep the
    // prices that were calibrated.
    const int bus = is_stream() && op.srcs[0].space == Space::ring && from != hop.src
                        ? machine_.link_between(from, hop.src)
                        : -1;
    if (bus >= 0) {
      for (const int resource : machine_.link_resources(bus))
        script_.uses.push_back({resource, 1.0});
      step.fixed_ns += topology().links[at(bus)].latency_ns;
    }
    step.use_count = static_cast<int>(script_.uses.size()) - step.first_use;
    step.limit = hop.gb_per_s / weight;
    if (hop.kind == LinkKind::net) step.fixed_ns += machine_.costs().net_post_ns;
    if (by_engine) step.link = link;
    // A kernel's loads and stores overlap: consecutive copies pay the latency once.
    const bool goes_on = !by_engine && before != nullptr && before->kind == OpKind::copy &&
                         before->path != kLocalPath;
    if (!goes_on) step.fixed_ns += hop.latency_ns * (is_pull(hop) ? 2.0 : 1.0);
  }

  // Speed of a copy inside a memory.
  double local_gb_per_s(int device) const {
    const Costs& costs = machine_.costs();
    if (lane_->kind == LaneKind::cpu) return costs.cpu_copy_gb_per_s;
    const double memory = machine_.capacities()[at(machine_.memory(device))] / 2.0;
    const bool is_slower = lane_->kind == LaneKind::kernel && costs.kernel_copy_gb_per_s > 0.0;
    return is_slower ? std::min(memory, costs.kernel_copy_gb_per_s) : memory;
  }

  // True for a kernel's loads from a peer: the request and the data each take the latency.
  bool is_pull(const Link& hop) const {
    return lane_->kind == LaneKind::kernel && !is_host_loop() && !is_stream() &&
           hop.dst == devices_[at(lane_->rank)];
  }

  // A kernel's loads and stores fill a GPU's links less than copy engines do, as if each byte were
  // larger by this factor: the speed that copy engines reach, of the link or its slowest port, over
  // the kernel's speed.
  double link_weight(int link) const {
    const Link& hop = topology().links[at(link)];
    const auto kind = [&](int device) { return topology().devices[at(device)].kind; };
    if (is_stream() || lane_->kind != LaneKind::kernel || kind(hop.src) != DeviceKind::gpu ||
        kind(hop.dst) != DeviceKind::gpu)
      return 1.0;
    const bool is_load = hop.dst == devices_[at(lane_->rank)];
    const double reached =
        is_load ? machine_.costs().sm_pull_gb_per_s : machine_.costs().sm_push_gb_per_s;
    double by_engine = hop.gb_per_s;
    for (const int resource : machine_.link_resources(link))
      by_engine = std::min(by_engine, machine_.capacities()[at(resource)]);
    return std::max(1.0, by_engine / reached);
  }

  int hop_link(const Op& op) const {
    if (op.path < 0 || op.path >= static_cast<int>(plan_.paths.size()))
      refuse(text("path {} is not among the plan's {}", op.path, plan_.paths.size()));
    const Path& path = plan_.paths[at(op.path)];
    if (op.hop < 0 || op.hop >= static_cast<int>(path.links.size()) ||
        path.devices.size() != path.links.size() + 1)
      refuse(text("path {} has no hop {}", path.name, op.hop));
    const int link = path.links[at(op.hop)];
    if (link < 0 || link >= static_cast<int>(topology().links.size()) ||
        topology().links[at(link)].src != path.devices[at(op.hop)] ||
        topology().links[at(link)].dst != path.devices[at(op.hop) + 1])
      refuse(text("hop {} of path {} is no link of topology {}; plan again for this machine",
                  op.hop, path.name, topology().name));
    return link;
  }

  // Adds `weight` to a step's use of a resource. The step's uses are the last in Script::uses, from
  // first_use on.
  void draw(Draw& step, int resource, double weight) {
    int& last = last_use_of_[at(resource)];
    if (last >= step.first_use) {
      script_.uses[at(last)].weight += weight;
      return;
    }
    last = static_cast<int>(script_.uses.size());
    script_.uses.push_back({resource, weight});
    ++step.use_count;
  }

  void reduce(ScriptStep& step, const Op& op) {
    const bool is_cpu = lane_->kind == LaneKind::cpu;
    const Costs& costs = machine_.costs();
    step.fixed_ns = is_stream()                            ? costs.engine_step_ns
                    : lane_->kind == LaneKind::copy_engine ? costs.kernel_launch_ns
                                                           : op_ns();
    step.bytes = static_cast<double>(op.dst.bytes);
    step.first_use = static_cast<int>(script_.uses.size());
    if (is_host_loop() && !is_cpu) step.fixed_ns = costs.kernel_launch_ns + costs.host_call_ns;
    const int own = devices_[at(lane_->rank)];
    const int worker =
        is_cpu && topology().devices[at(own)].kind == DeviceKind::gpu ? machine_.host_of(own) : own;
    const double traffic = static_cast<double>(op.srcs.size()) + 1.0;
    step.limit = (is_cpu        ? costs.cpu_reduce_gb_per_s
                  : is_stream() ? costs.engine_reduce_gb_per_s
                                : costs.gpu_reduce_gb_per_s) /
                 traffic;
    double latency_ns = 0.0;
    for (const Region& src : op.srcs) touch(step, place(src), worker, latency_ns, false);
    touch(step, place(op.dst), worker, latency_ns, true);
    step.fixed_ns += latency_ns;
  }

  // A member's part of a library call: a single flow over all links of the member's sends. The call
  // begins when all members have joined and ends when all members' flows have ended (simulate.cpp).
  void join(ScriptStep& step, const Op& op) {
    if (op.call < 0 || op.call >= static_cast<int>(prices_.size()))
      refuse(text("call {} is not among the plan's {}", op.call, prices_.size()));
    const LibraryPrice& price = *prices_[at(op.call)];
    const LibraryCall& call = plan_.calls[at(op.call)];
    step.call = first_call_ + op.call;
    step.fixed_ns = price.fixed_ns;
    const int me = member_of(call, lane_->rank);
    const auto [drawn, is_new] = joins_.try_emplace({&price, me});
    if (is_new) drawn->second = drawn_by(price, call, me);
    static_cast<Draw&>(step) = drawn->second;
  }

  Draw drawn_by(const LibraryPrice& price, const LibraryCall& call, int me) {
    Draw step;
    step.first_use = static_cast<int>(script_.uses.size());
    const auto device = [&](int member) { return devices_[at(call.ranks[at(member)])]; };
    const auto mine = std::ranges::equal_range(price.sendings, me, {}, &Sending::from);
    for (const Sending& one : mine) step.bytes = std::max(step.bytes, one.bytes);
    step.limit = std::numeric_limits<double>::infinity();
    for (const Sending& one : mine) {
      const double weight = one.bytes / step.bytes;
      for (const int link : links_of(device(one.from), device(one.to))) {
        step.limit = std::min(step.limit, topology().links[at(link)].gb_per_s / weight);
        for (const int resource : machine_.link_resources(link)) draw(step, resource, weight);
      }
    }
    return step;
  }

  std::vector<int> links_of(int src, int dst) const {
    const int link = machine_.link_between(src, dst);
    return link >= 0 ? std::vector{link} : links_between(topology(), src, dst);
  }

  // Adds an operand of a reduction: its memory, and the link to an operand on another device.
  void touch(ScriptStep& step, int device, int worker, double& latency_ns, bool is_written) {
    draw(step, machine_.memory(device), 1.0);
    if (device == worker) return;
    const int link =
        is_written ? machine_.link_between(worker, device) : machine_.link_between(device, worker);
    if (link < 0) return;
    const Link& hop = topology().links[at(link)];
    const double weight = link_weight(link);
    for (const int resource : machine_.link_resources(link))
      if (resource != machine_.memory(device)) draw(step, resource, weight);
    step.limit = std::min(step.limit, hop.gb_per_s / weight);
    latency_ns = std::max(latency_ns, hop.latency_ns * (is_pull(hop) ? 2.0 : 1.0));
  }

  Script& script_;
  const Plan& plan_;
  int job_;
  const SimMachine& machine_;
  std::vector<int> devices_;      // by place
  std::vector<int> last_use_of_;  // by resource: last index into Script::uses
  static constexpr int kMostFlags = 1 << 20;
  std::vector<std::vector<int>> flags_;  // numbers by owner and writer, then index; -1 = unused
  LibraryPrices prices_;                 // by call
  std::map<std::pair<const LibraryPrice*, int>, Draw>
      joins_;  // by price and member: shared by equal calls
  int first_call_ = 0;
  const Lane* lane_ = nullptr;
  std::size_t op_index_ = 0;
  enum class StreamWork : std::uint8_t {
    none,
    copy,
    kernel
  } last_ = StreamWork::none;  ///< of a stream
};

// Sets ready_ns: a host thread enqueues an op of each lane in turn; a kernel is one call.
void enqueue(Script& script, std::size_t first_lane, const Plan& plan, double start_ns,
             bool one_thread, const Costs& costs) {
  std::vector<double> now(static_cast<std::size_t>(plan.request.ranks), start_ns);
  std::size_t longest = 0;
  for (std::size_t i = first_lane; i < script.lanes.size(); ++i)
    longest = std::max(longest, at(script.lanes[i].step_count));
  if (costs.issue_ns <= 0.0) longest = std::min<std::size_t>(longest, 1);
  for (std::size_t turn = 0; turn < longest; ++turn)
    for (std::size_t i = first_lane; i < script.lanes.size(); ++i) {
      const LaneScript& lane = script.lanes[i];
      if (turn >= at(lane.step_count)) continue;
      const Lane& of_plan = plan.lanes[at(lane.lane)];
      if (turn > 0 && of_plan.kind != LaneKind::copy_engine) continue;
      double& clock = now[one_thread ? 0 : at(of_plan.rank)];
      if (of_plan.kind != LaneKind::cpu) clock += costs.issue_ns;
      ScriptStep& step = script.steps[at(lane.first_step) + turn];
      step.ready_ns = clock;
      if (turn == 0 && of_plan.kind == LaneKind::kernel) step.ready_ns += costs.kernel_launch_ns;
    }
}

}  // namespace

void append(Script& script, const Plan& plan, int job, double start_ns, bool one_thread,
            const SimMachine& machine) {
  const std::size_t first_lane = script.lanes.size();
  Compiler compiler(script, plan, job, machine);
  for (std::size_t i = 0; i < plan.lanes.size(); ++i) compiler.lane(static_cast<int>(i));
  if (plan.enqueued.empty())
    enqueue(script, first_lane, plan, start_ns, one_thread, machine.costs());
}

int append_priced(Script& script, const PricedCall& call, const Timeline& alone,
                  std::size_t first_lane, double start_ns) {
  const int index = static_cast<int>(script.members.size());
  script.members.push_back(static_cast<int>(call.ops.size()));
  auto next = static_cast<int>(script.played_spans.size());
  for (const LaneOps& ops : call.ops) {
    const int begin = script.lanes[first_lane + at(ops.lane)].first_step + ops.first;
    script.played[begin] = {ops.count - 1, next};
    next += ops.count - 1;
    ScriptStep& step = script.steps[at(begin)];
    step.call = index;
    step.fixed_ns = call.ns;
    step.ready_ns = start_ns;  // the price has the launch
  }
  script.played_spans.insert(script.played_spans.end(), alone.spans.begin(), alone.spans.end());
  return index;
}

void append_alone(Script& script, const Plan& plan, const PricedCall& call,
                  const SimMachine& machine) {
  Compiler compiler(script, plan, 0, machine, false);
  for (const LaneOps& ops : call.ops) compiler.lane(ops.lane, ops.first + 1, ops.count - 1);
}

}  // namespace plait::sim
