// Exports MPI_Barrier, which the native MPI runs: a rank that waits in it is shown.
#include "shims/mpi/args/in_call.hpp"
#include "shims/mpi/args/native_flight.hpp"
#include "shims/mpi/requests/native_call.hpp"

namespace plait::mpi {
#pragma GCC visibility push(default)
extern "C" {

int MPI_Barrier(Handle comm) {
  constexpr Native<&NativeFunctions::Barrier> mpi;
  const InCall inside(words_of_bare(mpi, comm));
  const RecordedNative recorded(comm);
  return mpi(comm)(comm);
}
int PMPI_Barrier(Handle) __attribute__((alias("MPI_Barrier")));

}  // extern "C"
#pragma GCC visibility pop
}  // namespace plait::mpi
