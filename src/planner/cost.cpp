// Estimates a plan's time (see cost.hpp) as the larger of two: the end of the last op if ops share
// nothing and run as soon as lane and waits allow, and the time of the busiest link, resource or
// processor for the bytes.
#include "planner/cost.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/library_price.hpp"
#include "topo/link_loads.hpp"
#include "topo/parameters.hpp"

namespace plait {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

class Estimate {
 public:
  Estimate(const Plan& plan, const Topology& topology)
      : plan_(plan), topology_(topology), loads_(topology) {
    on_cpu_ = !plan.request.devices.empty() &&
              topology.devices[index(plan.request.devices[0])].kind == DeviceKind::cpu;
    const double memory = parameter(topology, "gpu_memory_gb_per_s");
    local_gb_per_s_ = on_cpu_ ? parameter(topology, "cpu_copy_gb_per_s", memory / 2) : memory / 2;
    reduce_gb_per_s_ = parameter(topology, "gpu_reduce_gb_per_s");
    cpu_reduce_gb_per_s_ = parameter(topology, "cpu_reduce_gb_per_s");
    signal_ns_ = parameter(topology, "signal_ns");
    stream_signal_ns_ = on_cpu_ ? signal_ns_ : parameter(topology, "stream_signal_ns");
    copy_ns_ = parameter(topology, "copy_launch_ns");
    kernel_ns_ = on_cpu_ ? copy_ns_ : parameter(topology, "kernel_launch_ns");
    rank_ns_.assign(index(plan.request.ranks), 0.0);
    for (const std::uint64_t bytes : plan.scratch_bytes) is_cached_ &= bytes <= kCacheBytes;
  }

  double total_ns() {
    const double chain_ns = longest_chain_ns();
    double busiest_ns = loads_.most_ns();
    if (on_cpu_)  // a single thread runs all lanes of a rank
      for (const double ns : rank_ns_) busiest_ns = std::max(busiest_ns, ns);
    // Filling and draining the pipeline adds about 5 % of the smaller time.
    return std::max(chain_ns, busiest_ns) + 0.05 * std::min(chain_ns, busiest_ns) +
           (plan_.kernel.empty() ? 0.0 : kernel_ns_);
  }

 private:
  /// Times of a flag's raises: `count` entries of times_ from `first` on.
  struct FlagTimes {
    std::size_t first = 0;
    std::uint32_t count = 0;
  };
  static constexpr std::uint64_t kCacheBytes = 2 << 20;  // second-level cache of a core

  // Slots that stay in the cache cost a third of memory accesses (measured on 2 cores, 2026-11).
  double cached(const Region& region) const {
    const bool is_slot = region.space == Space::scratch || region.space == Space::inbox;
    return on_cpu_ && is_cached_ && is_slot ? 0.33 : 1.0;
  }

  double copy_ns(const Lane& lane, const Op& op) {
    const double bytes = static_cast<double>(op.dst.bytes);
    double launch_ns = plan_.kernel.empty() && lane.kind == LaneKind::copy_engine ? copy_ns_ : 0.0;
    double speed = local_gb_per_s_;
    if (op.path >= 0) {
      const Path& path = plan_.paths[index(op.path)];
      const int link_index = path.links[index(op.hop)];
      const Link& link = topology_.links[index(link_index)];
      speed = link.gb_per_s;
      launch_ns += link.latency_ns;
      loads_.add(link_index, bytes);
    }
    const double factor = 0.5 * cached(op.dst) + 0.5 * cached(op.srcs[0]);
    return launch_ns + factor * bytes / speed;
  }

  double reduce_ns(const Lane& lane, const Op& op) const {
    double bytes = static_cast<double>(op.dst.bytes) * cached(op.dst);
    for (const Region& src : op.srcs) bytes += static_cast<double>(src.bytes) * cached(src);
    const double launch_ns = plan_.kernel.empty() ? kernel_ns_ : 0.0;
    return lane.kind == LaneKind::cpu ? bytes / cpu_reduce_gb_per_s_
                                      : launch_ns + bytes / reduce_gb_per_s_;
  }

  double op_ns(const Lane& lane, const Op& op) {
    switch (op.kind) {
      case OpKind::copy: return copy_ns(lane, op);
      case OpKind::reduce: return reduce_ns(lane, op);
      case OpKind::signal:
        return plan_.kernel.empty() && lane.kind == LaneKind::copy_engine ? stream_signal_ns_ / 2
                                                                          : signal_ns_;
      case OpKind::wait:
      case OpKind::join: return 0.0;
    }
    return 0.0;
  }

