// MPI_Isendrecv and MPI_Isendrecv_replace for MPIs that have none (Open MPI 4.1), or whose status
// does not say what was received (MPICH): a send and a receive of the MPI's under one request.
#pragma once
#include "shims/mpi/real.hpp"

namespace plait::mpi {

/// Puts them into the table where they are wanted.
void add_exchanges(Real& table);

}  // namespace plait::mpi
