// Hands file descriptors between the processes of a user over Unix sockets in the rendezvous
// folder.
#pragma once
#include <functional>
#include <memory>

#include "gpu/arena/file_exchange.hpp"

namespace plait {

/// Ranks swap at once, behind an exchange of addresses.
inline constexpr double kUsualSwapS = 10;

/// Listens at a new path. Throws Error if the folder or the socket cannot be made. swap_s: deadline
/// of the swap. give_up: called while the swap waits, throws if waiting is pointless; null = never.
std::unique_ptr<cuda::FileExchange> open_socket_files(double swap_s = kUsualSwapS,
                                                      std::function<void()> give_up = nullptr);

}  // namespace plait
