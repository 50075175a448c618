// Topology -> flat arrays that the event clock can index: capacities (links' resources, links that
// have none, device memories), what each link draws on, and the fixed costs of ops.
// A capacity is bytes a nanosecond (= GB/s); a copy inside a memory reads and writes it.
#pragma once
#include <string>
#include <vector>

#include "plait/topology.hpp"
#include "topo/link_index.hpp"

namespace plait::sim {

/// A capacity drawn on by a flow: `weight` bytes for each byte the flow delivers.
struct ResourceUse {
  int resource = 0;
  double weight = 1.0;
};

/// Fixed costs and speeds of ops (docs/topology.md lists the keys), defaults where not stated.
struct Costs {
  double copy_launch_ns = 0.0;        ///< of each copy on a copy engine
  double copy_launch_spread_ns = 0;   ///< by how much more on the slowest GPU of a group
  double kernel_launch_ns = 0.0;      ///< of each kernel lane, once
  double kernel_op_ns = 0.0;          ///< of each op inside a kernel
  double host_call_ns = 0.0;          ///< of each op of a CPU worker
  double issue_ns = 0.0;              ///< host time to enqueue one op of a stream; 0 = a graph
  double signal_ns = 0.0;             ///< kernel to kernel
  double stream_signal_ns = 0.0;      ///< by a stream memory operation
  double cpu_signal_ns = 0.0;         ///< by a CPU worker
  double network_signal_ns = 0.0;     ///< added where the flag's owner is in another node
  double net_post_ns = 0.0;           ///< of each message to another node
  double gpu_reduce_gb_per_s = 0.0;   ///< bytes read and written by one reduction kernel
  double kernel_copy_gb_per_s = 0.0;  ///< of a kernel inside its GPU; 0 = as fast as the memory
  double cpu_reduce_gb_per_s = 0.0;   ///< bytes read and written by one CPU worker
  double cpu_copy_gb_per_s = 0.0;     ///< of one CPU worker
  double sm_push_gb_per_s = 0.0;      ///< of a kernel's stores to another device; 0 = the link's
  double sm_pull_gb_per_s = 0.0;      ///< of a kernel's loads from another device
  double port_flow_loss = 0.0;        ///< of a port's speed, for each further peer at once
  int copy_engines = 0;               ///< copies at once per GPU
  // Of engines that fill streams with copies and small kernels.
  double engine_copy_ns = 0.0;    ///< of each copy
  double engine_step_ns = 0.0;    ///< of a kernel that tells peers and waits, or reduces
  double engine_switch_ns = 0.0;  ///< added where a stream goes from copies to kernels or back
  double engine_reduce_gb_per_s = 0.0;  ///< bytes read and written by one of their reductions
};

class SimMachine {
 public:
  explicit SimMachine(const Topology& topology);

  const Topology& topology() const { return topology_; }
  const Costs& costs() const { return costs_; }
  const std::vector<double>& capacities() const { return capacities_; }
  const std::vector<std::string>& names() const { return names_; }
  /// True for a resource where copies to or from several peers at once disturb each other.
  const std::vector<char>& ports() const { return ports_; }
  const std::vector<int>& link_resources(int link) const {
    return link_resources_[static_cast<std::size_t>(link)];
  }
  int memory(int device) const { return memories_[static_cast<std::size_t>(device)]; }
  /// Fastest link between two devices, -1 where there is none; looked up once.
  int link_between(int src_device, int dst_device) const {
    return index_.between(src_device, dst_device);
  }
  /// The host memory that pinned buffers of a device lie in; the device itself where it has none.
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
