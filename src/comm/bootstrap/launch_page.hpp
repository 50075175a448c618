// The page that `plait launch` shares with the ranks that it starts. A rank notes there that it
// reports the loss of a peer, so that the launcher can tell the lost rank from the rest. The
// launcher notes there which ranks have ended, so that no rank waits for these to join.
#pragma once
#include <functional>
#include <vector>

#include "base/env.hpp"
#include "comm/bootstrap/socket.hpp"
#include "plait/error.hpp"

namespace plait {

/// Notes that the program gets an Error(peer_lost) on this rank. No effect for other errors, and in
/// processes that `plait launch` has not started.
void note_lost_peer(ErrorCode code) noexcept;

/// Adds a check to a wait for ranks that have not joined. Throws Error(peer_lost) if the launcher
/// has seen one of `missing` end. rank, ranks: of the communicator; other ranks than the launcher's
/// are not checked.
Deadline while_launched(const Deadline& deadline, int rank, int ranks,
                        std::function<std::vector<int>()> missing);

}  // namespace plait
