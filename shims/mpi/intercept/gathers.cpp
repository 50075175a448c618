// Exports the gathers that plait serves. tools/mpi_functions.py writes this file from
// functions.txt.
#include "shims/mpi/intercept/collective_call.hpp"

namespace plait::mpi {
#pragma GCC visibility push(default)
extern "C" {

/// Served by plait, or passed to the MPI.
int MPI_Allgather(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf, int recvcount,
                  Handle recvtype, Handle comm) {
  constexpr Native<&NativeFunctions::Allgather> mpi;
  if (has_call_slot() && is_passed_on(args_of::Allgather(sendbuf, sendcount, sendtype, recvbuf,
                                                         recvcount, recvtype, comm),
                                      CallForm::blocking)) {
    const InCall inside(
        *call_slot,
        words_of_collective(mpi, args_of::Allgather(sendbuf, sendcount, sendtype, recvbuf,
                                                    recvcount, recvtype, comm)));
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
  }
  return run_collective(mpi, args_of::Allgather, sendbuf, sendcount, sendtype, recvbuf, recvcount,
                        recvtype, comm);
}
int PMPI_Allgather(const void*, int, Handle, void*, int, Handle, Handle)
    __attribute__((alias("MPI_Allgather")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Iallgather(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                   int recvcount, Handle recvtype, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Iallgather> mpi;
  if (is_passed_on(
          args_of::Allgather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm),
          CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, request);
  return start_collective(mpi, args_of::Allgather, request, sendbuf, sendcount, sendtype, recvbuf,
                          recvcount, recvtype, comm);
}
int PMPI_Iallgather(const void*, int, Handle, void*, int, Handle, Handle, void*)
    __attribute__((alias("MPI_Iallgather")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Allgather_init(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                       int recvcount, Handle recvtype, Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Allgather_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, info,
                     request);
  return init_collective(mpi, args_of::Allgather, info, request, sendbuf, sendcount, sendtype,
                         recvbuf, recvcount, recvtype, comm);
}
int PMPI_Allgather_init(const void*, int, Handle, void*, int, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Allgather_init")));

/// Served by plait, or passed to the MPI.
int MPI_Allgather_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                    Count recvcount, Handle recvtype, Handle comm) {
  constexpr Native<&NativeFunctions::Allgather_c, &NativeFunctions::Allgather> mpi;
  if (has_call_slot() && is_passed_on(args_of::Allgather(sendbuf, sendcount, sendtype, recvbuf,
                                                         recvcount, recvtype, comm),
                                      CallForm::blocking)) {
    const InCall inside(
        *call_slot,
        words_of_collective(mpi, args_of::Allgather(sendbuf, sendcount, sendtype, recvbuf,
                                                    recvcount, recvtype, comm)));
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
  }
  return run_collective(mpi, args_of::Allgather, sendbuf, sendcount, sendtype, recvbuf, recvcount,
                        recvtype, comm);
}
int PMPI_Allgather_c(const void*, Count, Handle, void*, Count, Handle, Handle)
    __attribute__((alias("MPI_Allgather_c")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Iallgather_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                     Count recvcount, Handle recvtype, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Iallgather_c, &NativeFunctions::Iallgather> mpi;
  if (is_passed_on(
          args_of::Allgather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm),
          CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, request);
  return start_collective(mpi, args_of::Allgather, request, sendbuf, sendcount, sendtype, recvbuf,
                          recvcount, recvtype, comm);
}
int PMPI_Iallgather_c(const void*, Count, Handle, void*, Count, Handle, Handle, void*)
    __attribute__((alias("MPI_Iallgather_c")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Allgather_init_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                         Count recvcount, Handle recvtype, Handle comm, Handle info,
                         void* request) {
  constexpr Native<&NativeFunctions::Allgather_init_c, &NativeFunctions::Allgather_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, info,
                     request);
  return init_collective(mpi, args_of::Allgather, info, request, sendbuf, sendcount, sendtype,
                         recvbuf, recvcount, recvtype, comm);
}
int PMPI_Allgather_init_c(const void*, Count, Handle, void*, Count, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Allgather_init_c")));

/// Served by plait, or passed to the MPI.
int MPI_Allgatherv(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                   const int* recvcounts, const int* displs, Handle recvtype, Handle comm) {
  constexpr Native<&NativeFunctions::Allgatherv> mpi;
  if (has_call_slot() && is_passed_on(args_of::Allgatherv(sendbuf, sendcount, sendtype, recvbuf,
                                                          recvcounts, displs, recvtype, comm),
                                      CallForm::blocking)) {
    const InCall inside(
        *call_slot,
        words_of_collective(mpi, args_of::Allgatherv(sendbuf, sendcount, sendtype, recvbuf,
                                                     recvcounts, displs, recvtype, comm)));
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm);
  }
  return run_collective(mpi, args_of::Allgatherv, sendbuf, sendcount, sendtype, recvbuf, recvcounts,
                        displs, recvtype, comm);
}
int PMPI_Allgatherv(const void*, int, Handle, void*, const int*, const int*, Handle, Handle)
    __attribute__((alias("MPI_Allgatherv")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Iallgatherv(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                    const int* recvcounts, const int* displs, Handle recvtype, Handle comm,
                    void* request) {
  constexpr Native<&NativeFunctions::Iallgatherv> mpi;
  if (is_passed_on(args_of::Allgatherv(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs,
                                       recvtype, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm,
                     request);
  return start_collective(mpi, args_of::Allgatherv, request, sendbuf, sendcount, sendtype, recvbuf,
                          recvcounts, displs, recvtype, comm);
}
int PMPI_Iallgatherv(const void*, int, Handle, void*, const int*, const int*, Handle, Handle, void*)
    __attribute__((alias("MPI_Iallgatherv")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Allgatherv_init(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                        const int* recvcounts, const int* displs, Handle recvtype, Handle comm,
                        Handle info, void* request) {
  constexpr Native<&NativeFunctions::Allgatherv_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm,
                     info, request);
  return init_collective(mpi, args_of::Allgatherv, info, request, sendbuf, sendcount, sendtype,
                         recvbuf, recvcounts, displs, recvtype, comm);
}
int PMPI_Allgatherv_init(const void*, int, Handle, void*, const int*, const int*, Handle, Handle,
                         Handle, void*) __attribute__((alias("MPI_Allgatherv_init")));

/// Served by plait, or passed to the MPI.
int MPI_Allgatherv_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                     const Count* recvcounts, const std::intptr_t* displs, Handle recvtype,
                     Handle comm) {
  constexpr Native<&NativeFunctions::Allgatherv_c, &NativeFunctions::Allgatherv> mpi;
  if (has_call_slot() && is_passed_on(args_of::Allgatherv(sendbuf, sendcount, sendtype, recvbuf,
                                                          recvcounts, displs, recvtype, comm),
                                      CallForm::blocking)) {
    const InCall inside(
        *call_slot,
        words_of_collective(mpi, args_of::Allgatherv(sendbuf, sendcount, sendtype, recvbuf,
                                                     recvcounts, displs, recvtype, comm)));
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm);
  }
  return run_collective(mpi, args_of::Allgatherv, sendbuf, sendcount, sendtype, recvbuf, recvcounts,
                        displs, recvtype, comm);
}
int PMPI_Allgatherv_c(const void*, Count, Handle, void*, const Count*, const std::intptr_t*, Handle,
                      Handle) __attribute__((alias("MPI_Allgatherv_c")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Iallgatherv_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                      const Count* recvcounts, const std::intptr_t* displs, Handle recvtype,
                      Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Iallgatherv_c, &NativeFunctions::Iallgatherv> mpi;
  if (is_passed_on(args_of::Allgatherv(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs,
                                       recvtype, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm,
                     request);
  return start_collective(mpi, args_of::Allgatherv, request, sendbuf, sendcount, sendtype, recvbuf,
                          recvcounts, displs, recvtype, comm);
}
int PMPI_Iallgatherv_c(const void*, Count, Handle, void*, const Count*, const std::intptr_t*,
                       Handle, Handle, void*) __attribute__((alias("MPI_Iallgatherv_c")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Allgatherv_init_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                          const Count* recvcounts, const std::intptr_t* displs, Handle recvtype,
                          Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Allgatherv_init_c, &NativeFunctions::Allgatherv_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm,
                     info, request);
  return init_collective(mpi, args_of::Allgatherv, info, request, sendbuf, sendcount, sendtype,
                         recvbuf, recvcounts, displs, recvtype, comm);
}
int PMPI_Allgatherv_init_c(const void*, Count, Handle, void*, const Count*, const std::intptr_t*,
                           Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Allgatherv_init_c")));

/// Served by plait, or passed to the MPI.
int MPI_Gather(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf, int recvcount,
               Handle recvtype, int root, Handle comm) {
  constexpr Native<&NativeFunctions::Gather> mpi;
  if (has_call_slot() && is_passed_on(args_of::Gather(sendbuf, sendcount, sendtype, recvbuf,
                                                      recvcount, recvtype, root, comm),
                                      CallForm::blocking)) {
    const InCall inside(
        *call_slot, words_of_collective(mpi, args_of::Gather(sendbuf, sendcount, sendtype, recvbuf,
                                                             recvcount, recvtype, root, comm)));
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm);
  }
  return run_collective(mpi, args_of::Gather, sendbuf, sendcount, sendtype, recvbuf, recvcount,
                        recvtype, root, comm);
}
int PMPI_Gather(const void*, int, Handle, void*, int, Handle, int, Handle)
    __attribute__((alias("MPI_Gather")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Igather(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf, int recvcount,
                Handle recvtype, int root, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Igather> mpi;
  if (is_passed_on(
          args_of::Gather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm),
          CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm,
                     request);
  return start_collective(mpi, args_of::Gather, request, sendbuf, sendcount, sendtype, recvbuf,
                          recvcount, recvtype, root, comm);
}
int PMPI_Igather(const void*, int, Handle, void*, int, Handle, int, Handle, void*)
    __attribute__((alias("MPI_Igather")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Gather_init(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                    int recvcount, Handle recvtype, int root, Handle comm, Handle info,
                    void* request) {
  constexpr Native<&NativeFunctions::Gather_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm, info,
                     request);
  return init_collective(mpi, args_of::Gather, info, request, sendbuf, sendcount, sendtype, recvbuf,
                         recvcount, recvtype, root, comm);
}
int PMPI_Gather_init(const void*, int, Handle, void*, int, Handle, int, Handle, Handle, void*)
    __attribute__((alias("MPI_Gather_init")));

/// Served by plait, or passed to the MPI.
int MPI_Gather_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                 Count recvcount, Handle recvtype, int root, Handle comm) {
  constexpr Native<&NativeFunctions::Gather_c, &NativeFunctions::Gather> mpi;
  if (has_call_slot() && is_passed_on(args_of::Gather(sendbuf, sendcount, sendtype, recvbuf,
                                                      recvcount, recvtype, root, comm),
                                      CallForm::blocking)) {
    const InCall inside(
        *call_slot, words_of_collective(mpi, args_of::Gather(sendbuf, sendcount, sendtype, recvbuf,
                                                             recvcount, recvtype, root, comm)));
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm);
  }
  return run_collective(mpi, args_of::Gather, sendbuf, sendcount, sendtype, recvbuf, recvcount,
                        recvtype, root, comm);
}
int PMPI_Gather_c(const void*, Count, Handle, void*, Count, Handle, int, Handle)
    __attribute__((alias("MPI_Gather_c")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Igather_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                  Count recvcount, Handle recvtype, int root, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Igather_c, &NativeFunctions::Igather> mpi;
  if (is_passed_on(
          args_of::Gather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm),
          CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm,
                     request);
  return start_collective(mpi, args_of::Gather, request, sendbuf, sendcount, sendtype, recvbuf,
                          recvcount, recvtype, root, comm);
}
int PMPI_Igather_c(const void*, Count, Handle, void*, Count, Handle, int, Handle, void*)
    __attribute__((alias("MPI_Igather_c")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Gather_init_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                      Count recvcount, Handle recvtype, int root, Handle comm, Handle info,
                      void* request) {
  constexpr Native<&NativeFunctions::Gather_init_c, &NativeFunctions::Gather_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm, info,
                     request);
  return init_collective(mpi, args_of::Gather, info, request, sendbuf, sendcount, sendtype, recvbuf,
                         recvcount, recvtype, root, comm);
}
int PMPI_Gather_init_c(const void*, Count, Handle, void*, Count, Handle, int, Handle, Handle, void*)
    __attribute__((alias("MPI_Gather_init_c")));

/// Served by plait, or passed to the MPI.
int MPI_Gatherv(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                const int* recvcounts, const int* displs, Handle recvtype, int root, Handle comm) {
  constexpr Native<&NativeFunctions::Gatherv> mpi;
  if (has_call_slot() && is_passed_on(args_of::Gatherv(sendbuf, sendcount, sendtype, recvbuf,
                                                       recvcounts, displs, recvtype, root, comm),
                                      CallForm::blocking)) {
    const InCall inside(
        *call_slot,
        words_of_collective(mpi, args_of::Gatherv(sendbuf, sendcount, sendtype, recvbuf, recvcounts,
                                                  displs, recvtype, root, comm)));
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root,
                     comm);
  }
  return run_collective(mpi, args_of::Gatherv, sendbuf, sendcount, sendtype, recvbuf, recvcounts,
                        displs, recvtype, root, comm);
}
int PMPI_Gatherv(const void*, int, Handle, void*, const int*, const int*, Handle, int, Handle)
    __attribute__((alias("MPI_Gatherv")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Igatherv(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                 const int* recvcounts, const int* displs, Handle recvtype, int root, Handle comm,
                 void* request) {
  constexpr Native<&NativeFunctions::Igatherv> mpi;
  if (is_passed_on(args_of::Gatherv(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs,
                                    recvtype, root, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root,
                     comm, request);
  return start_collective(mpi, args_of::Gatherv, request, sendbuf, sendcount, sendtype, recvbuf,
                          recvcounts, displs, recvtype, root, comm);
}
int PMPI_Igatherv(const void*, int, Handle, void*, const int*, const int*, Handle, int, Handle,
                  void*) __attribute__((alias("MPI_Igatherv")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Gatherv_init(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                     const int* recvcounts, const int* displs, Handle recvtype, int root,
                     Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Gatherv_init> mpi;
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root,
                     comm, info, request);
  return init_collective(mpi, args_of::Gatherv, info, request, sendbuf, sendcount, sendtype,
                         recvbuf, recvcounts, displs, recvtype, root, comm);
}
int PMPI_Gatherv_init(const void*, int, Handle, void*, const int*, const int*, Handle, int, Handle,
                      Handle, void*) __attribute__((alias("MPI_Gatherv_init")));

/// Served by plait, or passed to the MPI.
int MPI_Gatherv_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                  const Count* recvcounts, const std::intptr_t* displs, Handle recvtype, int root,
                  Handle comm) {
  constexpr Native<&NativeFunctions::Gatherv_c, &NativeFunctions::Gatherv> mpi;
  if (mpi.is_missing()) null_unless_root(root, comm, recvcounts, displs);
  if (has_call_slot() && is_passed_on(args_of::Gatherv(sendbuf, sendcount, sendtype, recvbuf,
                                                       recvcounts, displs, recvtype, root, comm),
                                      CallForm::blocking)) {
    const InCall inside(
        *call_slot,
        words_of_collective(mpi, args_of::Gatherv(sendbuf, sendcount, sendtype, recvbuf, recvcounts,
                                                  displs, recvtype, root, comm)));
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root,
                     comm);
  }
  return run_collective(mpi, args_of::Gatherv, sendbuf, sendcount, sendtype, recvbuf, recvcounts,
                        displs, recvtype, root, comm);
}
int PMPI_Gatherv_c(const void*, Count, Handle, void*, const Count*, const std::intptr_t*, Handle,
                   int, Handle) __attribute__((alias("MPI_Gatherv_c")));

/// Non-blocking. Served by plait, or passed to the MPI.
int MPI_Igatherv_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                   const Count* recvcounts, const std::intptr_t* displs, Handle recvtype, int root,
                   Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Igatherv_c, &NativeFunctions::Igatherv> mpi;
  if (mpi.is_missing()) null_unless_root(root, comm, recvcounts, displs);
  if (is_passed_on(args_of::Gatherv(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs,
                                    recvtype, root, comm),
                   CallForm::nonblocking))
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root,
                     comm, request);
  return start_collective(mpi, args_of::Gatherv, request, sendbuf, sendcount, sendtype, recvbuf,
                          recvcounts, displs, recvtype, root, comm);
}
int PMPI_Igatherv_c(const void*, Count, Handle, void*, const Count*, const std::intptr_t*, Handle,
                    int, Handle, void*) __attribute__((alias("MPI_Igatherv_c")));

/// Persistent. Served by plait, or passed to the MPI.
int MPI_Gatherv_init_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                       const Count* recvcounts, const std::intptr_t* displs, Handle recvtype,
                       int root, Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Gatherv_init_c, &NativeFunctions::Gatherv_init> mpi;
  if (mpi.is_missing()) null_unless_root(root, comm, recvcounts, displs);
  if (!is_intercepting())
    return mpi(comm)(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root,
                     comm, info, request);
  return init_collective(mpi, args_of::Gatherv, info, request, sendbuf, sendcount, sendtype,
                         recvbuf, recvcounts, displs, recvtype, root, comm);
}
int PMPI_Gatherv_init_c(const void*, Count, Handle, void*, const Count*, const std::intptr_t*,
                        Handle, int, Handle, Handle, void*)
    __attribute__((alias("MPI_Gatherv_init_c")));

}  // extern "C"
#pragma GCC visibility pop
}  // namespace plait::mpi
