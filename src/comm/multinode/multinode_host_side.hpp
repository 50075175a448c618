// Host side of a communicator over several nodes: ranks of a node share memory as in HostSide, and
// a transport joins all ranks.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/multinode/multinode.hpp"
#include "comm/node/host_side.hpp"

namespace plait {

class MultinodeHostSide : public HostSide {
 public:
  /// Joins this rank's node, then checks that all nodes have joined. Called by all ranks of all
  /// nodes together; throws alike on all.
  MultinodeHostSide(const CommunicatorOptions& options, Multinode multinode);
  /// For a pair of two ranks of different nodes, which `multinode` connects.
  MultinodeHostSide(const CommunicatorOptions& options, const PairOf& pair, Multinode multinode);
  /// Leaks the transport and the arenas if messages under way may still use them, or in a forked
  /// child, since that must not call the parent's MPI.
  ~MultinodeHostSide() override;

  TransportComm& transport_comm() { return *multinode_.transport_comm; }
  const Nodes& nodes() const { return multinode_.nodes; }
  /// Returns a deadline whose check throws if a peer is lost.
  Deadline deadline_after(double seconds);

  /// Calls on GPU memory use the transport too.
  std::unique_lock<std::mutex> begin_on_device(CallKind) override { return begin(); }
  std::vector<std::string> exchange(const std::string& mine) override;
  std::string transport() const override;
  /// A multi-node strategy names no engine inside a node: calls in the node choose freely.
  CallOptions node_algo() const override;
  bool accepts(const std::vector<int>& devices) const override { return devices == devices_; }
  void require_own_counts(const Request& request) const override;
  PairOf pair_at(int place) const override;
  std::unique_ptr<HostSide> far_pair(int peer, PairOf& pair) const override;

 private:
  MultinodeHostSide(const CommunicatorOptions& options, Joined joined, std::vector<int> devices,
                    Multinode&& multinode, bool is_pair);
  std::optional<Error> agree(const CallDescriptor& mine, const OwnCounts* counts) override;
  void agree_on(const std::function<void()>& step, const Deadline& deadline) override;
  std::vector<double> scalars() override;
  bool drop_messages() noexcept override { return multinode_.transport_comm->drop_all(); }
  void publish_failure(const Error& error) noexcept override;

  Multinode multinode_;
  const bool is_pair_;  ///< its failure concerns two ranks alone
};

/// Returns the options of the ranks of this node among themselves.
CommunicatorOptions options_in_node(const CommunicatorOptions& options, const Nodes& nodes);

}  // namespace plait
