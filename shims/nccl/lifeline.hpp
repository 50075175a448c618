// Ranks of one machine watch each other's processes: a rank that dies leaves kernels of the others
// waiting, and they are told at once. A process shows a page of memory (nameless; others open it by
// process and number) where it notes which communicators it has left in good order.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

/// A place on this process's page for one rank of a communicator, as text for the others; "" where
/// the system gives none.
std::string show_life(int& place);
/// The processes of the ranks that showed `lives`, but for this one.
class Peers {
 public:
  virtual ~Peers() = default;
};
/// Opened while all ranks still wait for each other: one that dies after that is not missed.
std::unique_ptr<Peers> open_peers(const std::vector<std::string>& lives);
/// When one of them dies without having left, the communicator's engine is aborted and its calls
/// return ncclRemoteError.
void watch(State& state, std::unique_ptr<Peers> peers);
/// Nothing is watched any more for this rank: it has left its communicator.
void unwatch(const State& state);

}  // namespace plait::nccl
