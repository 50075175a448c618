// Calls inside nodes, the steps of a plan over several nodes of GPUs that engines run: requests and
// predicted times. Node programs run the requests (comm/multinode/node_program.cpp), predictions
// price them (as_run.cpp).
#pragma once
#include <vector>

#include "comm/bootstrap/nodes.hpp"
#include "plan/node_step.hpp"
#include "sim/simulate.hpp"

namespace plait {

/// Returns a step's collective as a request of `ranks` ranks, of the type and reduction of
/// `request`.
Request call_of(const NodeStep& step, const Request& request, int ranks);
/// Returns the request that the ranks of a node make, by place, in a step inside the node. A copy
/// has two of the ranks as root and peer. Throws Error(unsupported) for parts of blocks, or of some
/// of the node's ranks.
Request call_in_node(const NodeStep& step, const Nodes& nodes, const Request& request);
/// Returns the calls of a plan inside nodes of GPUs, each with the predicted time of the engine or
/// the plan by lanes that runs the call. Empty for plans that no GPU communicator runs over nodes,
/// and where a time is not known: such plans have the price of their lanes.
std::vector<sim::PricedCall> calls_in_nodes(const Plan& plan, const Topology& topology);

}  // namespace plait
