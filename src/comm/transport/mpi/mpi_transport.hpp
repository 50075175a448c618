// Makes transports over the program's MPI: over MPI_COMM_WORLD, or another communicator.
#pragma once
#include <memory>

#include "comm/bootstrap/socket.hpp"
#include "comm/transport/mpi/abi.hpp"
#include "comm/transport/transport.hpp"

namespace plait {

/// Returns a transport over this process's initialised MPI. Called by all ranks together.
/// MPI_COMM_WORLD must have `ranks` ranks with the same numbers. Returns null without an MPI, or if
/// may_be_some and MPI_COMM_WORLD has more ranks. Throws Error(mismatch) for wrong ranks, and
/// Error(timeout) with the names of missing ranks.
std::unique_ptr<Transport> mpi_transport(int rank, int ranks, const Deadline& deadline,
                                         double arrive_s, bool may_be_some);

namespace mpi {

/// Returns a transport over a private communicator, which ends with the transport. Needs no peers.
/// All work runs in the calling threads. Throws Error(peer_lost) with the MPI's message, or
/// Error(unsupported) for an MPI before version 3.
std::shared_ptr<Transport> transport_over(Handle comm, int rank, int ranks);

}  // namespace mpi
}  // namespace plait
