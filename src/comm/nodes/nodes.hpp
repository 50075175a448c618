// Which ranks share a machine, and where each of them stands there.
#pragma once
#include <string>
#include <vector>

namespace plait {

struct Nodes {
  std::vector<std::vector<int>> members;  ///< ranks of each node, ascending, by lowest rank
  int mine = 0;                           ///< my node
  int place = 0;                          ///< mine in it

  int count() const { return static_cast<int>(members.size()); }
  int ranks() const;
  /// Ranks of my node, by place.
  const std::vector<int>& peers() const { return members[static_cast<std::size_t>(mine)]; }
  int size() const { return static_cast<int>(peers().size()); }
  /// "node 1 has 1 ranks, node 0 has 2"; empty where all have as many.
  std::string why_unlike() const;
};

/// hosts: of each rank. node_size > 0: that many ranks in turn count as a node, whatever the host.
/// The same answer on all ranks but for `mine` and `place`.
Nodes nodes_of(const std::vector<std::string>& hosts, int node_size, int rank);
/// Of this start of the machine's system.
std::string boot_id();
/// The same for all processes that can show each other memory: one boot of one machine, one PID
/// namespace.
std::string host_name();

}  // namespace plait
