// Chooses plans by lanes for described machines: nodes, their network, and what runs on them.
#include <algorithm>

#include "base/text.hpp"
#include "comm/choose/choose.hpp"
#include "comm/choose/multinode_choice.hpp"
#include "comm/choose/what_runs.hpp"
#include "cpu/float_mode.hpp"
#include "gpu/lanes/plan_memory.hpp"

namespace plait {
namespace {

/// Engines access peers' memory, impossible across nodes.
bool are_linked_in_a_node(const Topology& topology, const Request& request) {
  const auto node = [&](int device) {
    return topology.devices[static_cast<std::size_t>(device)].node;
  };
  for (const int from : request.devices)
    for (const int to : request.devices)
      if (from != to && (node(from) != node(to) || find_link(topology, from, to) < 0)) return false;
  return true;
}

bool on_gpus(const Topology& topology, const Request& request) {
  return std::any_of(request.devices.begin(), request.devices.end(), [&](int device) {
    return topology.devices[static_cast<std::size_t>(device)].kind == DeviceKind::gpu;
  });
}

/// Returns the speed of a node's NICs together, in a direction.
double network_gb_per_s(const Topology& topology, int nodes) {
  double gb_per_s = 0.0;
  for (const Link& link : topology.links)
    if (link.kind == LinkKind::net) gb_per_s = std::max(gb_per_s, link.gb_per_s);
  const auto nics = std::count_if(topology.devices.begin(), topology.devices.end(),
                                  [](const Device& one) { return one.kind == DeviceKind::nic; });
  return gb_per_s * static_cast<double>(nics) / nodes;
}

}  // namespace

Nodes described_nodes(const Topology& topology, const Request& request) {
  std::vector<std::string> hosts;  // by rank
  for (const int device : request.devices)
    hosts.push_back(text("{}", topology.devices[static_cast<std::size_t>(device)].node));
  Nodes nodes = nodes_of(hosts, 0, 0);
  nodes.network_gb_per_s = network_gb_per_s(topology, nodes.count());
  return nodes;
}

std::unique_ptr<GpuPlans> described_plans(const Topology& topology, const Request& given,
                                          bool bitwise, SumOrder order,
                                          const DescribedMemory& memory) {
  const Request request = checked(given, topology);
  if (!on_gpus(topology, request) || request.ranks > cuda::kMaxCudaRanks ||
      described_nodes(topology, request).count() > 1)
    return nullptr;
  const cuda::Group group = described_group(topology, request, memory, 0, order);
  if (!group.runs(cuda::kLaneKernels)) return nullptr;
  return std::make_unique<GpuPlans>(topology, request.devices, group, usual_plan_ring(group),
                                    CallOptions{}, bitwise);
}

Plan taken_by_calls(const Topology& topology, const Request& given, bool bitwise, SumOrder order,
                    const DescribedMemory& memory) {
  const PlainFloats same_on_every_rank;
  const Request request = checked(given, topology);
  if (const auto plans = described_plans(topology, request, bitwise, order, memory))
    return plans->chooser().pick(request, {});
  const Nodes nodes = described_nodes(topology, request);
  if (nodes.count() == 1 || !on_gpus(topology, request))
    return taken_by_cpu_ranks(topology, request, bitwise, order);
  return Chooser(topology, {}, bitwise, {}, true, order)
      .pick(request, multinode_options(nodes, request, bitwise, order));
}

Plan taken_by_cpu_ranks(const Topology& topology, const Request& given, bool bitwise,
                        SumOrder order) {
  const PlainFloats same_on_every_rank;
  const Request request = checked(given, topology);
  const bool multinode = described_nodes(topology, request).count() > 1;
  return Chooser(topology, {}, bitwise, {}, multinode, order).pick(request, {});
}

std::string why_library_runs(const Topology& topology, const Request& given, bool bitwise) {
  const Request request = checked(given, topology);
  const Nodes nodes = described_nodes(topology, request);
  if (nodes.count() == 1 || !on_gpus(topology, request)) return {};
  return why_library(nodes, request, bitwise);
}

void take_host_paths(Plan& plan, const Topology& topology) {
  const auto is_gpu = [&](int device) {
    return topology.devices[static_cast<std::size_t>(device)].kind == DeviceKind::gpu;
  };
  for (Path& path : plan.paths)
    if (path.links.size() == 1 && is_gpu(path.devices.front()) && is_gpu(path.devices.back()))
      if (std::optional<Path> way =
              way_through_host(topology, path.devices.front(), path.devices.back()))
        path = std::move(*way);
}

bool may_run_engines(const Topology& topology, const Request& placed) {
  return placed.ranks >= 2 && placed.ranks <= cuda::kMaxCudaRanks && placed.count != 0 &&
         (are_linked_in_a_node(topology, placed) || go_through_host(topology, placed));
}

}  // namespace plait