  // Runs a lane as far as its waits allow; returns true if an op ran.
  bool advance(std::size_t lane_index) {
    const Lane& lane = plan_.lanes[lane_index];
    std::size_t& next = next_[lane_index];
    double& now = now_[lane_index];
    const std::size_t before = next;
    for (; next < lane.ops.size(); ++next) {
      const Op& op = lane.ops[next];
      if (op.kind == OpKind::wait) {
        const FlagTimes& flag = raised(op.flag);
        if (flag.count < op.value) break;
        now = std::max(now, times_[flag.first + op.value - 1]);
        continue;
      }
      if (op.kind == OpKind::join && !join(lane_index, op)) break;
      const double ns = op_ns(lane, op);
      now += ns;
      if (op.kind != OpKind::signal || !on_cpu_) rank_ns_[index(lane.rank)] += ns;
      if (op.kind == OpKind::signal) {
        FlagTimes& flag = raised(op.flag);
        times_[flag.first + flag.count++] = now;
      }
    }
    return next != before;
  }

  // A library call begins when the last member has joined; returns false until then.
  bool join(std::size_t lane_index, const Op& op) {
    CallCost& call = calls_[index(op.call)];
    if (!has_joined_[lane_index]) {
      has_joined_[lane_index] = true;
      ++call.joined;
      call.begin_ns = std::max(call.begin_ns, now_[lane_index]);
    }
    if (call.joined < plan_.calls[index(op.call)].ranks.size()) return false;
    has_joined_[lane_index] = false;
    now_[lane_index] = call.begin_ns + prices_[index(op.call)]->alone_ns;
    return true;
  }

  FlagTimes& raised(const Flag& flag) {
    const std::size_t pair = index(flag.owner) * rank_ns_.size() + index(flag.writer);
    return raised_[pair * flags_per_pair_ + index(flag.index)];
  }

  // Gives each flag as many consecutive entries of times_ as the flag has signals.
  void lay_out_flags() {
    flags_per_pair_ = index(flags_per_pair(plan_));
    raised_.resize(rank_ns_.size() * rank_ns_.size() * flags_per_pair_);
    std::size_t signals = 0;
    for (const Lane& lane : plan_.lanes)
      for (const Op& op : lane.ops)
        if (op.kind == OpKind::signal) ++raised(op.flag).count;
    for (FlagTimes& flag : raised_) {
      flag.first = std::exchange(signals, signals + flag.count);
      flag.count = 0;
    }
    times_.resize(signals);
  }

  double longest_chain_ns() {
    lay_out_flags();
    calls_.resize(plan_.calls.size());
    prices_ = prices_of(plan_, topology_, plan_.request.devices);
    next_.assign(plan_.lanes.size(), 0);
    has_joined_.assign(plan_.lanes.size(), false);
    now_.assign(plan_.lanes.size(), 0.0);
    for (bool is_moving = true; is_moving;) {
      is_moving = false;
      for (std::size_t lane = 0; lane < plan_.lanes.size(); ++lane) is_moving |= advance(lane);
    }
    return now_.empty() ? 0.0 : *std::max_element(now_.begin(), now_.end());
  }

  const Plan& plan_;
  const Topology& topology_;
  bool on_cpu_ = false;
  bool is_cached_ = true;
  double local_gb_per_s_ = 1.0, reduce_gb_per_s_ = 1.0, cpu_reduce_gb_per_s_ = 1.0;
  double signal_ns_ = 0.0, stream_signal_ns_ = 0.0, copy_ns_ = 0.0, kernel_ns_ = 0.0;
  LinkLoads loads_;
  std::vector<double> rank_ns_, now_;
  std::vector<std::size_t> next_;
  std::size_t flags_per_pair_ = 0;  // flags of a pair of ranks
  std::vector<FlagTimes> raised_;   // by flag
  std::vector<double> times_;
  struct CallCost {
    std::size_t joined = 0;  // members so far that have joined
    double begin_ns = 0.0;   // time of the last join
  };
  std::vector<CallCost> calls_;
  std::vector<bool> has_joined_;  // by lane: has joined the awaited call
  LibraryPrices prices_;          // by call
};

}  // namespace

double estimate_ns(const Plan& plan, const Topology& topology) {
  return Estimate(plan, topology).total_ns();
}

}  // namespace plait
