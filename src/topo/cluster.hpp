// Clusters: copies of a node joined by NICs, the rails of the NICs, and the spine between rails.
#pragma once
#include <string_view>
#include <vector>

#include "plait/topology.hpp"

namespace plait {

inline constexpr int kMaxNodes = 64;

/// A NIC of a node. A rail is a leaf switch that joins NICs with the same index of all nodes.
struct Nic {
  int rail = 0;
  std::vector<int> affinity;  ///< devices of the node next to the NIC: GPUs, or NUMA nodes
};

struct Network {
  int nodes = 1;
  double gb_per_s = 0.0;          ///< speed of a NIC, each direction
  double latency_ns = 0.0;        ///< latency of a message between nodes
  double oversubscription = 1.0;  ///< a rail's NICs over the rail's share of the spine
  std::vector<Nic> nics;          ///< nic0, nic1, ... of each node
};

/// Returns `network.nodes` copies of a node, joined. Device indices count on from node to node,
/// also in names of resources. A rank device sends through the first adjacent NIC; messages between
/// rails share the spine. With a single node, returns the node itself.
Topology cluster_of(const Topology& node, const Network& network);
/// topology_from_json() with this number of nodes instead of the file's; 0 = the file's.
Topology nodes_from_json(std::string_view json, int nodes);
/// Returns the first rank device without a NIC; -1 = none.
int without_nic(const Topology& node, const Network& network);

}  // namespace plait
