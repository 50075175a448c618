// Lowers a request over several nodes to a rank's work on streams: collectives in the node on the
// caller's stream, NCCL calls between nodes on a side stream. The strategies of multi-node plans
// produce the steps. Therefore the proofs of the plans hold for the order of the steps.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/multinode/nodes.hpp"
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
  bool rank_order = false;          ///< float sums have the bits of rank order

  bool is_library() const { return steps.size() == 2 && steps[0].whole; }
};

/// Number of rails (ranks of equal place in all nodes): as many as the smallest node has ranks.
int rails_of(const Nodes& nodes);
/// Shorter all_reduces go to NCCL if no strategy is named. Under NCCL on two nodes of two GPUs,
/// multi_node had 0.65 to 0.71 of NCCL's speed at 64 KiB and 1.4 times from 1 MiB on. The value is
/// halfway, since nothing between was measured (E-0392).
inline constexpr std::uint64_t kLeastNodeBytes = 256ull << 10;
/// Returns why NCCL does the call if the caller names no strategy, for messages; empty if plait
/// does the call. bitwise: PLAIT_BITWISE=1, a demand for equal bits rather than speed.
std::string why_library(const Nodes& nodes, const Request& request, bool bitwise);
/// Returns the strategy if the caller names none. Depends on the request and the nodes alone.
/// bitwise: prefer rank order.
CallOptions multinode_options(const Nodes& nodes, const Request& request, bool bitwise);
/// Returns PLAIT_ALGO if it names a multi-node strategy, else nothing.
CallOptions multinode_algo(const std::string& algo);
/// options: a multi-node strategy and parameters. Throws Error(unsupported), alike on all ranks,
/// for steps that streams cannot run.
NodeProgram node_program(const Nodes& nodes, const Request& request, const CallOptions& options);

}  // namespace plait
