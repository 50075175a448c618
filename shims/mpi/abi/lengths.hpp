// The number of parts of a call: a part per rank of the communicator, or per neighbour.
#pragma once
#include "shims/mpi/abi/native_mpi.hpp"

namespace plait::mpi {

/// Lengths of the count arrays of the send and the receive side.
struct Lengths {
  int in = 0, out = 0;
};

/// For an intercommunicator, the size of the remote group.
Lengths ranks_in(Handle comm);
/// For an intercommunicator, the size of this rank's group: MPI_Reduce_scatter has a count for each
/// rank that gets a part of the other group's sum.
Lengths own_ranks_in(Handle comm);
/// Neighbours in the communicator's topology; 0 without one, which the MPI reports.
Lengths neighbours_in(Handle comm);
/// The same for a call that sends a single part to all neighbours: the arrays describe sources
/// alone.
Lengths sources_in(Handle comm);
/// Returns whether a source may be MPI_PROC_NULL: at the edge of a grid that is not periodic.
bool may_lack_neighbours(Handle comm);

}  // namespace plait::mpi
