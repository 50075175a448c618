// Ranks of several hosts: what carries their bytes, and the calls between nodes of their plans.
// plait opens no port of its own; the host's MPI has its ways already.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/env.hpp"
#include "comm/descriptor.hpp"
#include "comm/nodes.hpp"
#include "comm/socket.hpp"
#include "exec/cpu/node_library.hpp"
#include "plait/communicator.hpp"

namespace plait {

class World : public NodeLibrary {
 public:
  /// Every rank's bytes in rank order; all ranks together. Error(timeout) past the deadline, and
  /// what patience.check throws.
  virtual std::vector<std::string> exchange(const std::string& mine, const Patience& patience) = 0;
  virtual int ranks() const = 0;
  /// False while a call is under way: then it may still write, and is kept for good.
  virtual bool is_idle() const = 0;
  /// Until the call is done: asks patience.check meanwhile. Error(timeout), whose words begin with
  /// `waiting`.
  void await(int begun, const Patience& patience, const std::string& waiting);
  /// The same, and its end. buffers: what the call reads and writes; they outlive an error, after
  /// which the library may still use them.
  template <class Buffers>
  void finish(int begun, std::unique_ptr<Buffers>& buffers, const Patience& patience,
              const std::string& waiting) {
    try {
      await(begun, patience, waiting);
    } catch (...) {
      static_cast<void>(buffers.release());
      throw;
    }
    end(begun);
  }
};

/// By the MPI of this process, which is initialised and has as many ranks with the same numbers;
/// all ranks together. Null where there is none; Error(mismatch) where it has others.
std::unique_ptr<World> mpi_world(int rank, int ranks);

/// A communicator's ranks where these are on several nodes; no world = all are on one.
struct OverNodes {
  std::unique_ptr<World> world;
  Nodes nodes;
  std::string rendezvous;  ///< where the ranks of my node meet
};

/// By the launcher's words or PLAIT_NODE_SIZE; all ranks together. Error(unsupported) where there
/// are several nodes and nothing carries bytes between them.
OverNodes over_nodes(const CommunicatorOptions& options, const Env& env);
/// The machine as plans over nodes see it: CPU ranks of each node, joined by links of the speed
/// that calls of the library have between the first two nodes. All ranks together; the same on all.
Topology topology_of(OverNodes& over, const Patience& patience);
/// The topology's device of each rank.
std::vector<int> devices_of(const Topology& topology, const Nodes& nodes);
/// The error of the first rank that has one; all ranks together.
std::optional<Error> first_error(World& world, const std::optional<Error>& mine,
                                 const Patience& patience);
/// What all ranks of all nodes throw for this call: refused is my node's verdict. Nothing where all
/// make the same.
std::optional<Error> verdict_over(World& world, const CallDescriptor& mine,
                                  const std::optional<Error>& refused, const Patience& patience);

}  // namespace plait
