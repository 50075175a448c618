// Collectives over several nodes under the drop-in: plait in a node, NCCL between nodes on a
// communicator of those with the same place in theirs (comm/nodes/node_program_runner.hpp).
#pragma once
#include <memory>

#include "comm/nodes/nodes.hpp"
#include "shims/nccl/engine.hpp"

namespace plait::nccl {

/// inside: this node's engine; across: NCCL's communicator of the same place in all nodes, which
/// the engine then owns.
std::unique_ptr<CommEngine> node_engine(const Nodes& nodes, int device,
                                        std::unique_ptr<CommEngine> inside, Comm whole,
                                        Comm across);

}  // namespace plait::nccl
