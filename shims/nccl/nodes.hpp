// All-reduce over several nodes: reduce-scatter in the node by plait, all-reduce between nodes by
// NCCL on a communicator of those with the same place in their node, all-gather in the node. Cut in
// pieces, so that one piece travels between nodes while the next is reduced (Micro 2021).
#pragma once
#include <memory>

#include "comm/nodes.hpp"
#include "shims/nccl/engine.hpp"

namespace plait::nccl {

/// inside: this node's engine; across: NCCL's communicator of the same place in all nodes, which
/// the engine then owns.
std::unique_ptr<Engine> node_engine(const Nodes& nodes, int device, std::unique_ptr<Engine> inside,
                                    Comm whole, Comm across);

}  // namespace plait::nccl
