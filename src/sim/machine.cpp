// Builds a SimMachine from a topology.
#include "sim/machine.hpp"

#include <algorithm>
#include <limits>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "topo/parameters.hpp"

namespace plait::sim {
namespace {

Costs costs_of(const Topology& topology) {
  const auto get = [&](const char* key) { return parameter(topology, key); };
  const auto get_or = [&](const char* key, double otherwise) {
    return parameter(topology, key, otherwise);
  };
  Costs costs;
  costs.copy_launch_ns = get("copy_launch_ns");
  costs.copy_launch_spread_ns = get("copy_launch_spread_ns");
  costs.kernel_launch_ns = get("kernel_launch_ns");
  costs.kernel_op_ns = get("kernel_op_ns");
  costs.host_call_ns = get("host_call_ns");
  costs.issue_ns = get("issue_ns");
  costs.signal_ns = get("signal_ns");
  costs.stream_signal_ns = get("stream_signal_ns");
  costs.cpu_signal_ns = get("cpu_signal_ns");
  costs.network_signal_ns = get("net_latency_ns");
  costs.net_post_ns = get("net_post_ns");
  costs.gpu_reduce_gb_per_s = get("gpu_reduce_gb_per_s");
  costs.kernel_copy_gb_per_s = get("kernel_copy_gb_per_s");
  costs.cpu_reduce_gb_per_s = get("cpu_reduce_gb_per_s");
  costs.cpu_copy_gb_per_s = get_or("cpu_copy_gb_per_s", costs.cpu_reduce_gb_per_s / 2.0);
  // The bidirectional figures apply: in a collective every GPU sends and receives at once.
  const double unlimited = std::numeric_limits<double>::infinity();
  costs.sm_push_gb_per_s = get_or("sm_push_both_gb_per_s", get_or("sm_push_gb_per_s", unlimited));
  costs.sm_pull_gb_per_s = get_or("sm_pull_both_gb_per_s", get_or("sm_pull_gb_per_s", unlimited));
  costs.port_flow_loss = get("port_flow_loss");
  costs.engine_copy_ns = get("engine_copy_ns");
  costs.engine_step_ns = get("engine_step_ns");
  costs.engine_switch_ns = get("engine_switch_ns");
  costs.engine_reduce_gb_per_s = get("engine_reduce_gb_per_s");
  costs.copy_engines = std::max(1, static_cast<int>(get("copy_engines")));
  return costs;
}

const Topology& sound(const Topology& topology) {
  const std::vector<std::string> wrong = problems(topology);
  if (wrong.empty()) return topology;
  throw Error(ErrorCode::invalid_argument,
              text("wanted a valid topology to simulate on, found {}", wrong.front()));
}

}  // namespace

SimMachine::SimMachine(const Topology& topology)
    : topology_(sound(topology)), costs_(costs_of(topology)), index_(topology) {
  for (const Resource& resource : topology.resources) add(resource.name, resource.gb_per_s);
  add_links();
  add_memories();
  find_hosts();
}

int SimMachine::add(const std::string& name, double capacity) {
  capacities_.push_back(capacity);
  names_.push_back(name);
  ports_.push_back(0);
  return static_cast<int>(capacities_.size()) - 1;
}

// Link::gb_per_s limits a single transfer; transfers share the link's resources. A link without
// resources is a resource of its own.
void SimMachine::add_links() {
  for (std::size_t i = 0; i < topology_.links.size(); ++i) {
    const Link& link = topology_.links[i];
    std::vector<int> used;  // in listed order (source side first), each once
    for (const int resource : link.resources)
      if (std::find(used.begin(), used.end(), resource) == used.end()) used.push_back(resource);
    if (used.empty())
      used.push_back(add(text("{}:{}>{}", name_of(link.kind), device_label(topology_, link.src),
                              device_label(topology_, link.dst)),
                         link.gb_per_s));
    else if (link.kind == LinkKind::nvlink)
      for (const int resource : used) ports_[static_cast<std::size_t>(resource)] = 1;
    link_resources_.push_back(std::move(used));
  }
}

// A resource "numa0.dram" or "gpu0.memory" of the topology is that device's memory; otherwise a
// resource is added.
void SimMachine::add_memories() {
  for (std::size_t i = 0; i < topology_.devices.size(); ++i) {
    const Device& device = topology_.devices[i];
    const bool is_gpu = device.kind == DeviceKind::gpu;
    const std::string label = device_label(topology_, static_cast<int>(i));
    const std::string name = is_gpu ? text("gpu{}.memory", device.index) : text("{}.dram", label);
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found != names_.end()) {
      memories_.push_back(static_cast<int>(found - names_.begin()));
      continue;
    }
    const double capacity = device.kind == DeviceKind::host
                                ? parameter(topology_, "host_memory_gb_per_s")
                                : parameter(topology_, "gpu_memory_gb_per_s");
    memories_.push_back(
        add(device.node == 0 ? name : text("node{}.{}", device.node, name), capacity));
  }
}

void SimMachine::find_hosts() {
  for (std::size_t i = 0; i < topology_.devices.size(); ++i) {
    const Device& device = topology_.devices[i];
    int host = -1;
    for (std::size_t j = 0; j < topology_.devices.size() && host < 0; ++j) {
      const Device& other = topology_.devices[j];
      if (other.kind == DeviceKind::host && other.node == device.node && other.index == device.numa)
        host = static_cast<int>(j);
    }
    for (std::size_t j = 0; j < topology_.devices.size() && host < 0; ++j)
      if (topology_.devices[j].kind == DeviceKind::host &&
          link_between(static_cast<int>(i), static_cast<int>(j)) >= 0)
        host = static_cast<int>(j);
    hosts_.push_back(host < 0 ? static_cast<int>(i) : host);
  }
}

}  // namespace plait::sim
