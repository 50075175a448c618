// How nodes are joined: their NICs, the rails these lie on, and the spine between rails.
#pragma once
#include <string_view>
#include <vector>

#include "plait/topology.hpp"

namespace plait {

inline constexpr int kMaxNodes = 64;

/// One NIC of a node. A rail is a leaf switch that joins the NICs of one place in all nodes.
struct Nic {
  int rail = 0;
  std::vector<int> affinity;  ///< devices of the node that hang on it: GPUs, or whole NUMA nodes
};

struct Network {
  int nodes = 1;
  double gb_per_s = 0.0;          ///< of a NIC, each direction
  double latency_ns = 0.0;        ///< of a message between nodes
  double oversubscription = 1.0;  ///< a rail's NICs over its share of the spine
  std::vector<Nic> nics;          ///< nic0, nic1, ... of each node
};

/// `network.nodes` copies of a node. Indices of devices count on from node to node, and so do they
/// in the names of resources. A rank device sends through the first NIC that it hangs on; messages
/// between rails share the spine. The node itself where there is one.
Topology cluster_of(const Topology& node, const Network& network);
/// topology_from_json with that many nodes, whatever the file says; 0 = as it says.
Topology nodes_from_json(std::string_view json, int nodes);
/// The first rank device that hangs on no NIC; -1 = none.
int without_nic(const Topology& node, const Network& network);

}  // namespace plait
