// The page that `plait launch` shares with its ranks. A rank notes a peer's loss on the page when
// the program gets the error, and the launcher then tells the lost rank from the rest. The launcher
// notes each rank that has ended, and no rank waits for such a rank to join.
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
