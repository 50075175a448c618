// Ranks of one machine watch each other's processes: a rank that dies leaves kernels of the others
// waiting, and they are told at once. A process shows a page of memory (comm/life_page.hpp) where
// it notes which communicators it has left in good order, and who knows that frees what others may
// have stored into.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/life_page.hpp"
#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

/// A place on this process's page for one rank of a communicator, as text for the others; "" where
/// the system gives none.
std::string show_life(int& place);
/// Opened while all ranks still wait for each other: one that dies after that is not missed.
/// lives: by rank, none of those on other machines; mine: which of them is this rank.
std::shared_ptr<Peers> open_peers(const std::vector<std::optional<std::string>>& lives, int mine);
/// When one of them dies in another process without having left, the communicator's calls return
/// ncclRemoteError, and half a second later what still waits fails its stream.
void watch(State& state, std::shared_ptr<Peers> peers);
/// The program has let go of the communicator, whose work may not have ended.
void keep_watching(std::shared_ptr<State> state);
/// Nothing is watched any more for this rank, nor is its state touched from here on.
void unwatch(const State& state);
/// How far the rank that holds the place has come in leaving. From `unmapped` on it holds none.
void show_left(int place, Left left) noexcept;

}  // namespace plait::nccl
