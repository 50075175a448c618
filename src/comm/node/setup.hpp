// Set-up of a communicator: ranks join, agree on all settings, and map each other's control pages.
// Every step is a vote: a failure on any rank fails all ranks, with that rank's reason.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/env.hpp"
#include "comm/bootstrap/rendezvous.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/liveness/control.hpp"
#include "comm/liveness/peers.hpp"
#include "plait/communicator.hpp"

namespace plait {

/// A vote that also carries descriptors.
std::vector<Contribution> vote(Rendezvous& rendezvous, const std::optional<Error>& failure,
                               const std::string& bytes, const std::vector<int>& fds,
                               const Deadline& deadline);

/// Result of the set-up: the connection to the peers and the agreed settings.
struct Joined {
  std::unique_ptr<Rendezvous> rendezvous;
  Controls controls;
  std::vector<Peer> peers;
  Topology topology;
  CallOptions forced;                         ///< parsed PLAIT_ALGO
  bool bitwise = false;                       ///< PLAIT_BITWISE
  SumOrder sum_order = SumOrder::rank_order;  ///< PLAIT_SUM_ORDER; any but rank order is bitwise
  std::string name;                ///< unique name of this group of ranks, the same on all ranks
  std::vector<std::string> names;  ///< rank names for error messages; empty = print the number
};

/// Two ranks of a larger communicator that make a separate communicator (a pair).
struct PairOf {
  std::array<int, 2> ranks;        ///< numbers in the larger communicator, the lower first
  Topology topology;               ///< topology of the larger communicator
  std::vector<int> devices;        ///< devices of the two ranks in the topology
  std::string rendezvous;          ///< rendezvous address of this pair alone
  std::function<void()> check;     ///< throws if the peer is lost
  int device = kNoDevice;          ///< CUDA ordinal of this rank's GPU
  int sm_budget = 0;               ///< most thread blocks of the pair's calls
  std::uint64_t device_bytes = 0;  ///< the pair's part of the larger communicator's device memory
  std::string through_host;        ///< why the pair's arenas are in host memory; empty = no reason
  std::string why_no_gpu;          ///< why the pair has no GPU though the larger communicator has
};

/// Returns the order of sums: the caller's, else PLAIT_SUM_ORDER. Throws Error(invalid_argument).
SumOrder order_of(const CommunicatorOptions& options, const Env& env);
/// Returns whether the caller or the environment demands an order of sums.
bool is_bitwise(const CommunicatorOptions& options, const Env& env);

/// Throws Error(invalid_argument) for deadlines that are no seconds above 0.
void require_deadlines(double arrive_s, double deadline_s);

PairOf pair_of(const Joined& joined, int rank, int peer);
/// Returns the options of the pair. whole: those of the larger communicator.
CommunicatorOptions pair_options(const CommunicatorOptions& whole, const PairOf& pair);

/// Throws alike on every rank, as Communicator::create. pair: null = no pair.
Joined join(const CommunicatorOptions& options, const PairOf* pair);

/// Makes, exchanges and maps a piece of shared memory per rank. Throws AgreedError(out_of_memory)
/// on all ranks if any rank cannot make a piece.
std::vector<Mapping> share_memory(Rendezvous& rendezvous, int rank, int ranks, std::uint64_t bytes,
                                  const Deadline& deadline);

}  // namespace plait
