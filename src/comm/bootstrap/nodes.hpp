// Nodes of a communicator: the ranks that share a machine, and each rank's place among them.
#pragma once
#include <string>
#include <vector>

#include "driver/sysfs/sysfs.hpp"

namespace plait {

struct Nodes {
  std::vector<std::vector<int>> members;  ///< ranks of each node, ascending, by lowest rank
  int mine = 0;                           ///< this rank's node
  int place = 0;                          ///< this rank's place in the node
  /// Speed of the slowest node's RDMA NICs together, in a direction; 0 = a node has none, and NCCL
  /// sends over sockets.
  double network_gb_per_s = 0.0;

  int count() const { return static_cast<int>(members.size()); }
  int ranks() const;
  /// Ranks of this rank's node, by place.
  const std::vector<int>& peers() const { return members[static_cast<std::size_t>(mine)]; }
  int size() const { return static_cast<int>(peers().size()); }
  /// Returns for example "node 1 has 1 ranks, node 0 has 2"; empty if all nodes have equally many.
  std::string why_unlike() const;
};

/// Groups ranks into nodes. `hosts` has the host of each rank. node_size > 0: every node_size
/// consecutive ranks form a node, whatever the hosts. All ranks get the same result except for
/// `mine` and `place`.
Nodes nodes_of(const std::vector<std::string>& hosts, int node_size, int rank);
/// Returns the speed of this host's RDMA NICs in MB/s, as text for set-up records. Only ports that
/// NCCL_IB_HCA leaves to NCCL count; "0" if there is none, or if NCCL_IB_DISABLE is not 0.
std::string nic_rate(const Sysfs& system = Sysfs());
/// Returns Nodes::network_gb_per_s from the texts of all ranks.
double network_gb_per_s_of(const std::vector<std::string>& rates);

}  // namespace plait
