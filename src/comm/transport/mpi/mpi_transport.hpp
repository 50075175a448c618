// Makes a transport over the ranks of an MPI communicator of the program.
#pragma once
#include <memory>

#include "comm/transport/mpi/abi.hpp"
#include "comm/transport/transport.hpp"

namespace plait::mpi {

/// Makes a private communicator with the ranks of `comm`, without changing `comm`. Called by all
/// ranks together. The private communicator ends with the transport. All work runs in the calling
/// threads. Throws Error(peer_lost) with the MPI's message, or Error(unsupported) for an MPI before
/// version 3.
std::shared_ptr<Transport> transport_on(Handle comm, int rank, int ranks);

}  // namespace plait::mpi
