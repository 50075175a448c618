// Exports the neighbour collectives, which the native MPI always runs. tools/mpi_functions.py
// writes this file from functions.txt.
#include "shims/mpi/intercept/staged_call.hpp"

namespace plait::mpi {
#pragma GCC visibility push(default)
extern "C" {

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_allgather(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                           int recvcount, Handle recvtype, Handle comm) {
  constexpr Native<&NativeFunctions::Neighbor_allgather> mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(comm, PartsBuffer::one(sendbuf, sendcount, sendtype),
                                  PartsBuffer::alike(recvbuf, recvcount, recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
}
int PMPI_Neighbor_allgather(const void*, int, Handle, void*, int, Handle, Handle)
    __attribute__((alias("MPI_Neighbor_allgather")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ineighbor_allgather(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                            int recvcount, Handle recvtype, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ineighbor_allgather> mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(comm, PartsBuffer::one(sendbuf, sendcount, sendtype),
                                  PartsBuffer::alike(recvbuf, recvcount, recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
}
int PMPI_Ineighbor_allgather(const void*, int, Handle, void*, int, Handle, Handle, void*)
    __attribute__((alias("MPI_Ineighbor_allgather")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_allgather_init(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                                int recvcount, Handle recvtype, Handle comm, Handle info,
                                void* request) {
  constexpr Native<&NativeFunctions::Neighbor_allgather_init> mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(comm, PartsBuffer::one(sendbuf, sendcount, sendtype),
                                  PartsBuffer::alike(recvbuf, recvcount, recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, info);
}
int PMPI_Neighbor_allgather_init(const void*, int, Handle, void*, int, Handle, Handle, Handle,
                                 void*) __attribute__((alias("MPI_Neighbor_allgather_init")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_allgather_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                             Count recvcount, Handle recvtype, Handle comm) {
  constexpr Native<&NativeFunctions::Neighbor_allgather_c, &NativeFunctions::Neighbor_allgather,
                   neighbours_in>
      mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(comm, PartsBuffer::one(sendbuf, sendcount, sendtype),
                                  PartsBuffer::alike(recvbuf, recvcount, recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
}
int PMPI_Neighbor_allgather_c(const void*, Count, Handle, void*, Count, Handle, Handle)
    __attribute__((alias("MPI_Neighbor_allgather_c")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ineighbor_allgather_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                              Count recvcount, Handle recvtype, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ineighbor_allgather_c, &NativeFunctions::Ineighbor_allgather,
                   neighbours_in>
      mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(comm, PartsBuffer::one(sendbuf, sendcount, sendtype),
                                  PartsBuffer::alike(recvbuf, recvcount, recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
}
int PMPI_Ineighbor_allgather_c(const void*, Count, Handle, void*, Count, Handle, Handle, void*)
    __attribute__((alias("MPI_Ineighbor_allgather_c")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_allgather_init_c(const void* sendbuf, Count sendcount, Handle sendtype,
                                  void* recvbuf, Count recvcount, Handle recvtype, Handle comm,
                                  Handle info, void* request) {
  constexpr Native<&NativeFunctions::Neighbor_allgather_init_c,
                   &NativeFunctions::Neighbor_allgather_init, neighbours_in>
      mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(comm, PartsBuffer::one(sendbuf, sendcount, sendtype),
                                  PartsBuffer::alike(recvbuf, recvcount, recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, info);
}
int PMPI_Neighbor_allgather_init_c(const void*, Count, Handle, void*, Count, Handle, Handle, Handle,
                                   void*) __attribute__((alias("MPI_Neighbor_allgather_init_c")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_allgatherv(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                            const int* recvcounts, const int* displs, Handle recvtype,
                            Handle comm) {
  constexpr Native<&NativeFunctions::Neighbor_allgatherv> mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm, PartsBuffer::one(sendbuf, sendcount, sendtype),
            PartsBuffer::unlike(recvbuf, CountArray(recvcounts), CountArray(displs), recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm);
}
int PMPI_Neighbor_allgatherv(const void*, int, Handle, void*, const int*, const int*, Handle,
                             Handle) __attribute__((alias("MPI_Neighbor_allgatherv")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ineighbor_allgatherv(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                             const int* recvcounts, const int* displs, Handle recvtype, Handle comm,
                             void* request) {
  constexpr Native<&NativeFunctions::Ineighbor_allgatherv> mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm, PartsBuffer::one(sendbuf, sendcount, sendtype),
            PartsBuffer::unlike(recvbuf, CountArray(recvcounts), CountArray(displs), recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm);
}
int PMPI_Ineighbor_allgatherv(const void*, int, Handle, void*, const int*, const int*, Handle,
                              Handle, void*) __attribute__((alias("MPI_Ineighbor_allgatherv")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_allgatherv_init(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                                 const int* recvcounts, const int* displs, Handle recvtype,
                                 Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Neighbor_allgatherv_init> mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm, PartsBuffer::one(sendbuf, sendcount, sendtype),
            PartsBuffer::unlike(recvbuf, CountArray(recvcounts), CountArray(displs), recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm, info);
}
int PMPI_Neighbor_allgatherv_init(const void*, int, Handle, void*, const int*, const int*, Handle,
                                  Handle, Handle, void*)
    __attribute__((alias("MPI_Neighbor_allgatherv_init")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_allgatherv_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                              const Count* recvcounts, const std::intptr_t* displs, Handle recvtype,
                              Handle comm) {
  constexpr Native<&NativeFunctions::Neighbor_allgatherv_c, &NativeFunctions::Neighbor_allgatherv,
                   sources_in>
      mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm, PartsBuffer::one(sendbuf, sendcount, sendtype),
            PartsBuffer::unlike(recvbuf, CountArray(recvcounts), CountArray(displs), recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm);
}
int PMPI_Neighbor_allgatherv_c(const void*, Count, Handle, void*, const Count*,
                               const std::intptr_t*, Handle, Handle)
    __attribute__((alias("MPI_Neighbor_allgatherv_c")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ineighbor_allgatherv_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                               const Count* recvcounts, const std::intptr_t* displs,
                               Handle recvtype, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ineighbor_allgatherv_c, &NativeFunctions::Ineighbor_allgatherv,
                   sources_in>
      mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm, PartsBuffer::one(sendbuf, sendcount, sendtype),
            PartsBuffer::unlike(recvbuf, CountArray(recvcounts), CountArray(displs), recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm);
}
int PMPI_Ineighbor_allgatherv_c(const void*, Count, Handle, void*, const Count*,
                                const std::intptr_t*, Handle, Handle, void*)
    __attribute__((alias("MPI_Ineighbor_allgatherv_c")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_allgatherv_init_c(const void* sendbuf, Count sendcount, Handle sendtype,
                                   void* recvbuf, const Count* recvcounts,
                                   const std::intptr_t* displs, Handle recvtype, Handle comm,
                                   Handle info, void* request) {
  constexpr Native<&NativeFunctions::Neighbor_allgatherv_init_c,
                   &NativeFunctions::Neighbor_allgatherv_init, sources_in>
      mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm, PartsBuffer::one(sendbuf, sendcount, sendtype),
            PartsBuffer::unlike(recvbuf, CountArray(recvcounts), CountArray(displs), recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm, info);
}
int PMPI_Neighbor_allgatherv_init_c(const void*, Count, Handle, void*, const Count*,
                                    const std::intptr_t*, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Neighbor_allgatherv_init_c")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_alltoall(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                          int recvcount, Handle recvtype, Handle comm) {
  constexpr Native<&NativeFunctions::Neighbor_alltoall> mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(comm, PartsBuffer::alike(sendbuf, sendcount, sendtype),
                                  PartsBuffer::alike(recvbuf, recvcount, recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
}
int PMPI_Neighbor_alltoall(const void*, int, Handle, void*, int, Handle, Handle)
    __attribute__((alias("MPI_Neighbor_alltoall")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ineighbor_alltoall(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                           int recvcount, Handle recvtype, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ineighbor_alltoall> mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(comm, PartsBuffer::alike(sendbuf, sendcount, sendtype),
                                  PartsBuffer::alike(recvbuf, recvcount, recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
}
int PMPI_Ineighbor_alltoall(const void*, int, Handle, void*, int, Handle, Handle, void*)
    __attribute__((alias("MPI_Ineighbor_alltoall")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_alltoall_init(const void* sendbuf, int sendcount, Handle sendtype, void* recvbuf,
                               int recvcount, Handle recvtype, Handle comm, Handle info,
                               void* request) {
  constexpr Native<&NativeFunctions::Neighbor_alltoall_init> mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(comm, PartsBuffer::alike(sendbuf, sendcount, sendtype),
                                  PartsBuffer::alike(recvbuf, recvcount, recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, info);
}
int PMPI_Neighbor_alltoall_init(const void*, int, Handle, void*, int, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Neighbor_alltoall_init")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_alltoall_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                            Count recvcount, Handle recvtype, Handle comm) {
  constexpr Native<&NativeFunctions::Neighbor_alltoall_c, &NativeFunctions::Neighbor_alltoall,
                   neighbours_in>
      mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(comm, PartsBuffer::alike(sendbuf, sendcount, sendtype),
                                  PartsBuffer::alike(recvbuf, recvcount, recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
}
int PMPI_Neighbor_alltoall_c(const void*, Count, Handle, void*, Count, Handle, Handle)
    __attribute__((alias("MPI_Neighbor_alltoall_c")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ineighbor_alltoall_c(const void* sendbuf, Count sendcount, Handle sendtype, void* recvbuf,
                             Count recvcount, Handle recvtype, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ineighbor_alltoall_c, &NativeFunctions::Ineighbor_alltoall,
                   neighbours_in>
      mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(comm, PartsBuffer::alike(sendbuf, sendcount, sendtype),
                                  PartsBuffer::alike(recvbuf, recvcount, recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
}
int PMPI_Ineighbor_alltoall_c(const void*, Count, Handle, void*, Count, Handle, Handle, void*)
    __attribute__((alias("MPI_Ineighbor_alltoall_c")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_alltoall_init_c(const void* sendbuf, Count sendcount, Handle sendtype,
                                 void* recvbuf, Count recvcount, Handle recvtype, Handle comm,
                                 Handle info, void* request) {
  constexpr Native<&NativeFunctions::Neighbor_alltoall_init_c,
                   &NativeFunctions::Neighbor_alltoall_init, neighbours_in>
      mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(comm, PartsBuffer::alike(sendbuf, sendcount, sendtype),
                                  PartsBuffer::alike(recvbuf, recvcount, recvtype));
      },
      mpi(comm), sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, info);
}
int PMPI_Neighbor_alltoall_init_c(const void*, Count, Handle, void*, Count, Handle, Handle, Handle,
                                  void*) __attribute__((alias("MPI_Neighbor_alltoall_init_c")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_alltoallv(const void* sendbuf, const int* sendcounts, const int* sdispls,
                           Handle sendtype, void* recvbuf, const int* recvcounts,
                           const int* rdispls, Handle recvtype, Handle comm) {
  constexpr Native<&NativeFunctions::Neighbor_alltoallv> mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm,
            PartsBuffer::unlike(sendbuf, CountArray(sendcounts), CountArray(sdispls), sendtype),
            PartsBuffer::unlike(recvbuf, CountArray(recvcounts), CountArray(rdispls), recvtype));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype,
      comm);
}
int PMPI_Neighbor_alltoallv(const void*, const int*, const int*, Handle, void*, const int*,
                            const int*, Handle, Handle)
    __attribute__((alias("MPI_Neighbor_alltoallv")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ineighbor_alltoallv(const void* sendbuf, const int* sendcounts, const int* sdispls,
                            Handle sendtype, void* recvbuf, const int* recvcounts,
                            const int* rdispls, Handle recvtype, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ineighbor_alltoallv> mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm,
            PartsBuffer::unlike(sendbuf, CountArray(sendcounts), CountArray(sdispls), sendtype),
            PartsBuffer::unlike(recvbuf, CountArray(recvcounts), CountArray(rdispls), recvtype));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype,
      comm);
}
int PMPI_Ineighbor_alltoallv(const void*, const int*, const int*, Handle, void*, const int*,
                             const int*, Handle, Handle, void*)
    __attribute__((alias("MPI_Ineighbor_alltoallv")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_alltoallv_init(const void* sendbuf, const int* sendcounts, const int* sdispls,
                                Handle sendtype, void* recvbuf, const int* recvcounts,
                                const int* rdispls, Handle recvtype, Handle comm, Handle info,
                                void* request) {
  constexpr Native<&NativeFunctions::Neighbor_alltoallv_init> mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm,
            PartsBuffer::unlike(sendbuf, CountArray(sendcounts), CountArray(sdispls), sendtype),
            PartsBuffer::unlike(recvbuf, CountArray(recvcounts), CountArray(rdispls), recvtype));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype,
      comm, info);
}
int PMPI_Neighbor_alltoallv_init(const void*, const int*, const int*, Handle, void*, const int*,
                                 const int*, Handle, Handle, Handle, void*)
    __attribute__((alias("MPI_Neighbor_alltoallv_init")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_alltoallv_c(const void* sendbuf, const Count* sendcounts,
                             const std::intptr_t* sdispls, Handle sendtype, void* recvbuf,
                             const Count* recvcounts, const std::intptr_t* rdispls, Handle recvtype,
                             Handle comm) {
  constexpr Native<&NativeFunctions::Neighbor_alltoallv_c, &NativeFunctions::Neighbor_alltoallv,
                   neighbours_in>
      mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm,
            PartsBuffer::unlike(sendbuf, CountArray(sendcounts), CountArray(sdispls), sendtype),
            PartsBuffer::unlike(recvbuf, CountArray(recvcounts), CountArray(rdispls), recvtype));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype,
      comm);
}
int PMPI_Neighbor_alltoallv_c(const void*, const Count*, const std::intptr_t*, Handle, void*,
                              const Count*, const std::intptr_t*, Handle, Handle)
    __attribute__((alias("MPI_Neighbor_alltoallv_c")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ineighbor_alltoallv_c(const void* sendbuf, const Count* sendcounts,
                              const std::intptr_t* sdispls, Handle sendtype, void* recvbuf,
                              const Count* recvcounts, const std::intptr_t* rdispls,
                              Handle recvtype, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Ineighbor_alltoallv_c, &NativeFunctions::Ineighbor_alltoallv,
                   neighbours_in>
      mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm,
            PartsBuffer::unlike(sendbuf, CountArray(sendcounts), CountArray(sdispls), sendtype),
            PartsBuffer::unlike(recvbuf, CountArray(recvcounts), CountArray(rdispls), recvtype));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype,
      comm);
}
int PMPI_Ineighbor_alltoallv_c(const void*, const Count*, const std::intptr_t*, Handle, void*,
                               const Count*, const std::intptr_t*, Handle, Handle, void*)
    __attribute__((alias("MPI_Ineighbor_alltoallv_c")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_alltoallv_init_c(const void* sendbuf, const Count* sendcounts,
                                  const std::intptr_t* sdispls, Handle sendtype, void* recvbuf,
                                  const Count* recvcounts, const std::intptr_t* rdispls,
                                  Handle recvtype, Handle comm, Handle info, void* request) {
  constexpr Native<&NativeFunctions::Neighbor_alltoallv_init_c,
                   &NativeFunctions::Neighbor_alltoallv_init, neighbours_in>
      mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm,
            PartsBuffer::unlike(sendbuf, CountArray(sendcounts), CountArray(sdispls), sendtype),
            PartsBuffer::unlike(recvbuf, CountArray(recvcounts), CountArray(rdispls), recvtype));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype,
      comm, info);
}
int PMPI_Neighbor_alltoallv_init_c(const void*, const Count*, const std::intptr_t*, Handle, void*,
                                   const Count*, const std::intptr_t*, Handle, Handle, Handle,
                                   void*) __attribute__((alias("MPI_Neighbor_alltoallv_init_c")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_alltoallw(const void* sendbuf, const int* sendcounts, const void* sdispls,
                           const void* sendtypes, void* recvbuf, const int* recvcounts,
                           const void* rdispls, const void* recvtypes, Handle comm) {
  constexpr Native<&NativeFunctions::Neighbor_alltoallw> mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm,
            PartsBuffer::mixed(sendbuf, CountArray(sendcounts), addresses(sdispls), sendtypes),
            PartsBuffer::mixed(recvbuf, CountArray(recvcounts), addresses(rdispls), recvtypes));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes,
      comm);
}
int PMPI_Neighbor_alltoallw(const void*, const int*, const void*, const void*, void*, const int*,
                            const void*, const void*, Handle)
    __attribute__((alias("MPI_Neighbor_alltoallw")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ineighbor_alltoallw(const void* sendbuf, const int* sendcounts, const void* sdispls,
                            const void* sendtypes, void* recvbuf, const int* recvcounts,
                            const void* rdispls, const void* recvtypes, Handle comm,
                            void* request) {
  constexpr Native<&NativeFunctions::Ineighbor_alltoallw> mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm,
            PartsBuffer::mixed(sendbuf, CountArray(sendcounts), addresses(sdispls), sendtypes),
            PartsBuffer::mixed(recvbuf, CountArray(recvcounts), addresses(rdispls), recvtypes));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes,
      comm);
}
int PMPI_Ineighbor_alltoallw(const void*, const int*, const void*, const void*, void*, const int*,
                             const void*, const void*, Handle, void*)
    __attribute__((alias("MPI_Ineighbor_alltoallw")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_alltoallw_init(const void* sendbuf, const int* sendcounts, const void* sdispls,
                                const void* sendtypes, void* recvbuf, const int* recvcounts,
                                const void* rdispls, const void* recvtypes, Handle comm,
                                Handle info, void* request) {
  constexpr Native<&NativeFunctions::Neighbor_alltoallw_init> mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm,
            PartsBuffer::mixed(sendbuf, CountArray(sendcounts), addresses(sdispls), sendtypes),
            PartsBuffer::mixed(recvbuf, CountArray(recvcounts), addresses(rdispls), recvtypes));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes,
      comm, info);
}
int PMPI_Neighbor_alltoallw_init(const void*, const int*, const void*, const void*, void*,
                                 const int*, const void*, const void*, Handle, Handle, void*)
    __attribute__((alias("MPI_Neighbor_alltoallw_init")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_alltoallw_c(const void* sendbuf, const Count* sendcounts, const void* sdispls,
                             const void* sendtypes, void* recvbuf, const Count* recvcounts,
                             const void* rdispls, const void* recvtypes, Handle comm) {
  constexpr Native<&NativeFunctions::Neighbor_alltoallw_c, &NativeFunctions::Neighbor_alltoallw,
                   neighbours_in>
      mpi;
  const InCall inside(words_of_bare(mpi, comm));
  return staged(
      comm,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm,
            PartsBuffer::mixed(sendbuf, CountArray(sendcounts), addresses(sdispls), sendtypes),
            PartsBuffer::mixed(recvbuf, CountArray(recvcounts), addresses(rdispls), recvtypes));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes,
      comm);
}
int PMPI_Neighbor_alltoallw_c(const void*, const Count*, const void*, const void*, void*,
                              const Count*, const void*, const void*, Handle)
    __attribute__((alias("MPI_Neighbor_alltoallw_c")));

/// Non-blocking. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ineighbor_alltoallw_c(const void* sendbuf, const Count* sendcounts, const void* sdispls,
                              const void* sendtypes, void* recvbuf, const Count* recvcounts,
                              const void* rdispls, const void* recvtypes, Handle comm,
                              void* request) {
  constexpr Native<&NativeFunctions::Ineighbor_alltoallw_c, &NativeFunctions::Ineighbor_alltoallw,
                   neighbours_in>
      mpi;
  return start_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm,
            PartsBuffer::mixed(sendbuf, CountArray(sendcounts), addresses(sdispls), sendtypes),
            PartsBuffer::mixed(recvbuf, CountArray(recvcounts), addresses(rdispls), recvtypes));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes,
      comm);
}
int PMPI_Ineighbor_alltoallw_c(const void*, const Count*, const void*, const void*, void*,
                               const Count*, const void*, const void*, Handle, void*)
    __attribute__((alias("MPI_Ineighbor_alltoallw_c")));

/// Persistent. Passed to the MPI, with staging buffers for GPU memory.
int MPI_Neighbor_alltoallw_init_c(const void* sendbuf, const Count* sendcounts, const void* sdispls,
                                  const void* sendtypes, void* recvbuf, const Count* recvcounts,
                                  const void* rdispls, const void* recvtypes, Handle comm,
                                  Handle info, void* request) {
  constexpr Native<&NativeFunctions::Neighbor_alltoallw_init_c,
                   &NativeFunctions::Neighbor_alltoallw_init, neighbours_in>
      mpi;
  return init_staged(
      comm, request,
      [&](CallStaging& staging) {
        staging.add_of_neighbours(
            comm,
            PartsBuffer::mixed(sendbuf, CountArray(sendcounts), addresses(sdispls), sendtypes),
            PartsBuffer::mixed(recvbuf, CountArray(recvcounts), addresses(rdispls), recvtypes));
      },
      mpi(comm), sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes,
      comm, info);
}
int PMPI_Neighbor_alltoallw_init_c(const void*, const Count*, const void*, const void*, void*,
                                   const Count*, const void*, const void*, Handle, Handle, void*)
    __attribute__((alias("MPI_Neighbor_alltoallw_init_c")));

}  // extern "C"
#pragma GCC visibility pop
}  // namespace plait::mpi
