// How many parts a call has: of its communicator's ranks, or of a process's neighbours.
#pragma once
#include "shims/mpi/real.hpp"

namespace plait::mpi {

/// Of what a rank gives, and of what it gets: as many entries have its arrays of counts.
struct Lengths {
  int in = 0, out = 0;
};

/// Between groups, the other group's.
Lengths ranks_in(Handle comm);
/// Of a topology; none where there is none, which the MPI says.
Lengths neighbours_in(Handle comm);
/// The same of a call that gives all neighbours the same part.
Lengths sources_in(Handle comm);
/// Whether one of those that a process gets from may be none: a grid may end.
bool may_lack_neighbours(Handle comm);

}  // namespace plait::mpi
