// Communicators with an error handler of the test.
#pragma once
#include <mpi.h>

/// Returns a duplicate of MPI_COMM_WORLD with the handler.
inline MPI_Comm handled_comm(MPI_Comm_errhandler_function* function) {
  MPI_Comm comm;
  MPI_Errhandler handler;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_create_errhandler(function, &handler);
  MPI_Comm_set_errhandler(comm, handler);
  MPI_Errhandler_free(&handler);
  return comm;
}
