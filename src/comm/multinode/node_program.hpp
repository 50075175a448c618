// Lowers a request over several nodes to a rank's work on streams: collectives in the node on the
// caller's stream, NCCL calls between nodes on a side stream. The strategies of multi-node plans
// produce the steps. Therefore the proofs of the plans hold for the order of the steps.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/bootstrap/nodes.hpp"
#include "plait/communicator.hpp"
#include "plan/node_step.hpp"

namespace plait {

struct NodeProgram {
  struct ProgramStep {
    NodeStep::Action kind = NodeStep::Action::inside;  ///< inside, across, await or copy
    Request request;     ///< inside: among my node's ranks by place; across: among NCCL's ranks
    Region src, dst;     ///< this rank's regions; empty = none
    bool whole = false;  ///< across: among all ranks; else among the ranks of my place, by node
    int call = -1;       ///< across, await: the call's number
  };
  std::string label;  ///< "multi_node(pieces=4)"
  std::string why;    ///< why NCCL does the whole call though no strategy was named; else empty
  std::vector<ProgramStep> steps;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t bytes_between = 0;  ///< bytes that this rank gives to NCCL calls
  bool in_order = false;            ///< float sums have the bits of the order that is asked for

  bool is_library() const { return steps.size() == 2 && steps[0].whole; }
};

/// options: a multi-node strategy and parameters. Throws Error(unsupported), alike on all ranks,
/// for steps that streams cannot run.
/// order: of sums in the nodes; a tree goes on over two nodes (serves_node_tree).
NodeProgram node_program(const Nodes& nodes, const Request& request, const CallOptions& options,
                         SumOrder order = SumOrder::rank_order);

}  // namespace plait
