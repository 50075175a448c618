// Exports the functions that free a communicator: the program's delete callbacks may use the
// communicator meanwhile.
#include "shims/mpi/requests/freed_comm.hpp"
#include "shims/mpi/requests/native_call.hpp"

namespace plait::mpi {
namespace {

/// A null pointer in the place of the communicator is the MPI's error.
int free_by(int (*function)(void*), void* comm) {
  if (comm == nullptr) return function(comm);
  const FreedCommScope freed(native().abi.at(comm, 0));
  return function(comm);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int MPI_Comm_free(void* comm) { return free_by(native().Comm_free, comm); }
int MPI_Comm_disconnect(void* comm) { return free_by(native().Comm_disconnect, comm); }

int PMPI_Comm_free(void*) __attribute__((alias("MPI_Comm_free")));
int PMPI_Comm_disconnect(void*) __attribute__((alias("MPI_Comm_disconnect")));

}  // extern "C"
#pragma GCC visibility pop
}  // namespace plait::mpi
