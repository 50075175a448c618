// The strategy of the plan writes the steps once more, with the ops of each step. The selector of a
// node chooses an engine as the GPUs of the node would (comm/gpu/gpu_calls.cpp).
#include "comm/choose/calls_in_nodes.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "base/text.hpp"
#include "comm/choose/what_runs.hpp"
#include "plait/error.hpp"
#include "planner/strategy.hpp"

namespace plait {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// Whether blocks lie consecutively, as calls inside a node require.
bool is_dense(const NodeStep& step, const NodePart& part, std::uint64_t element) {
  const std::uint64_t block = step.count * element;
  return part.before.bytes == 0 && (part.src_stride == 0 || part.src_stride == block) &&
         (part.dst_stride == 0 || part.dst_stride == block);
}

bool runs_over_nodes_of_gpus(const Plan& plan) {
  return plan.strategy == "multi_node" && !plan.calls.empty() &&
         std::all_of(plan.calls.begin(), plan.calls.end(),
                     [](const LibraryCall& call) { return call.library == Library::nccl; });
}

/// Returns the steps of a plan, with ops; none if the strategy writes other lanes now, as for a
/// plan of another machine.
std::vector<NodeStep> steps_of(const Plan& plan, const Topology& topology) {
  std::vector<NodeStep> steps;
  for (const Strategy* one : own_strategies()) {
    if (one->info.name != plan.strategy) continue;
    const Plan again = plan_with_steps(*one, topology, plan.request, plan.params, steps);
    if (again.lanes == plan.lanes && again.calls == plan.calls) return steps;
  }
  return {};
}

/// Returns a node's devices and links as numbers and models, alike for nodes that are alike.
/// Resources are numbered by first use.
std::pair<std::vector<double>, std::string> shape_of(const Topology& topology, int node,
                                                     const std::vector<int>& devices) {
  std::vector<double> numbers;
  std::string models;
  std::map<int, int> device_numbers, resource_numbers;
  const auto number_of = [](std::map<int, int>& all, int one) {
    return all.try_emplace(one, static_cast<int>(all.size())).first->second;
  };
  for (const int device : devices) numbers.push_back(number_of(device_numbers, device));
  for (std::size_t i = 0; i < topology.devices.size(); ++i) {
    const Device& device = topology.devices[i];
    if (device.node != node) continue;
    numbers.push_back(number_of(device_numbers, static_cast<int>(i)));
    numbers.push_back(static_cast<double>(device.kind));
    models += device.model + '\n';
  }
  for (const Link& link : topology.links) {
    const auto src = device_numbers.find(link.src), dst = device_numbers.find(link.dst);
    if (src == device_numbers.end() || dst == device_numbers.end()) continue;
    for (const double one : {static_cast<double>(link.kind), 1.0 * src->second, 1.0 * dst->second,
                             1.0 * link.width, link.gb_per_s, link.latency_ns})
      numbers.push_back(one);
    for (const int resource : link.resources) {
      numbers.push_back(number_of(resource_numbers, resource));
      numbers.push_back(topology.resources[at(resource)].gb_per_s);
    }
  }
  return {std::move(numbers), std::move(models)};
}

/// Predicts calls among the ranks of described nodes. Nodes that are alike share a prediction.
class NodePredictor {
 public:
  NodePredictor(const Topology& topology, const Nodes& nodes, const std::vector<int>& devices)
      : topology_(topology) {
    for (const std::vector<int>& members : nodes.members) {
      std::vector<int>& of_node = devices_.emplace_back();
      for (const int rank : members) of_node.push_back(devices[at(rank)]);
      const int node = topology.devices[at(of_node.front())].node;
      shapes_.push_back(shape_of(topology, node, of_node));
      alike_.push_back(std::find(shapes_.begin(), shapes_.end(), shapes_.back()) - shapes_.begin());
    }
  }

  /// request: as call_in_node() returns it. Throws Error if the time is not known.
  double ns(Request request, int node) {
    const auto first = alike_[at(node)];
    const Key key{request.collective, request.count, request.root, request.peer, first};
    const auto [entry, is_new] = known_.try_emplace(key, 0.0);
    if (!is_new) return entry->second;
    request.devices = devices_[static_cast<std::size_t>(first)];
    return entry->second = predicted_call_ns(topology_, checked(request, topology_));
  }

 private:
  using Key = std::tuple<Collective, std::uint64_t, int, int, std::ptrdiff_t>;
  const Topology& topology_;
  std::vector<std::vector<int>> devices_;  // by node: of the ranks
  std::vector<std::pair<std::vector<double>, std::string>> shapes_;
  std::vector<std::ptrdiff_t> alike_;  // by node: the first node that is alike
  std::map<Key, double> known_;
};

}  // namespace

Request call_of(const NodeStep& step, const Request& request, int ranks) {
  Request made = request;
  made.collective = step.collective;
  made.count = step.count;
  made.ranks = ranks;
  made.root = step.root;
  made.peer = step.peer;
  made.devices.clear();
  return made;
}

Request call_in_node(const NodeStep& step, const Nodes& nodes, const Request& request) {
  const int node = group_position_of(nodes.members, step.parts.front().rank).group;
  const auto size = nodes.members[at(node)].size();
  const bool is_pair = step.collective == Collective::copy && step.parts.size() <= 2;
  for (std::size_t i = 0; i < step.parts.size(); ++i) {
    const GroupPosition seat = group_position_of(nodes.members, step.parts[i].rank);
    const bool is_whole = step.parts.size() == size && at(seat.place) == i;
    if (seat.group != node || !(is_whole || is_pair) ||
        !is_dense(step, step.parts[i], bytes_of(request.type)))
      throw Error(ErrorCode::unsupported,
                  text("{} in a node with parts of blocks, or of some of its ranks",
                       name_of(step.collective)));
  }
  Request made = call_of(step, request, static_cast<int>(size));
  if (!is_pair) return made;
  made.root = group_position_of(nodes.members, step.parts.front().rank).place;
  made.peer = group_position_of(nodes.members, step.parts.back().rank).place;
  return made;
}

std::vector<sim::PricedCall> calls_in_nodes(const Plan& plan, const Topology& topology) {
  if (!runs_over_nodes_of_gpus(plan)) return {};
  for (const int device : plan.request.devices)
    if (device < 0 || static_cast<std::size_t>(device) >= topology.devices.size()) return {};
  if (plan.request.devices.size() != static_cast<std::size_t>(plan.request.ranks)) return {};
  try {
    const Nodes nodes = described_nodes(topology, plan.request);
    NodePredictor predictor(topology, nodes, plan.request.devices);
    std::vector<sim::PricedCall> calls;
    for (NodeStep& step : steps_of(plan, topology)) {
      if (step.kind == NodeStep::Action::sum) return {};  // no GPU communicator runs such steps
      if (step.kind != NodeStep::Action::inside) continue;
      const Request call = call_in_node(step, nodes, plan.request);
      const int node = group_position_of(nodes.members, step.parts.front().rank).group;
      calls.push_back({std::move(step.ops), predictor.ns(call, node)});
    }
    return calls;
  } catch (const Error&) {  // a step that streams cannot run, or whose time is not known
    return {};
  }
}

}  // namespace plait
