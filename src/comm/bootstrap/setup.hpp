// Options -> ranks that have met, agree on every setting, and see each other's control pages.
// Every step is a vote: what fails on one rank fails on all, with that rank's reason.
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

/// A vote that carries descriptors too.
std::vector<Contribution> vote(Rendezvous& rendezvous, const std::optional<Error>& failure,
                               const std::string& bytes, const std::vector<int>& fds,
                               const Deadline& deadline);

/// What a communicator needs from the others.
struct Joined {
  std::unique_ptr<Rendezvous> rendezvous;
  Controls controls;
  std::vector<Peer> peers;
  Topology topology;
  CallOptions forced;              ///< PLAIT_ALGO
  bool bitwise = false;            ///< PLAIT_BITWISE
  std::string name;                ///< of these ranks alone; the same on all of them
  std::vector<std::string> names;  ///< of each in errors, where that is not its number
};

/// Two ranks of a larger communicator that make one of their own.
struct PairOf {
  std::array<int, 2> ranks;        ///< there, the lower one first
  Topology topology;               ///< of that one
  std::vector<int> devices;        ///< of these two in it
  std::string rendezvous;          ///< where only they meet
  std::function<void()> check;     ///< throws where waiting for the other is in vain
  std::uint64_t device_bytes = 0;  ///< its part of that one's device memory
  std::string why_no_gpu;          ///< where that one has a GPU, and these two have none
};
PairOf pair_of(const Joined& joined, int rank, int peer);

/// Throws on every rank alike, as Communicator::create says. pair: null = by the options alone.
Joined join(const CommunicatorOptions& options, const PairOf* pair);

/// Makes, exchanges and maps one piece of shared memory a rank. AgreedError(out_of_memory) on all
/// ranks where one cannot.
std::vector<Mapping> share_memory(Rendezvous& rendezvous, int rank, int ranks, std::uint64_t bytes,
                                  const Deadline& deadline);

}  // namespace plait
