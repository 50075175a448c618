// Hands file descriptors between the processes of a user over Unix sockets in the rendezvous
// folder.
#pragma once
#include <memory>

#include "gpu/arena/file_exchange.hpp"

namespace plait {

/// Listens at a new path. Throws Error if the folder or the socket cannot be made.
std::unique_ptr<cuda::FileExchange> open_socket_files();

}  // namespace plait
