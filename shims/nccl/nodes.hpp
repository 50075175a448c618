// Collectives over several nodes under the drop-in: plait inside a node, NCCL between nodes on a
// communicator of the ranks with the same index within a node (comm/multinode/).
#pragma once
#include <memory>

#include "comm/bootstrap/nodes.hpp"
#include "shims/nccl/engine.hpp"

namespace plait::nccl {

/// inside: this node's engine; across: NCCL's communicator of the ranks with the same index in all
/// nodes, owned by the returned engine.
std::unique_ptr<CommEngine> node_engine(const Nodes& nodes, int device,
                                        std::unique_ptr<CommEngine> inside, Comm whole,
                                        Comm across);

}  // namespace plait::nccl
