// A communicator's ranks on several nodes: who is where, what lies between, and whether all make
// the same call.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/env.hpp"
#include "comm/bootstrap/setup.hpp"
#include "comm/choice/descriptor.hpp"
#include "comm/nodes/nodes.hpp"
#include "comm/nodes/transport_comm.hpp"
#include "plait/communicator.hpp"

namespace plait {

/// By the MPI of this process, which is initialised and has as many ranks with the same numbers;
/// all ranks together. Null where there is none, and where it has more ranks and they may_be_some
/// of them; Error(mismatch) where it has others, Error(timeout) where one does not come, which
/// names it.
std::unique_ptr<Transport> mpi_transport(int rank, int ranks, const Deadline& deadline,
                                         double arrive_s, bool may_be_some);

/// A communicator's ranks where these are on several nodes; no world = all are on one.
struct Multinode {
  std::unique_ptr<TransportComm> transport_comm;
  Nodes nodes;
  std::string network;  ///< what a rank knows of it already; the same on all; empty = nothing
};

/// By the launcher's words, PLAIT_NODE_SIZE, or what ranks with a unique id say of their hosts; all
/// ranks together. Error(unsupported) where there are several nodes and nothing carries bytes
/// between them. What one rank finds wrong is an AgreedError on all that have a carrier.
Multinode join_multinode(const CommunicatorOptions& options, const Env& env);
/// The machine as plans over nodes see it: CPU ranks of each node, joined by links of the speed
/// that messages have between the first two nodes. All ranks together; the same on all.
Topology topology_of(Multinode& multinode, const Deadline& deadline);
/// The topology's device of each rank.
std::vector<int> devices_of(const Topology& topology, const Nodes& nodes);
/// All throw the error of the first rank that has one, as an AgreedError; all ranks together.
/// shown, where wanted: what each gives besides.
void agree(TransportComm& transport_comm, const std::optional<Error>& mine,
           const Deadline& deadline, const std::string& bytes = {},
           std::vector<std::string>* shown = nullptr);
/// What a step throws on this rank alone is told to the others, who wait for it.
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
/// What all ranks of all nodes throw for this call: refused is my node's verdict. Nothing where all
/// make the same.
std::optional<Error> multinode_call_error(TransportComm& transport_comm, const CallDescriptor& mine,
                                          const std::optional<Error>& refused,
                                          const Deadline& deadline);

}  // namespace plait
