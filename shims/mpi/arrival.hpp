// The first word between the ranks of a job, in MPI_Init.
#pragma once
#include "shims/mpi/real.hpp"

namespace plait::mpi {

/// Waits until all ranks of the communicator are in this function, as long as it takes. A rank that
/// runs without the drop-in never is: after patience_s each of the others says so, once.
void wait_for_all_ranks(Handle comm, double warn_after_s);

}  // namespace plait::mpi
