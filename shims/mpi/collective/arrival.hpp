// The first synchronisation between the ranks of a job, called by MPI_Init (attach.cpp).
#pragma once
#include "shims/mpi/abi/native_mpi.hpp"

namespace plait::mpi {

/// Waits until all ranks of the communicator have called this function, without a time limit. A
/// rank without the drop-in never arrives: after warn_after_s each waiting rank warns once.
void wait_for_all_ranks(Handle comm, double warn_after_s);

}  // namespace plait::mpi
