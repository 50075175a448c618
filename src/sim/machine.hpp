// SimMachine: a topology as flat arrays for the simulator: capacities (resources of links, links
// without resources, device memories), the capacities that each link uses, and the fixed costs of
// ops. Capacities are in bytes per ns (= GB/s); a copy inside a memory uses it twice.
#pragma once
#include <string>
#include <vector>

#include "plait/topology.hpp"
#include "topo/link_index.hpp"

namespace plait::sim {

/// A capacity that a flow uses: `weight` bytes for each byte that the flow delivers.
struct ResourceUse {
  int resource = 0;
  double weight = 1.0;
};

/// Fixed costs and speeds of ops, from the topology's parameters (docs/topology.md) or defaults.
struct Costs {
  double copy_launch_ns = 0.0;        ///< each copy on a copy engine
  double copy_launch_spread_ns = 0;   ///< additional time on the slowest GPU of a group
  double kernel_launch_ns = 0.0;      ///< each kernel lane, once
  double kernel_op_ns = 0.0;          ///< each op inside a kernel
  double host_call_ns = 0.0;          ///< each op of a CPU worker
  double issue_ns = 0.0;              ///< host time to enqueue an op of a stream; 0 = a graph
  double signal_ns = 0.0;             ///< signal from kernel to kernel
  double stream_signal_ns = 0.0;      ///< signal by a stream memory operation
  double cpu_signal_ns = 0.0;         ///< signal by a CPU worker
  double network_signal_ns = 0.0;     ///< added if the flag's owner is in another node
  double net_post_ns = 0.0;           ///< each message to another node
  double gpu_reduce_gb_per_s = 0.0;   ///< bytes read and written by a reduction kernel
  double kernel_copy_gb_per_s = 0.0;  ///< copy by a kernel inside a GPU; 0 = memory speed
  double cpu_reduce_gb_per_s = 0.0;   ///< bytes read and written by a CPU worker
  double cpu_copy_gb_per_s = 0.0;     ///< copy by a CPU worker
  double sm_push_gb_per_s = 0.0;      ///< a kernel's stores to another device; default unlimited
  double sm_pull_gb_per_s = 0.0;      ///< a kernel's loads from another device; default unlimited
  double port_flow_loss = 0.0;        ///< share of a port's speed, for each further peer at once
  int copy_engines = 0;               ///< copies at once per GPU
  // Engines that fill streams with copies and small kernels:
  double engine_copy_ns = 0.0;          ///< each copy
  double engine_step_ns = 0.0;          ///< a kernel that signals peers and waits, or reduces
  double engine_switch_ns = 0.0;        ///< added if a stream switches between copies and kernels
  double engine_reduce_gb_per_s = 0.0;  ///< bytes read and written by a reduction
};

class SimMachine {
 public:
  explicit SimMachine(const Topology& topology);

  const Topology& topology() const { return topology_; }
  const Costs& costs() const { return costs_; }
  const std::vector<double>& capacities() const { return capacities_; }
  const std::vector<std::string>& names() const { return names_; }
  /// By resource: true if copies to or from several peers at once slow each other down.
  const std::vector<char>& ports() const { return ports_; }
  const std::vector<int>& link_resources(int link) const {
    return link_resources_[static_cast<std::size_t>(link)];
  }
  /// The resource that is the memory of a device.
  int memory(int device) const { return memories_[static_cast<std::size_t>(device)]; }
  /// The fastest link between two devices; -1 = none.
  int link_between(int src_device, int dst_device) const {
    return index_.between(src_device, dst_device);
  }
  /// The device of host memory that holds a device's pinned buffers; otherwise the device itself.
  int host_of(int device) const { return hosts_[static_cast<std::size_t>(device)]; }

 private:
  int add(const std::string& name, double capacity);
  void add_links();
  void add_memories();
  void find_hosts();

  const Topology& topology_;
  Costs costs_;
  LinkIndex index_;
  std::vector<double> capacities_;
  std::vector<std::string> names_;
  std::vector<char> ports_;
  std::vector<std::vector<int>> link_resources_;
  std::vector<int> memories_;
  std::vector<int> hosts_;
};

}  // namespace plait::sim
