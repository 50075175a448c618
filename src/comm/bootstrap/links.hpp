// Connects ranks that already exchange messages (by MPI or a transport) with Unix sockets, as the
// rendezvous "fd:N[,N...]" of a communicator. No rank waits for a failed one: each step's outcome
// is broadcast before the next. A rank that fails later closes its sockets, which the others see.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/bootstrap/socket.hpp"
#include "plait/error.hpp"

namespace plait {

/// Rank 0 has a socket to each other rank; each other rank has one to rank 0.
struct SocketLinks {
  std::vector<Fd> sockets;
  /// Returns the rendezvous address. This struct keeps the sockets.
  std::string rendezvous() const;
};

/// Collective step: returns rank 0's text on all ranks, or throws AgreedError on all if one has a
/// failure.
using Broadcast =
    std::function<std::string(const std::optional<Error>& failure, const std::string& word)>;

/// Throws alike on all ranks.
SocketLinks link_ranks(int rank, int ranks, const Broadcast& broadcast);

}  // namespace plait
