// Exports the reductions that plait serves. tools/mpi_functions.py writes this file from
// functions.txt.
#include "shims/mpi/intercept/collective_call.hpp"

namespace plait::mpi {
#pragma GCC visibility push(default)
extern "C" {

/// Served by plait, or passed to the MPI.
int MPI_Allreduce(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                  Handle comm) {
  constexpr Native<&NativeFunctions::Allreduce> mpi;
  if (has_call_slot() &&
      is_passed_on(args_of::Allreduce(sendbuf, recvbuf, count, datatype, op, comm),
                   CallForm::blocking)) {
    const InCall inside(
        *call_slot,
        words_of_collective(mpi, args_of::Allreduce(sendbuf, recvbuf, count, datatype, op, comm)));
    return mpi(comm)(sendbuf, recvbuf, count, datatype, op, comm);
  }
  return run_collective(mpi, args_of::Allreduce, sendbuf, recvbuf, count, datatype, op, comm);
}
int PMPI_Allreduce(const void*, void*, int, Handle, Handle, Handle)
    __attribute__((alias("MPI_Allreduce")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Iallreduce(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                   Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Iallreduce> mpi;
  if (is_passed_on(args_of::Allreduce(sendbuf, recvbuf, count, datatype, op, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, recvbuf, count, datatype, op, comm, request);
  return start_collective(mpi, args_of::Allreduce, request, sendbuf, recvbuf, count, datatype, op,
                          comm);
}
int PMPI_Iallreduce(const void*, void*, int, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Iallreduce")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Allreduce_init(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                       Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Allreduce_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, recvbuf, count, datatype, op, comm, info, request);
  return init_collective(mpi, args_of::Allreduce, info, request, sendbuf, recvbuf, count, datatype,
                         op, comm);
}
int PMPI_Allreduce_init(const void*, void*, int, Handle, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Allreduce_init")));

/// Served by plait, or passed to the MPI.
int MPI_Allreduce_c(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                    Handle comm) {
  constexpr Native<&NativeFunctions::Allreduce_c, &NativeFunctions::Allreduce> mpi;
  if (has_call_slot() &&
      is_passed_on(args_of::Allreduce(sendbuf, recvbuf, count, datatype, op, comm),
                   CallForm::blocking)) {
    const InCall inside(
        *call_slot,
        words_of_collective(mpi, args_of::Allreduce(sendbuf, recvbuf, count, datatype, op, comm)));
    return mpi(comm)(sendbuf, recvbuf, count, datatype, op, comm);
  }
  return run_collective(mpi, args_of::Allreduce, sendbuf, recvbuf, count, datatype, op, comm);
}
int PMPI_Allreduce_c(const void*, void*, Count, Handle, Handle, Handle)
    __attribute__((alias("MPI_Allreduce_c")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Iallreduce_c(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                     Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Iallreduce_c, &NativeFunctions::Iallreduce> mpi;
  if (is_passed_on(args_of::Allreduce(sendbuf, recvbuf, count, datatype, op, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, recvbuf, count, datatype, op, comm, request);
  return start_collective(mpi, args_of::Allreduce, request, sendbuf, recvbuf, count, datatype, op,
                          comm);
}
int PMPI_Iallreduce_c(const void*, void*, Count, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Iallreduce_c")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Allreduce_init_c(const void* sendbuf, void* recvbuf, Count count, Handle datatype,
                         Handle op, Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Allreduce_init_c, &NativeFunctions::Allreduce_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, recvbuf, count, datatype, op, comm, info, request);
  return init_collective(mpi, args_of::Allreduce, info, request, sendbuf, recvbuf, count, datatype,
                         op, comm);
}
int PMPI_Allreduce_init_c(const void*, void*, Count, Handle, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Allreduce_init_c")));

/// Served by plait, or passed to the MPI.
int MPI_Reduce(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op, int root,
               Handle comm) {
  constexpr Native<&NativeFunctions::Reduce> mpi;
  if (has_call_slot() &&
      is_passed_on(args_of::Reduce(sendbuf, recvbuf, count, datatype, op, root, comm),
                   CallForm::blocking)) {
    const InCall inside(
        *call_slot, words_of_collective(
                        mpi, args_of::Reduce(sendbuf, recvbuf, count, datatype, op, root, comm)));
    return mpi(comm)(sendbuf, recvbuf, count, datatype, op, root, comm);
  }
  return run_collective(mpi, args_of::Reduce, sendbuf, recvbuf, count, datatype, op, root, comm);
}
int PMPI_Reduce(const void*, void*, int, Handle, Handle, int, Handle)
    __attribute__((alias("MPI_Reduce")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Ireduce(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op, int root,
                Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ireduce> mpi;
  if (is_passed_on(args_of::Reduce(sendbuf, recvbuf, count, datatype, op, root, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, recvbuf, count, datatype, op, root, comm, request);
  return start_collective(mpi, args_of::Reduce, request, sendbuf, recvbuf, count, datatype, op,
                          root, comm);
}
int PMPI_Ireduce(const void*, void*, int, Handle, Handle, int, Handle, void*)
    __attribute__((alias("MPI_Ireduce")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Reduce_init(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                    int root, Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Reduce_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, recvbuf, count, datatype, op, root, comm, info, request);
  return init_collective(mpi, args_of::Reduce, info, request, sendbuf, recvbuf, count, datatype, op,
                         root, comm);
}
int PMPI_Reduce_init(const void*, void*, int, Handle, Handle, int, Handle, Handle, void*)
    __attribute__((alias("MPI_Reduce_init")));

/// Served by plait, or passed to the MPI.
int MPI_Reduce_c(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                 int root, Handle comm) {
  constexpr Native<&NativeFunctions::Reduce_c, &NativeFunctions::Reduce> mpi;
  if (has_call_slot() &&
      is_passed_on(args_of::Reduce(sendbuf, recvbuf, count, datatype, op, root, comm),
                   CallForm::blocking)) {
    const InCall inside(
        *call_slot, words_of_collective(
                        mpi, args_of::Reduce(sendbuf, recvbuf, count, datatype, op, root, comm)));
    return mpi(comm)(sendbuf, recvbuf, count, datatype, op, root, comm);
  }
  return run_collective(mpi, args_of::Reduce, sendbuf, recvbuf, count, datatype, op, root, comm);
}
int PMPI_Reduce_c(const void*, void*, Count, Handle, Handle, int, Handle)
    __attribute__((alias("MPI_Reduce_c")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Ireduce_c(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                  int root, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ireduce_c, &NativeFunctions::Ireduce> mpi;
  if (is_passed_on(args_of::Reduce(sendbuf, recvbuf, count, datatype, op, root, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, recvbuf, count, datatype, op, root, comm, request);
  return start_collective(mpi, args_of::Reduce, request, sendbuf, recvbuf, count, datatype, op,
                          root, comm);
}
int PMPI_Ireduce_c(const void*, void*, Count, Handle, Handle, int, Handle, void*)
    __attribute__((alias("MPI_Ireduce_c")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Reduce_init_c(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                      int root, Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Reduce_init_c, &NativeFunctions::Reduce_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, recvbuf, count, datatype, op, root, comm, info, request);
  return init_collective(mpi, args_of::Reduce, info, request, sendbuf, recvbuf, count, datatype, op,
                         root, comm);
}
int PMPI_Reduce_init_c(const void*, void*, Count, Handle, Handle, int, Handle, Handle, void*)
    __attribute__((alias("MPI_Reduce_init_c")));

/// Served by plait, or passed to the MPI.
int MPI_Reduce_scatter_block(const void* sendbuf, void* recvbuf, int recvcount, Handle datatype,
                             Handle op, Handle comm) {
  constexpr Native<&NativeFunctions::Reduce_scatter_block> mpi;
  if (has_call_slot() &&
      is_passed_on(args_of::Reduce_scatter_block(sendbuf, recvbuf, recvcount, datatype, op, comm),
                   CallForm::blocking)) {
    const InCall inside(
        *call_slot, words_of_collective(mpi, args_of::Reduce_scatter_block(
                                                 sendbuf, recvbuf, recvcount, datatype, op, comm)));
    return mpi(comm)(sendbuf, recvbuf, recvcount, datatype, op, comm);
  }
  return run_collective(mpi, args_of::Reduce_scatter_block, sendbuf, recvbuf, recvcount, datatype,
                        op, comm);
}
int PMPI_Reduce_scatter_block(const void*, void*, int, Handle, Handle, Handle)
    __attribute__((alias("MPI_Reduce_scatter_block")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Ireduce_scatter_block(const void* sendbuf, void* recvbuf, int recvcount, Handle datatype,
                              Handle op, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ireduce_scatter_block> mpi;
  if (is_passed_on(args_of::Reduce_scatter_block(sendbuf, recvbuf, recvcount, datatype, op, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, recvbuf, recvcount, datatype, op, comm, request);
  return start_collective(mpi, args_of::Reduce_scatter_block, request, sendbuf, recvbuf, recvcount,
                          datatype, op, comm);
}
int PMPI_Ireduce_scatter_block(const void*, void*, int, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Ireduce_scatter_block")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Reduce_scatter_block_init(const void* sendbuf, void* recvbuf, int recvcount,
                                  Handle datatype, Handle op, Handle comm, Handle info,
                                  void* request) {
  constexpr Native<&NativeFunctions::Reduce_scatter_block_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, recvbuf, recvcount, datatype, op, comm, info, request);
  return init_collective(mpi, args_of::Reduce_scatter_block, info, request, sendbuf, recvbuf,
                         recvcount, datatype, op, comm);
}
int PMPI_Reduce_scatter_block_init(const void*, void*, int, Handle, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Reduce_scatter_block_init")));

/// Served by plait, or passed to the MPI.
int MPI_Reduce_scatter_block_c(const void* sendbuf, void* recvbuf, Count recvcount, Handle datatype,
                               Handle op, Handle comm) {
  constexpr Native<&NativeFunctions::Reduce_scatter_block_c, &NativeFunctions::Reduce_scatter_block>
      mpi;
  if (has_call_slot() &&
      is_passed_on(args_of::Reduce_scatter_block(sendbuf, recvbuf, recvcount, datatype, op, comm),
                   CallForm::blocking)) {
    const InCall inside(
        *call_slot, words_of_collective(mpi, args_of::Reduce_scatter_block(
                                                 sendbuf, recvbuf, recvcount, datatype, op, comm)));
    return mpi(comm)(sendbuf, recvbuf, recvcount, datatype, op, comm);
  }
  return run_collective(mpi, args_of::Reduce_scatter_block, sendbuf, recvbuf, recvcount, datatype,
                        op, comm);
}
int PMPI_Reduce_scatter_block_c(const void*, void*, Count, Handle, Handle, Handle)
    __attribute__((alias("MPI_Reduce_scatter_block_c")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Ireduce_scatter_block_c(const void* sendbuf, void* recvbuf, Count recvcount,
                                Handle datatype, Handle op, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ireduce_scatter_block_c,
                   &NativeFunctions::Ireduce_scatter_block>
      mpi;
  if (is_passed_on(args_of::Reduce_scatter_block(sendbuf, recvbuf, recvcount, datatype, op, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, recvbuf, recvcount, datatype, op, comm, request);
  return start_collective(mpi, args_of::Reduce_scatter_block, request, sendbuf, recvbuf, recvcount,
                          datatype, op, comm);
}
int PMPI_Ireduce_scatter_block_c(const void*, void*, Count, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Ireduce_scatter_block_c")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Reduce_scatter_block_init_c(const void* sendbuf, void* recvbuf, Count recvcount,
                                    Handle datatype, Handle op, Handle comm, Handle info,
                                    void* request) {
  constexpr Native<&NativeFunctions::Reduce_scatter_block_init_c,
                   &NativeFunctions::Reduce_scatter_block_init>
      mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, recvbuf, recvcount, datatype, op, comm, info, request);
  return init_collective(mpi, args_of::Reduce_scatter_block, info, request, sendbuf, recvbuf,
                         recvcount, datatype, op, comm);
}
int PMPI_Reduce_scatter_block_init_c(const void*, void*, Count, Handle, Handle, Handle, Handle,
                                     void*)
    __attribute__((alias("MPI_Reduce_scatter_block_init_c")));

/// Served by plait, or passed to the MPI.
int MPI_Reduce_scatter(const void* sendbuf, void* recvbuf, const int* recvcounts, Handle datatype,
                       Handle op, Handle comm) {
  constexpr Native<&NativeFunctions::Reduce_scatter> mpi;
  if (has_call_slot() &&
      is_passed_on(args_of::Reduce_scatter(sendbuf, recvbuf, recvcounts, datatype, op, comm),
                   CallForm::blocking)) {
    const InCall inside(
        *call_slot, words_of_collective(mpi, args_of::Reduce_scatter(sendbuf, recvbuf, recvcounts,
                                                                     datatype, op, comm)));
    return mpi(comm)(sendbuf, recvbuf, recvcounts, datatype, op, comm);
  }
  return run_collective(mpi, args_of::Reduce_scatter, sendbuf, recvbuf, recvcounts, datatype, op,
                        comm);
}
int PMPI_Reduce_scatter(const void*, void*, const int*, Handle, Handle, Handle)
    __attribute__((alias("MPI_Reduce_scatter")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Ireduce_scatter(const void* sendbuf, void* recvbuf, const int* recvcounts, Handle datatype,
                        Handle op, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ireduce_scatter> mpi;
  if (is_passed_on(args_of::Reduce_scatter(sendbuf, recvbuf, recvcounts, datatype, op, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, recvbuf, recvcounts, datatype, op, comm, request);
  return start_collective(mpi, args_of::Reduce_scatter, request, sendbuf, recvbuf, recvcounts,
                          datatype, op, comm);
}
int PMPI_Ireduce_scatter(const void*, void*, const int*, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Ireduce_scatter")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Reduce_scatter_init(const void* sendbuf, void* recvbuf, const int* recvcounts,
                            Handle datatype, Handle op, Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Reduce_scatter_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, recvbuf, recvcounts, datatype, op, comm, info, request);
  return init_collective(mpi, args_of::Reduce_scatter, info, request, sendbuf, recvbuf, recvcounts,
                         datatype, op, comm);
}
int PMPI_Reduce_scatter_init(const void*, void*, const int*, Handle, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Reduce_scatter_init")));

/// Served by plait, or passed to the MPI.
int MPI_Reduce_scatter_c(const void* sendbuf, void* recvbuf, const Count* recvcounts,
                         Handle datatype, Handle op, Handle comm) {
  constexpr Native<&NativeFunctions::Reduce_scatter_c, &NativeFunctions::Reduce_scatter,
                   own_ranks_in>
      mpi;
  if (has_call_slot() &&
      is_passed_on(args_of::Reduce_scatter(sendbuf, recvbuf, recvcounts, datatype, op, comm),
                   CallForm::blocking)) {
    const InCall inside(
        *call_slot, words_of_collective(mpi, args_of::Reduce_scatter(sendbuf, recvbuf, recvcounts,
                                                                     datatype, op, comm)));
    return mpi(comm)(sendbuf, recvbuf, recvcounts, datatype, op, comm);
  }
  return run_collective(mpi, args_of::Reduce_scatter, sendbuf, recvbuf, recvcounts, datatype, op,
                        comm);
}
int PMPI_Reduce_scatter_c(const void*, void*, const Count*, Handle, Handle, Handle)
    __attribute__((alias("MPI_Reduce_scatter_c")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Ireduce_scatter_c(const void* sendbuf, void* recvbuf, const Count* recvcounts,
                          Handle datatype, Handle op, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ireduce_scatter_c, &NativeFunctions::Ireduce_scatter,
                   own_ranks_in>
      mpi;
  if (is_passed_on(args_of::Reduce_scatter(sendbuf, recvbuf, recvcounts, datatype, op, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, recvbuf, recvcounts, datatype, op, comm, request);
  return start_collective(mpi, args_of::Reduce_scatter, request, sendbuf, recvbuf, recvcounts,
                          datatype, op, comm);
}
int PMPI_Ireduce_scatter_c(const void*, void*, const Count*, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Ireduce_scatter_c")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Reduce_scatter_init_c(const void* sendbuf, void* recvbuf, const Count* recvcounts,
                              Handle datatype, Handle op, Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Reduce_scatter_init_c, &NativeFunctions::Reduce_scatter_init,
                   own_ranks_in>
      mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, recvbuf, recvcounts, datatype, op, comm, info, request);
  return init_collective(mpi, args_of::Reduce_scatter, info, request, sendbuf, recvbuf, recvcounts,
                         datatype, op, comm);
}
int PMPI_Reduce_scatter_init_c(const void*, void*, const Count*, Handle, Handle, Handle, Handle,
                               void*) __attribute__((alias("MPI_Reduce_scatter_init_c")));

}  // extern "C"
#pragma GCC visibility pop
}  // namespace plait::mpi
