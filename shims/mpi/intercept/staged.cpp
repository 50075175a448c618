// Exports MPI_Alltoallw, the scans and MPI_Reduce_local, which the native MPI always runs.
// tools/mpi_functions.py writes this file from functions.txt.
#include "shims/mpi/intercept/staged_call.hpp"

namespace plait::mpi {
#pragma GCC visibility push(default)
extern "C" {

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Alltoallw(const void* sendbuf, const int* sendcounts, const int* sdispls,
                  const void* sendtypes, void* recvbuf, const int* recvcounts, const int* rdispls,
                  const void* recvtypes, Handle comm) {
  constexpr Native<&NativeFunctions::Alltoallw> mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm,
      [&](CallStaging& staging) {
        staging.add_of_ranks(
            comm,
            PartsBuffer::mixed(sendbuf, CountArray(sendcounts), CountArray(sdispls), sendtypes),
            PartsBuffer::mixed(recvbuf, CountArray(recvcounts), CountArray(rdispls), recvtypes));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes,
      comm);
}
int PMPI_Alltoallw(const void*, const int*, const int*, const void*, void*, const int*, const int*,
                   const void*, Handle) __attribute__((alias("MPI_Alltoallw")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ialltoallw(const void* sendbuf, const int* sendcounts, const int* sdispls,
                   const void* sendtypes, void* recvbuf, const int* recvcounts, const int* rdispls,
                   const void* recvtypes, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ialltoallw> mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_ranks(
            comm,
            PartsBuffer::mixed(sendbuf, CountArray(sendcounts), CountArray(sdispls), sendtypes),
            PartsBuffer::mixed(recvbuf, CountArray(recvcounts), CountArray(rdispls), recvtypes));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes,
      comm);
}
int PMPI_Ialltoallw(const void*, const int*, const int*, const void*, void*, const int*, const int*,
                    const void*, Handle, void*) __attribute__((alias("MPI_Ialltoallw")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Alltoallw_init(const void* sendbuf, const int* sendcounts, const int* sdispls,
                       const void* sendtypes, void* recvbuf, const int* recvcounts,
                       const int* rdispls, const void* recvtypes, Handle comm, Handle info,
                       void* request) {
  constexpr Native<&NativeFunctions::Alltoallw_init> mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_ranks(
            comm,
            PartsBuffer::mixed(sendbuf, CountArray(sendcounts), CountArray(sdispls), sendtypes),
            PartsBuffer::mixed(recvbuf, CountArray(recvcounts), CountArray(rdispls), recvtypes));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes,
      comm, info);
}
int PMPI_Alltoallw_init(const void*, const int*, const int*, const void*, void*, const int*,
                        const int*, const void*, Handle, Handle, void*)
    __attribute__((alias("MPI_Alltoallw_init")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Alltoallw_c(const void* sendbuf, const Count* sendcounts, const std::intptr_t* sdispls,
                    const void* sendtypes, void* recvbuf, const Count* recvcounts,
                    const std::intptr_t* rdispls, const void* recvtypes, Handle comm) {
  constexpr Native<&NativeFunctions::Alltoallw_c, &NativeFunctions::Alltoallw> mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm,
      [&](CallStaging& staging) {
        staging.add_of_ranks(
            comm,
            PartsBuffer::mixed(sendbuf, CountArray(sendcounts), CountArray(sdispls), sendtypes),
            PartsBuffer::mixed(recvbuf, CountArray(recvcounts), CountArray(rdispls), recvtypes));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes,
      comm);
}
int PMPI_Alltoallw_c(const void*, const Count*, const std::intptr_t*, const void*, void*,
                     const Count*, const std::intptr_t*, const void*, Handle)
    __attribute__((alias("MPI_Alltoallw_c")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ialltoallw_c(const void* sendbuf, const Count* sendcounts, const std::intptr_t* sdispls,
                     const void* sendtypes, void* recvbuf, const Count* recvcounts,
                     const std::intptr_t* rdispls, const void* recvtypes, Handle comm,
                     void* request) {
  constexpr Native<&NativeFunctions::Ialltoallw_c, &NativeFunctions::Ialltoallw> mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_ranks(
            comm,
            PartsBuffer::mixed(sendbuf, CountArray(sendcounts), CountArray(sdispls), sendtypes),
            PartsBuffer::mixed(recvbuf, CountArray(recvcounts), CountArray(rdispls), recvtypes));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes,
      comm);
}
int PMPI_Ialltoallw_c(const void*, const Count*, const std::intptr_t*, const void*, void*,
                      const Count*, const std::intptr_t*, const void*, Handle, void*)
    __attribute__((alias("MPI_Ialltoallw_c")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Alltoallw_init_c(const void* sendbuf, const Count* sendcounts, const std::intptr_t* sdispls,
                         const void* sendtypes, void* recvbuf, const Count* recvcounts,
                         const std::intptr_t* rdispls, const void* recvtypes, Handle comm,
                         Handle info, void* request) {
  constexpr Native<&NativeFunctions::Alltoallw_init_c, &NativeFunctions::Alltoallw_init> mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_ranks(
            comm,
            PartsBuffer::mixed(sendbuf, CountArray(sendcounts), CountArray(sdispls), sendtypes),
            PartsBuffer::mixed(recvbuf, CountArray(recvcounts), CountArray(rdispls), recvtypes));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes,
      comm, info);
}
int PMPI_Alltoallw_init_c(const void*, const Count*, const std::intptr_t*, const void*, void*,
                          const Count*, const std::intptr_t*, const void*, Handle, Handle, void*)
    __attribute__((alias("MPI_Alltoallw_init_c")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Scan(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
             Handle comm) {
  constexpr Native<&NativeFunctions::Scan> mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm, [&](CallStaging& staging) { staging.add_scan(sendbuf, recvbuf, datatype, count); },
      mpi(comm), sendbuf, recvbuf, count, datatype, op, comm);
}
int PMPI_Scan(const void*, void*, int, Handle, Handle, Handle) __attribute__((alias("MPI_Scan")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Iscan(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
              Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Iscan> mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) { staging.add_scan(sendbuf, recvbuf, datatype, count); }, mpi(comm),
      sendbuf, recvbuf, count, datatype, op, comm);
}
int PMPI_Iscan(const void*, void*, int, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Iscan")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Scan_init(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                  Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Scan_init> mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) { staging.add_scan(sendbuf, recvbuf, datatype, count); }, mpi(comm),
      sendbuf, recvbuf, count, datatype, op, comm, info);
}
int PMPI_Scan_init(const void*, void*, int, Handle, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Scan_init")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Scan_c(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
               Handle comm) {
  constexpr Native<&NativeFunctions::Scan_c, &NativeFunctions::Scan> mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm, [&](CallStaging& staging) { staging.add_scan(sendbuf, recvbuf, datatype, count); },
      mpi(comm), sendbuf, recvbuf, count, datatype, op, comm);
}
int PMPI_Scan_c(const void*, void*, Count, Handle, Handle, Handle)
    __attribute__((alias("MPI_Scan_c")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Iscan_c(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Iscan_c, &NativeFunctions::Iscan> mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) { staging.add_scan(sendbuf, recvbuf, datatype, count); }, mpi(comm),
      sendbuf, recvbuf, count, datatype, op, comm);
}
int PMPI_Iscan_c(const void*, void*, Count, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Iscan_c")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Scan_init_c(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                    Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Scan_init_c, &NativeFunctions::Scan_init> mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) { staging.add_scan(sendbuf, recvbuf, datatype, count); }, mpi(comm),
      sendbuf, recvbuf, count, datatype, op, comm, info);
}
int PMPI_Scan_init_c(const void*, void*, Count, Handle, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Scan_init_c")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Exscan(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
               Handle comm) {
  constexpr Native<&NativeFunctions::Exscan> mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm, [&](CallStaging& staging) { staging.add_scan(sendbuf, recvbuf, datatype, count); },
      mpi(comm), sendbuf, recvbuf, count, datatype, op, comm);
}
int PMPI_Exscan(const void*, void*, int, Handle, Handle, Handle)
    __attribute__((alias("MPI_Exscan")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Iexscan(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Iexscan> mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) { staging.add_scan(sendbuf, recvbuf, datatype, count); }, mpi(comm),
      sendbuf, recvbuf, count, datatype, op, comm);
}
int PMPI_Iexscan(const void*, void*, int, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Iexscan")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Exscan_init(const void* sendbuf, void* recvbuf, int count, Handle datatype, Handle op,
                    Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Exscan_init> mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) { staging.add_scan(sendbuf, recvbuf, datatype, count); }, mpi(comm),
      sendbuf, recvbuf, count, datatype, op, comm, info);
}
int PMPI_Exscan_init(const void*, void*, int, Handle, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Exscan_init")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Exscan_c(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                 Handle comm) {
  constexpr Native<&NativeFunctions::Exscan_c, &NativeFunctions::Exscan> mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm, [&](CallStaging& staging) { staging.add_scan(sendbuf, recvbuf, datatype, count); },
      mpi(comm), sendbuf, recvbuf, count, datatype, op, comm);
}
int PMPI_Exscan_c(const void*, void*, Count, Handle, Handle, Handle)
    __attribute__((alias("MPI_Exscan_c")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Iexscan_c(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                  Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Iexscan_c, &NativeFunctions::Iexscan> mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) { staging.add_scan(sendbuf, recvbuf, datatype, count); }, mpi(comm),
      sendbuf, recvbuf, count, datatype, op, comm);
}
int PMPI_Iexscan_c(const void*, void*, Count, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Iexscan_c")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Exscan_init_c(const void* sendbuf, void* recvbuf, Count count, Handle datatype, Handle op,
                      Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Exscan_init_c, &NativeFunctions::Exscan_init> mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) { staging.add_scan(sendbuf, recvbuf, datatype, count); }, mpi(comm),
      sendbuf, recvbuf, count, datatype, op, comm, info);
}
int PMPI_Exscan_init_c(const void*, void*, Count, Handle, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Exscan_init_c")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Reduce_local(const void* inbuf, void* inoutbuf, int count, Handle datatype, Handle op) {
  constexpr Native<&NativeFunctions::Reduce_local> mpi;
  return staged(
      native().abi.world,
      [&](CallStaging& staging) { staging.add_scan(inbuf, inoutbuf, datatype, count); },
      mpi(native().abi.world), inbuf, inoutbuf, count, datatype, op);
}
int PMPI_Reduce_local(const void*, void*, int, Handle, Handle)
    __attribute__((alias("MPI_Reduce_local")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Reduce_local_c(const void* inbuf, void* inoutbuf, Count count, Handle datatype, Handle op) {
  constexpr Native<&NativeFunctions::Reduce_local_c, &NativeFunctions::Reduce_local> mpi;
  return staged(
      native().abi.world,
      [&](CallStaging& staging) { staging.add_scan(inbuf, inoutbuf, datatype, count); },
      mpi(native().abi.world), inbuf, inoutbuf, count, datatype, op);
}
int PMPI_Reduce_local_c(const void*, void*, Count, Handle, Handle)
    __attribute__((alias("MPI_Reduce_local_c")));

}  // extern "C"
#pragma GCC visibility pop
}  // namespace plait::mpi
