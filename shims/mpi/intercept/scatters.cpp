// Exports the broadcast, the scatters and the exchanges among all ranks that plait serves.
// tools/mpi_functions.py writes this file from functions.txt.
#include "shims/mpi/intercept/collective_call.hpp"

namespace plait::mpi {
#pragma GCC visibility push(default)
extern "C" {

/// Served by plait, or passed to the MPI.
int MPI_Bcast(void* buffer, int count, Handle datatype, int root, Handle comm) {
  constexpr Native<&NativeFunctions::Bcast> mpi;
  if (has_call_slot() &&
      is_passed_on(args_of::Bcast(buffer, count, datatype, root, comm), CallForm::blocking)) {
    const InCall inside(
        *call_slot, words_of_collective(mpi, args_of::Bcast(buffer, count, datatype, root, comm)));
    return mpi(comm)(buffer, count, datatype, root, comm);
  }
  return run_collective(mpi, args_of::Bcast, buffer, count, datatype, root, comm);
}
int PMPI_Bcast(void*, int, Handle, int, Handle) __attribute__((alias("MPI_Bcast")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Ibcast(void* buffer, int count, Handle datatype, int root, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ibcast> mpi;
  if (is_passed_on(args_of::Bcast(buffer, count, datatype, root, comm), CallForm::nonblocking))
    return mpi(comm)(buffer, count, datatype, root, comm, request);
  return start_collective(mpi, args_of::Bcast, request, buffer, count, datatype, root, comm);
}
int PMPI_Ibcast(void*, int, Handle, int, Handle, void*) __attribute__((alias("MPI_Ibcast")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Bcast_init(void* buffer, int count, Handle datatype, int root, Handle comm, Handle info,
                   void* request) {
  constexpr Native<&NativeFunctions::Bcast_init> mpi;
  if (!is_intercepting()) return mpi(comm)(buffer, count, datatype, root, comm, info, request);
  return init_collective(mpi, args_of::Bcast, info, request, buffer, count, datatype, root, comm);
}
int PMPI_Bcast_init(void*, int, Handle, int, Handle, Handle, void*)
    __attribute__((alias("MPI_Bcast_init")));

/// Served by plait, or passed to the MPI.
int MPI_Bcast_c(void* buffer, Count count, Handle datatype, int root, Handle comm) {
  constexpr Native<&NativeFunctions::Bcast_c, &NativeFunctions::Bcast> mpi;
  if (has_call_slot() &&
      is_passed_on(args_of::Bcast(buffer, count, datatype, root, comm), CallForm::blocking)) {
    const InCall inside(
        *call_slot, words_of_collective(mpi, args_of::Bcast(buffer, count, datatype, root, comm)));
    return mpi(comm)(buffer, count, datatype, root, comm);
  }
  return run_collective(mpi, args_of::Bcast, buffer, count, datatype, root, comm);
}
int PMPI_Bcast_c(void*, Count, Handle, int, Handle) __attribute__((alias("MPI_Bcast_c")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Ibcast_c(void* buffer, Count count, Handle datatype, int root, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ibcast_c, &NativeFunctions::Ibcast> mpi;
  if (is_passed_on(args_of::Bcast(buffer, count, datatype, root, comm), CallForm::nonblocking))
    return mpi(comm)(buffer, count, datatype, root, comm, request);
  return start_collective(mpi, args_of::Bcast, request, buffer, count, datatype, root, comm);
}
int PMPI_Ibcast_c(void*, Count, Handle, int, Handle, void*) __attribute__((alias("MPI_Ibcast_c")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Bcast_init_c(void* buffer, Count count, Handle datatype, int root, Handle comm, Handle info,
                     void* request) {
  constexpr Native<&NativeFunctions::Bcast_init_c, &NativeFunctions::Bcast_init> mpi;
  if (!is_intercepting()) return mpi(comm)(buffer, count, datatype, root, comm, info, request);
  return init_collective(mpi, args_of::Bcast, info, request, buffer, count, datatype, root, comm);
}
int PMPI_Bcast_init_c(void*, Count, Handle, int, Handle, Handle, void*)
    __attribute__((alias("MPI_Bcast_init_c")));

/// Served by plait, or passed to the MPI.
int MPI_Scatter(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf, int recvcount,
                Handle recvtype, int root, Handle comm) {
  constexpr Native<&NativeFunctions::Scatter> mpi;
  if (has_call_slot() && is_passed_on(args_of::Scatter(sendbuf, sendcount, sendtype, recvbuf,
                                                       recvcount, recvtype, root, comm),
                                      CallForm::blocking)) {
    const InCall inside(
        *call_slot, words_of_collective(mpi, args_of::Scatter(sendbuf, sendcount, sendtype, recvbuf,
                                                              recvcount, recvtype, root, comm)));
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm);
  }
  return run_collective(mpi, args_of::Scatter, sendbuf, sendcount, sendtype, recvbuf, recvcount,
                        recvtype, root, comm);
}
int PMPI_Scatter(const void*, int, Handle, void*, int, Handle, int, Handle)
    __attribute__((alias("MPI_Scatter")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Iscatter(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf, int recvcount,
                 Handle recvtype, int root, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Iscatter> mpi;
  if (is_passed_on(
          args_of::Scatter(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm),
          CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm,
                     request);
  return start_collective(mpi, args_of::Scatter, request, sendbuf, sendcount, sendtype, recvbuf,
                          recvcount, recvtype, root, comm);
}
int PMPI_Iscatter(const void*, int, Handle, void*, int, Handle, int, Handle, void*)
    __attribute__((alias("MPI_Iscatter")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Scatter_init(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                     int recvcount, Handle recvtype, int root, Handle comm, Handle info,
                     void* request) {
  constexpr Native<&NativeFunctions::Scatter_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm, info,
                     request);
  return init_collective(mpi, args_of::Scatter, info, request, sendbuf, sendcount, sendtype,
                         recvbuf, recvcount, recvtype, root, comm);
}
int PMPI_Scatter_init(const void*, int, Handle, void*, int, Handle, int, Handle, Handle, void*)
    __attribute__((alias("MPI_Scatter_init")));

/// Served by plait, or passed to the MPI.
int MPI_Scatter_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                  Count recvcount, Handle recvtype, int root, Handle comm) {
  constexpr Native<&NativeFunctions::Scatter_c, &NativeFunctions::Scatter> mpi;
  if (has_call_slot() && is_passed_on(args_of::Scatter(sendbuf, sendcount, sendtype, recvbuf,
                                                       recvcount, recvtype, root, comm),
                                      CallForm::blocking)) {
    const InCall inside(
        *call_slot, words_of_collective(mpi, args_of::Scatter(sendbuf, sendcount, sendtype, recvbuf,
                                                              recvcount, recvtype, root, comm)));
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm);
  }
  return run_collective(mpi, args_of::Scatter, sendbuf, sendcount, sendtype, recvbuf, recvcount,
                        recvtype, root, comm);
}
int PMPI_Scatter_c(const void*, Count, Handle, void*, Count, Handle, int, Handle)
    __attribute__((alias("MPI_Scatter_c")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Iscatter_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                   Count recvcount, Handle recvtype, int root, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Iscatter_c, &NativeFunctions::Iscatter> mpi;
  if (is_passed_on(
          args_of::Scatter(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm),
          CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm,
                     request);
  return start_collective(mpi, args_of::Scatter, request, sendbuf, sendcount, sendtype, recvbuf,
                          recvcount, recvtype, root, comm);
}
int PMPI_Iscatter_c(const void*, Count, Handle, void*, Count, Handle, int, Handle, void*)
    __attribute__((alias("MPI_Iscatter_c")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Scatter_init_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                       Count recvcount, Handle recvtype, int root, Handle comm, Handle info,
                       void* request) {
  constexpr Native<&NativeFunctions::Scatter_init_c, &NativeFunctions::Scatter_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm, info,
                     request);
  return init_collective(mpi, args_of::Scatter, info, request, sendbuf, sendcount, sendtype,
                         recvbuf, recvcount, recvtype, root, comm);
}
int PMPI_Scatter_init_c(const void*, Count, Handle, void*, Count, Handle, int, Handle, Handle,
                        void*) __attribute__((alias("MPI_Scatter_init_c")));

/// Served by plait, or passed to the MPI.
int MPI_Scatterv(const void* sendbuf, const int* sendcounts, const int* displs, Handle sendtype,
                 void* recvbuf, int recvcount, Handle recvtype, int root, Handle comm) {
  constexpr Native<&NativeFunctions::Scatterv> mpi;
  if (has_call_slot() && is_passed_on(args_of::Scatterv(sendbuf, sendcounts, displs, sendtype,
                                                        recvbuf, recvcount, recvtype, root, comm),
                                      CallForm::blocking)) {
    const InCall inside(
        *call_slot,
        words_of_collective(mpi, args_of::Scatterv(sendbuf, sendcounts, displs, sendtype, recvbuf,
                                                   recvcount, recvtype, root, comm)));
    return mpi(comm)(sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root,
                     comm);
  }
  return run_collective(mpi, args_of::Scatterv, sendbuf, sendcounts, displs, sendtype, recvbuf,
                        recvcount, recvtype, root, comm);
}
int PMPI_Scatterv(const void*, const int*, const int*, Handle, void*, int, Handle, int, Handle)
    __attribute__((alias("MPI_Scatterv")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Iscatterv(const void* sendbuf, const int* sendcounts, const int* displs, Handle sendtype,
                  void* recvbuf, int recvcount, Handle recvtype, int root, Handle comm,
                  void* request) {
  constexpr Native<&NativeFunctions::Iscatterv> mpi;
  if (is_passed_on(args_of::Scatterv(sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount,
                                     recvtype, root, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root,
                     comm, request);
  return start_collective(mpi, args_of::Scatterv, request, sendbuf, sendcounts, displs, sendtype,
                          recvbuf, recvcount, recvtype, root, comm);
}
int PMPI_Iscatterv(const void*, const int*, const int*, Handle, void*, int, Handle, int, Handle,
                   void*) __attribute__((alias("MPI_Iscatterv")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Scatterv_init(const void* sendbuf, const int* sendcounts, const int* displs,
                      Handle sendtype, void* recvbuf, int recvcount, Handle recvtype, int root,
                      Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Scatterv_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root,
                     comm, info, request);
  return init_collective(mpi, args_of::Scatterv, info, request, sendbuf, sendcounts, displs,
                         sendtype, recvbuf, recvcount, recvtype, root, comm);
}
int PMPI_Scatterv_init(const void*, const int*, const int*, Handle, void*, int, Handle, int, Handle,
                       Handle, void*) __attribute__((alias("MPI_Scatterv_init")));

/// Served by plait, or passed to the MPI.
int MPI_Scatterv_c(const void* sendbuf, const Count* sendcounts, const std::intptr_t* displs,
                   Handle sendtype, void* recvbuf, Count recvcount, Handle recvtype, int root,
                   Handle comm) {
  constexpr Native<&NativeFunctions::Scatterv_c, &NativeFunctions::Scatterv> mpi;
  if (mpi.is_missing()) null_unless_root(root, comm, sendcounts, displs);
  if (has_call_slot() && is_passed_on(args_of::Scatterv(sendbuf, sendcounts, displs, sendtype,
                                                        recvbuf, recvcount, recvtype, root, comm),
                                      CallForm::blocking)) {
    const InCall inside(
        *call_slot,
        words_of_collective(mpi, args_of::Scatterv(sendbuf, sendcounts, displs, sendtype, recvbuf,
                                                   recvcount, recvtype, root, comm)));
    return mpi(comm)(sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root,
                     comm);
  }
  return run_collective(mpi, args_of::Scatterv, sendbuf, sendcounts, displs, sendtype, recvbuf,
                        recvcount, recvtype, root, comm);
}
int PMPI_Scatterv_c(const void*, const Count*, const std::intptr_t*, Handle, void*, Count, Handle,
                    int, Handle) __attribute__((alias("MPI_Scatterv_c")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Iscatterv_c(const void* sendbuf, const Count* sendcounts, const std::intptr_t* displs,
                    Handle sendtype, void* recvbuf, Count recvcount, Handle recvtype, int root,
                    Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Iscatterv_c, &NativeFunctions::Iscatterv> mpi;
  if (mpi.is_missing()) null_unless_root(root, comm, sendcounts, displs);
  if (is_passed_on(args_of::Scatterv(sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount,
                                     recvtype, root, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root,
                     comm, request);
  return start_collective(mpi, args_of::Scatterv, request, sendbuf, sendcounts, displs, sendtype,
                          recvbuf, recvcount, recvtype, root, comm);
}
int PMPI_Iscatterv_c(const void*, const Count*, const std::intptr_t*, Handle, void*, Count, Handle,
                     int, Handle, void*) __attribute__((alias("MPI_Iscatterv_c")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Scatterv_init_c(const void* sendbuf, const Count* sendcounts, const std::intptr_t* displs,
                        Handle sendtype, void* recvbuf, Count recvcount, Handle recvtype, int root,
                        Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Scatterv_init_c, &NativeFunctions::Scatterv_init> mpi;
  if (mpi.is_missing()) null_unless_root(root, comm, sendcounts, displs);
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root,
                     comm, info, request);
  return init_collective(mpi, args_of::Scatterv, info, request, sendbuf, sendcounts, displs,
                         sendtype, recvbuf, recvcount, recvtype, root, comm);
}
int PMPI_Scatterv_init_c(const void*, const Count*, const std::intptr_t*, Handle, void*, Count,
                         Handle, int, Handle, Handle, void*)
    __attribute__((alias("MPI_Scatterv_init_c")));

/// Served by plait, or passed to the MPI.
int MPI_Alltoall(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf, int recvcount,
                 Handle recvtype, Handle comm) {
  constexpr Native<&NativeFunctions::Alltoall> mpi;
  if (has_call_slot() && is_passed_on(args_of::Alltoall(sendbuf, sendcount, sendtype, recvbuf,
                                                        recvcount, recvtype, comm),
                                      CallForm::blocking)) {
    const InCall inside(
        *call_slot,
        words_of_collective(mpi, args_of::Alltoall(sendbuf, sendcount, sendtype, recvbuf, recvcount,
                                                   recvtype, comm)));
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
  }
  return run_collective(mpi, args_of::Alltoall, sendbuf, sendcount, sendtype, recvbuf, recvcount,
                        recvtype, comm);
}
int PMPI_Alltoall(const void*, int, Handle, void*, int, Handle, Handle)
    __attribute__((alias("MPI_Alltoall")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Ialltoall(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf, int recvcount,
                  Handle recvtype, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ialltoall> mpi;
  if (is_passed_on(
          args_of::Alltoall(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm),
          CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, request);
  return start_collective(mpi, args_of::Alltoall, request, sendbuf, sendcount, sendtype, recvbuf,
                          recvcount, recvtype, comm);
}
int PMPI_Ialltoall(const void*, int, Handle, void*, int, Handle, Handle, void*)
    __attribute__((alias("MPI_Ialltoall")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Alltoall_init(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                      int recvcount, Handle recvtype, Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Alltoall_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, info,
                     request);
  return init_collective(mpi, args_of::Alltoall, info, request, sendbuf, sendcount, sendtype,
                         recvbuf, recvcount, recvtype, comm);
}
int PMPI_Alltoall_init(const void*, int, Handle, void*, int, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Alltoall_init")));

/// Served by plait, or passed to the MPI.
int MPI_Alltoall_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                   Count recvcount, Handle recvtype, Handle comm) {
  constexpr Native<&NativeFunctions::Alltoall_c, &NativeFunctions::Alltoall> mpi;
  if (has_call_slot() && is_passed_on(args_of::Alltoall(sendbuf, sendcount, sendtype, recvbuf,
                                                        recvcount, recvtype, comm),
                                      CallForm::blocking)) {
    const InCall inside(
        *call_slot,
        words_of_collective(mpi, args_of::Alltoall(sendbuf, sendcount, sendtype, recvbuf, recvcount,
                                                   recvtype, comm)));
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
  }
  return run_collective(mpi, args_of::Alltoall, sendbuf, sendcount, sendtype, recvbuf, recvcount,
                        recvtype, comm);
}
int PMPI_Alltoall_c(const void*, Count, Handle, void*, Count, Handle, Handle)
    __attribute__((alias("MPI_Alltoall_c")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Ialltoall_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                    Count recvcount, Handle recvtype, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ialltoall_c, &NativeFunctions::Ialltoall> mpi;
  if (is_passed_on(
          args_of::Alltoall(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm),
          CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, request);
  return start_collective(mpi, args_of::Alltoall, request, sendbuf, sendcount, sendtype, recvbuf,
                          recvcount, recvtype, comm);
}
int PMPI_Ialltoall_c(const void*, Count, Handle, void*, Count, Handle, Handle, void*)
    __attribute__((alias("MPI_Ialltoall_c")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Alltoall_init_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                        Count recvcount, Handle recvtype, Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Alltoall_init_c, &NativeFunctions::Alltoall_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, info,
                     request);
  return init_collective(mpi, args_of::Alltoall, info, request, sendbuf, sendcount, sendtype,
                         recvbuf, recvcount, recvtype, comm);
}
int PMPI_Alltoall_init_c(const void*, Count, Handle, void*, Count, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Alltoall_init_c")));

/// Served by plait, or passed to the MPI.
int MPI_Alltoallv(const void* sendbuf, const int* sendcounts, const int* sdispls, Handle sendtype,
                  void* recvbuf, const int* recvcounts, const int* rdispls, Handle recvtype,
                  Handle comm) {
  constexpr Native<&NativeFunctions::Alltoallv> mpi;
  if (has_call_slot() &&
      is_passed_on(args_of::Alltoallv(sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts,
                                      rdispls, recvtype, comm),
                   CallForm::blocking)) {
    const InCall inside(
        *call_slot,
        words_of_collective(mpi, args_of::Alltoallv(sendbuf, sendcounts, sdispls, sendtype, recvbuf,
                                                    recvcounts, rdispls, recvtype, comm)));
    return mpi(comm)(sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype,
                     comm);
  }
  return run_collective(mpi, args_of::Alltoallv, sendbuf, sendcounts, sdispls, sendtype, recvbuf,
                        recvcounts, rdispls, recvtype, comm);
}
int PMPI_Alltoallv(const void*, const int*, const int*, Handle, void*, const int*, const int*,
                   Handle, Handle) __attribute__((alias("MPI_Alltoallv")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Ialltoallv(const void* sendbuf, const int* sendcounts, const int* sdispls, Handle sendtype,
                   void* recvbuf, const int* recvcounts, const int* rdispls, Handle recvtype,
                   Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ialltoallv> mpi;
  if (is_passed_on(args_of::Alltoallv(sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts,
                                      rdispls, recvtype, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype,
                     comm, request);
  return start_collective(mpi, args_of::Alltoallv, request, sendbuf, sendcounts, sdispls, sendtype,
                          recvbuf, recvcounts, rdispls, recvtype, comm);
}
int PMPI_Ialltoallv(const void*, const int*, const int*, Handle, void*, const int*, const int*,
                    Handle, Handle, void*) __attribute__((alias("MPI_Ialltoallv")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Alltoallv_init(const void* sendbuf, const int* sendcounts, const int* sdispls,
                       Handle sendtype, void* recvbuf, const int* recvcounts, const int* rdispls,
                       Handle recvtype, Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Alltoallv_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype,
                     comm, info, request);
  return init_collective(mpi, args_of::Alltoallv, info, request, sendbuf, sendcounts, sdispls,
                         sendtype, recvbuf, recvcounts, rdispls, recvtype, comm);
}
int PMPI_Alltoallv_init(const void*, const int*, const int*, Handle, void*, const int*, const int*,
                        Handle, Handle, Handle, void*) __attribute__((alias("MPI_Alltoallv_init")));

/// Served by plait, or passed to the MPI.
int MPI_Alltoallv_c(const void* sendbuf, const Count* sendcounts, const std::intptr_t* sdispls,
                    Handle sendtype, void* recvbuf, const Count* recvcounts,
                    const std::intptr_t* rdispls, Handle recvtype, Handle comm) {
  constexpr Native<&NativeFunctions::Alltoallv_c, &NativeFunctions::Alltoallv> mpi;
  if (has_call_slot() &&
      is_passed_on(args_of::Alltoallv(sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts,
                                      rdispls, recvtype, comm),
                   CallForm::blocking)) {
    const InCall inside(
        *call_slot,
        words_of_collective(mpi, args_of::Alltoallv(sendbuf, sendcounts, sdispls, sendtype, recvbuf,
                                                    recvcounts, rdispls, recvtype, comm)));
    return mpi(comm)(sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype,
                     comm);
  }
  return run_collective(mpi, args_of::Alltoallv, sendbuf, sendcounts, sdispls, sendtype, recvbuf,
                        recvcounts, rdispls, recvtype, comm);
}
int PMPI_Alltoallv_c(const void*, const Count*, const std::intptr_t*, Handle, void*, const Count*,
                     const std::intptr_t*, Handle, Handle)
    __attribute__((alias("MPI_Alltoallv_c")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Ialltoallv_c(const void* sendbuf, const Count* sendcounts, const std::intptr_t* sdispls,
                     Handle sendtype, void* recvbuf, const Count* recvcounts,
                     const std::intptr_t* rdispls, Handle recvtype, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ialltoallv_c, &NativeFunctions::Ialltoallv> mpi;
  if (is_passed_on(args_of::Alltoallv(sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts,
                                      rdispls, recvtype, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype,
                     comm, request);
  return start_collective(mpi, args_of::Alltoallv, request, sendbuf, sendcounts, sdispls, sendtype,
                          recvbuf, recvcounts, rdispls, recvtype, comm);
}
int PMPI_Ialltoallv_c(const void*, const Count*, const std::intptr_t*, Handle, void*, const Count*,
                      const std::intptr_t*, Handle, Handle, void*)
    __attribute__((alias("MPI_Ialltoallv_c")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Alltoallv_init_c(const void* sendbuf, const Count* sendcounts, const std::intptr_t* sdispls,
                         Handle sendtype, void* recvbuf, const Count* recvcounts,
                         const std::intptr_t* rdispls, Handle recvtype, Handle comm, Handle info,
                         void* request) {
  constexpr Native<&NativeFunctions::Alltoallv_init_c, &NativeFunctions::Alltoallv_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype,
                     comm, info, request);
  return init_collective(mpi, args_of::Alltoallv, info, request, sendbuf, sendcounts, sdispls,
                         sendtype, recvbuf, recvcounts, rdispls, recvtype, comm);
}
int PMPI_Alltoallv_init_c(const void*, const Count*, const std::intptr_t*, Handle, void*,
                          const Count*, const std::intptr_t*, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Alltoallv_init_c")));

}  // extern "C"
#pragma GCC visibility pop
}  // namespace plait::mpi
