// Connects ranks that already exchange messages (by MPI or a transport) with Unix sockets, as the
// rendezvous "fd:N[,N...]" of a communicator. Each step's outcome is broadcast before the next
// step, so no rank waits for a failed rank. A rank that fails later closes all sockets, and the
// peers see the end of file.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/bootstrap/socket.hpp"
#include "plait/error.hpp"

namespace plait {

/// Rank 0 has a socket to each peer; each peer has a socket to rank 0.
struct SocketLinks {
  std::vector<Fd> sockets;
  /// Returns the rendezvous address. This struct keeps the sockets.
  std::string rendezvous() const;
};

/// Collective step: returns rank 0's text on all ranks, or throws AgreedError on all if a rank has
/// a failure.
using Broadcast =
    std::function<std::string(const std::optional<Error>& failure, const std::string& word)>;

/// Throws alike on all ranks.
SocketLinks link_ranks(int rank, int ranks, const Broadcast& broadcast);

}  // namespace plait
