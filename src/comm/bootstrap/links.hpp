// Ranks that hear each other already, by an MPI or by messages between nodes -> sockets between
// them, over which a communicator of theirs is set up (rendezvous "fd:N[,N...]"). No rank ever
// waits for one that has failed: each step is told to all before the next, and a rank that fails
// once the sockets are there closes its own, which the others see.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/bootstrap/socket.hpp"
#include "plait/error.hpp"

namespace plait {

/// Rank 0 has a socket to each other rank, and each of these one to rank 0.
struct SocketLinks {
  std::vector<Fd> sockets;
  /// Where the ranks meet; the sockets stay this struct's.
  std::string rendezvous() const;
};

/// Of all ranks together: a word of rank 0's, or AgreedError on all of them where one has a
/// failure.
using Broadcast =
    std::function<std::string(const std::optional<Error>& failure, const std::string& word)>;

/// Throws on all ranks alike.
SocketLinks link_ranks(int rank, int ranks, const Broadcast& broadcast);

}  // namespace plait
