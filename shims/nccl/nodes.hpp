// All-reduce over several nodes: reduce-scatter in the node by plait, all-reduce between nodes by
// NCCL on a communicator of those with the same place in their node, all-gather in the node. Cut in
// pieces, so that one piece travels between nodes while the next is reduced (Micro 2021).
#pragma once
#include <string>
#include <vector>

#include "shims/nccl/engine.hpp"

namespace plait::nccl {

/// Which node a rank is on, and its place there. One node: all ranks.
struct Nodes {
  int count = 1;           ///< of nodes
  int size = 1;            ///< ranks of each
  int mine = 0;            ///< my node
  int place = 0;           ///< mine in it
  std::vector<int> peers;  ///< ranks of my node, by place
  std::string refusal;     ///< why these ranks cannot be taken as nodes; empty = they can
};

/// hosts: of each rank. node_size > 0: that many ranks in turn count as a node, whatever the host.
/// The same answer on all ranks but for `mine`, `place` and `peers`.
Nodes nodes_of(const std::vector<std::string>& hosts, int node_size, int rank);

/// inside: this node's engine; across: NCCL's communicator of the same place in all nodes, which
/// the engine then owns.
std::unique_ptr<Engine> node_engine(const Nodes& nodes, int device, std::unique_ptr<Engine> inside,
                                    Comm whole, Comm across);

}  // namespace plait::nccl
