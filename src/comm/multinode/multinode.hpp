// Nodes of a communicator's ranks, the transport between nodes, and the check that all ranks make
// the same call. Used by MultinodeHostSide during set-up and in each call.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/env.hpp"
#include "comm/bootstrap/nodes.hpp"
#include "comm/choose/descriptor.hpp"
#include "comm/node/setup.hpp"
#include "comm/transport/transport_comm.hpp"
#include "plait/communicator.hpp"

namespace plait {

/// Nodes of a communicator; a null transport_comm = all ranks are on the same node.
struct Multinode {
  std::unique_ptr<TransportComm> transport_comm;
  Nodes nodes;
  std::string network;  ///< latency and rate known from earlier, same on all ranks; empty = unknown
  /// Each rank's process, if the rank shares this rank's PID namespace; else 0.
  std::vector<int> processes = {};
};

/// Finds the nodes by the launcher's variables, PLAIT_NODE_SIZE, or the hosts of ranks with a
/// unique id. Called by all ranks together. Throws Error(unsupported) for several nodes without a
/// transport. An error of any rank becomes an AgreedError on all ranks that have a transport.
Multinode join_multinode(const CommunicatorOptions& options, const Env& env);
/// Returns the machine as multi-node plans see it: CPU ranks of each node, joined by links of the
/// measured speed between the first two nodes. Called by all ranks together; the same on all.
Topology topology_of(Multinode& multinode, const Deadline& deadline);
/// Returns each rank's device in the topology.
std::vector<int> devices_of(const Topology& topology, const Nodes& nodes);
/// Throws the error of the lowest rank with an error, as an AgreedError on all ranks. Called by all
/// ranks together. shown, if not null, gets each rank's bytes.
void agree(TransportComm& transport_comm, const std::optional<Error>& mine,
           const Deadline& deadline, const std::string& bytes = {},
           std::vector<std::string>* shown = nullptr);
/// Runs `step` and publishes an error to the peers, since peers may wait for this rank.
template <class Step>
auto publish_errors(TransportComm& transport_comm, const Step& step) {
  try {
    return step();
  } catch (const AgreedError&) {
    throw;
  } catch (const Error& error) {
    transport_comm.publish_failure(error);
    throw;
  }
}
/// Returns the error that all ranks of all nodes throw for this call, or nothing if all make the
/// same call. refused: this node's own error.
std::optional<Error> multinode_call_error(TransportComm& transport_comm, const CallDescriptor& mine,
                                          const std::optional<Error>& refused,
                                          const Deadline& deadline);

}  // namespace plait
