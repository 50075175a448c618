// A carrier over the ranks of one of the program's MPI communicators.
#pragma once
#include <memory>

#include "comm/mpi/abi.hpp"
#include "comm/nodes/transport.hpp"

namespace plait::mpi {

/// On a communicator of its own with the ranks of `comm`, which is left alone; all of them
/// together. It ends with the carrier. All of its work is done in the threads that call it.
/// Error(peer_lost) with the MPI's words, Error(unsupported) where that has no MPI 3.
std::shared_ptr<Transport> transport_on(Handle comm, int rank, int ranks);

}  // namespace plait::mpi
