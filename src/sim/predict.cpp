// predicted_ns(): prices an engine's kernel by kernel_price.hpp, and simulates all other plans. An
// eager call takes at least the host's time to enqueue it.
#include <algorithm>

#include "sim/kernel_price.hpp"
#include "sim/simulate.hpp"
#include "topo/parameters.hpp"

namespace plait::sim {
namespace {

/// Largest number of driver calls of a rank; consecutive signals and waits of a lane are a single
/// kernel.
double calls_of(const Plan& plan) {
  std::size_t most = 0;
  for (const std::vector<int>& lanes : plan.enqueued) {
    std::vector<std::size_t> next(plan.lanes.size(), 0);
    std::vector<bool> in_step(plan.lanes.size(), false);
    std::size_t calls = 0;
    for (const int index : lanes) {
      const auto lane = static_cast<std::size_t>(index);
      const Op& op = plan.lanes[lane].ops[next[lane]++];
      const bool is_flag =
          (op.kind == OpKind::signal || op.kind == OpKind::wait) && op.flag.owner != op.flag.writer;
      if (!is_flag || !in_step[lane]) ++calls;
      in_step[lane] = is_flag;
    }
    most = std::max(most, calls);
  }
  return static_cast<double>(most);
}

}  // namespace

double predicted_ns(const Plan& plan, const Topology& topology, Launch launch,
                    const std::vector<PricedCall>& priced) {
  if (is_kernel_call(plan)) return kernel_call_ns(plan, topology, launch);
  const double ns = simulate(plan, SimMachine(topology), priced).total_ns;
  if (launch == Launch::graph || plan.enqueued.empty()) return ns;
  return std::max(ns, calls_of(plan) * parameter(topology, "engine_issue_ns"));
}

}  // namespace plait::sim
