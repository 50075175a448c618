// A request over several nodes -> what one rank does with streams: collectives in its node on the
// caller's stream, calls of the library between nodes on another. Told by the same strategies as
// plans of several nodes, so what is proved of these holds of the order of these steps.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/nodes/nodes.hpp"
#include "plait/communicator.hpp"
#include "plan/node_step.hpp"

namespace plait {

struct NodeProgram {
  struct ProgramStep {
    NodeStep::Action kind = NodeStep::Action::inside;  ///< inside, across, await or copy
    Request request;     ///< inside: of my node's ranks by place. across: of the library's ranks
    Region src, dst;     ///< of this rank; empty = none
    bool whole = false;  ///< across: among all ranks; else among those at my place, by node
    int call = -1;       ///< across, await: the number of that call
  };
  std::string label;  ///< "multi_node(pieces=4)"
  std::string why;    ///< the library does all of it, which nobody named; else empty
  std::vector<ProgramStep> steps;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t bytes_between = 0;  ///< that this rank gives to calls of the library
  bool rank_order = false;          ///< sums of floats have the bits of rank order

  bool is_library() const { return steps.size() == 2 && steps[0].whole; }
};

/// Ranks of the same place in all nodes: as many as the smallest node has.
int rails_of(const Nodes& nodes);
/// Shorter all_reduces are the library's where nobody names a strategy: on two nodes of two GPUs
/// under NCCL, multi_node had 0.65 to 0.71 of NCCL's speed at 64 KiB, and 1.4 times from 1 MiB on.
/// Between these nothing was measured, so it is halfway (E-0392).
inline constexpr std::uint64_t kLeastNodeBytes = 256ull << 10;
/// For people: why the library does all of such a call where the caller names no strategy; empty
/// where it does not. bitwise: PLAIT_BITWISE=1, which asks for bits and not for speed.
std::string why_library(const Nodes& nodes, const Request& request, bool bitwise);
/// The strategy where the caller names none: of the request and the nodes alone. bitwise: in rank
/// order where that can be had.
CallOptions multinode_options(const Nodes& nodes, const Request& request, bool bitwise);
/// PLAIT_ALGO, where it names a strategy over nodes; else nothing.
CallOptions multinode_algo(const std::string& algo);
/// options: a strategy for several nodes and its parameters. Error(unsupported) where it wants what
/// streams do not do, the same on all ranks.
NodeProgram node_program(const Nodes& nodes, const Request& request, const CallOptions& options);

}  // namespace plait
