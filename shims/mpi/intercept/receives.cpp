// Exports the receives, and functions that send and receive. tools/mpi_functions.py writes this
// file from functions.txt.
#include "shims/mpi/intercept/message_call.hpp"

namespace plait::mpi {
#pragma GCC visibility push(default)
extern "C" {

/// The message comes by rendezvous, or from the MPI.
int MPI_Recv(void* buf, int count, Handle datatype, int source, int tag, Handle comm,
             void* status) {
  constexpr Native<&NativeFunctions::Recv> mpi;
  if (may_pass(mpi)) return pass_recv(mpi, buf, count, datatype, source, tag, comm, status);
  return run_recv(mpi, buf, count, datatype, source, tag, comm, status);
}
int PMPI_Recv(void*, int, Handle, int, int, Handle, void*) __attribute__((alias("MPI_Recv")));

/// The message comes by rendezvous, or from the MPI.
int MPI_Recv_c(void* buf, Count count, Handle datatype, int source, int tag, Handle comm,
               void* status) {
  constexpr Native<&NativeFunctions::Recv_c, &NativeFunctions::Recv> mpi;
  if (may_pass(mpi)) return pass_recv(mpi, buf, count, datatype, source, tag, comm, status);
  return run_recv(mpi, buf, count, datatype, source, tag, comm, status);
}
int PMPI_Recv_c(void*, Count, Handle, int, int, Handle, void*) __attribute__((alias("MPI_Recv_c")));

/// The message comes by rendezvous, or from the MPI.
int MPI_Mrecv(void* buf, int count, Handle datatype, void* message, void* status) {
  constexpr Native<&NativeFunctions::Mrecv> mpi;
  if (may_pass(mpi)) return pass_recv(mpi, buf, count, datatype, message, status);
  return run_recv(mpi, buf, count, datatype, message, status);
}
int PMPI_Mrecv(void*, int, Handle, void*, void*) __attribute__((alias("MPI_Mrecv")));

/// The message comes by rendezvous, or from the MPI.
int MPI_Mrecv_c(void* buf, Count count, Handle datatype, void* message, void* status) {
  constexpr Native<&NativeFunctions::Mrecv_c, &NativeFunctions::Mrecv> mpi;
  if (may_pass(mpi)) return pass_recv(mpi, buf, count, datatype, message, status);
  return run_recv(mpi, buf, count, datatype, message, status);
}
int PMPI_Mrecv_c(void*, Count, Handle, void*, void*) __attribute__((alias("MPI_Mrecv_c")));

/// The message comes by rendezvous, or from the MPI.
int MPI_Irecv(void* buf, int count, Handle datatype, int source, int tag, Handle comm,
              void* request) {
  constexpr Native<&NativeFunctions::Irecv> mpi;
  if (are_messages_native()) return mpi(comm)(buf, count, datatype, source, tag, comm, request);
  return run_irecv(mpi, buf, count, datatype, source, tag, comm, request);
}
int PMPI_Irecv(void*, int, Handle, int, int, Handle, void*) __attribute__((alias("MPI_Irecv")));

/// The message comes by rendezvous, or from the MPI.
int MPI_Irecv_c(void* buf, Count count, Handle datatype, int source, int tag, Handle comm,
                void* request) {
  constexpr Native<&NativeFunctions::Irecv_c, &NativeFunctions::Irecv> mpi;
  if (are_messages_native()) return mpi(comm)(buf, count, datatype, source, tag, comm, request);
  return run_irecv(mpi, buf, count, datatype, source, tag, comm, request);
}
int PMPI_Irecv_c(void*, Count, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Irecv_c")));

/// The message comes by rendezvous, or from the MPI.
int MPI_Imrecv(void* buf, int count, Handle datatype, void* message, void* request) {
  constexpr Native<&NativeFunctions::Imrecv> mpi;
  if (are_messages_native()) return mpi(native().abi.world)(buf, count, datatype, message, request);
  return run_irecv(mpi, buf, count, datatype, message, request);
}
int PMPI_Imrecv(void*, int, Handle, void*, void*) __attribute__((alias("MPI_Imrecv")));

/// The message comes by rendezvous, or from the MPI.
int MPI_Imrecv_c(void* buf, Count count, Handle datatype, void* message, void* request) {
  constexpr Native<&NativeFunctions::Imrecv_c, &NativeFunctions::Imrecv> mpi;
  if (are_messages_native()) return mpi(native().abi.world)(buf, count, datatype, message, request);
  return run_irecv(mpi, buf, count, datatype, message, request);
}
int PMPI_Imrecv_c(void*, Count, Handle, void*, void*) __attribute__((alias("MPI_Imrecv_c")));

/// The message comes by rendezvous, or from the MPI.
int MPI_Recv_init(void* buf, int count, Handle datatype, int source, int tag, Handle comm,
                  void* request) {
  constexpr Native<&NativeFunctions::Recv_init> mpi;
  if (are_messages_native()) return mpi(comm)(buf, count, datatype, source, tag, comm, request);
  return run_recv_init(mpi, buf, count, datatype, source, tag, comm, request);
}
int PMPI_Recv_init(void*, int, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Recv_init")));

/// The message comes by rendezvous, or from the MPI.
int MPI_Recv_init_c(void* buf, Count count, Handle datatype, int source, int tag, Handle comm,
                    void* request) {
  constexpr Native<&NativeFunctions::Recv_init_c, &NativeFunctions::Recv_init> mpi;
  if (are_messages_native()) return mpi(comm)(buf, count, datatype, source, tag, comm, request);
  return run_recv_init(mpi, buf, count, datatype, source, tag, comm, request);
}
int PMPI_Recv_init_c(void*, Count, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Recv_init_c")));

/// Two messages, each by rendezvous or passed to the MPI.
int MPI_Sendrecv(const void* sendbuf, int sendcount, Handle sendtype, int dest, int sendtag,
                 void* recvbuf, int recvcount, Handle recvtype, int source, int recvtag,
                 Handle comm, void* status) {
  constexpr Native<&NativeFunctions::Sendrecv> mpi;
  if (may_pass(mpi))
    return pass_sendrecv(mpi, sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount,
                         recvtype, source, recvtag, comm, status);
  return run_sendrecv(mpi, sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount,
                      recvtype, source, recvtag, comm, status);
}
int PMPI_Sendrecv(const void*, int, Handle, int, int, void*, int, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Sendrecv")));

/// Two messages, each by rendezvous or passed to the MPI.
int MPI_Sendrecv_c(const void* sendbuf, Count sendcount, Handle sendtype, int dest, int sendtag,
                   void* recvbuf, Count recvcount, Handle recvtype, int source, int recvtag,
                   Handle comm, void* status) {
  constexpr Native<&NativeFunctions::Sendrecv_c, &NativeFunctions::Sendrecv> mpi;
  if (may_pass(mpi))
    return pass_sendrecv(mpi, sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount,
                         recvtype, source, recvtag, comm, status);
  return run_sendrecv(mpi, sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount,
                      recvtype, source, recvtag, comm, status);
}
int PMPI_Sendrecv_c(const void*, Count, Handle, int, int, void*, Count, Handle, int, int, Handle,
                    void*) __attribute__((alias("MPI_Sendrecv_c")));

/// Two messages, each by rendezvous or passed to the MPI.
int MPI_Sendrecv_replace(void* buf, int count, Handle datatype, int dest, int sendtag, int source,
                         int recvtag, Handle comm, void* status) {
  constexpr Native<&NativeFunctions::Sendrecv_replace> mpi;
  if (may_pass(mpi))
    return pass_sendrecv(mpi, buf, count, datatype, dest, sendtag, source, recvtag, comm, status);
  return run_sendrecv(mpi, buf, count, datatype, dest, sendtag, source, recvtag, comm, status);
}
int PMPI_Sendrecv_replace(void*, int, Handle, int, int, int, int, Handle, void*)
    __attribute__((alias("MPI_Sendrecv_replace")));

/// Two messages, each by rendezvous or passed to the MPI.
int MPI_Sendrecv_replace_c(void* buf, Count count, Handle datatype, int dest, int sendtag,
                           int source, int recvtag, Handle comm, void* status) {
  constexpr Native<&NativeFunctions::Sendrecv_replace_c, &NativeFunctions::Sendrecv_replace> mpi;
  if (may_pass(mpi))
    return pass_sendrecv(mpi, buf, count, datatype, dest, sendtag, source, recvtag, comm, status);
  return run_sendrecv(mpi, buf, count, datatype, dest, sendtag, source, recvtag, comm, status);
}
int PMPI_Sendrecv_replace_c(void*, Count, Handle, int, int, int, int, Handle, void*)
    __attribute__((alias("MPI_Sendrecv_replace_c")));

/// Two messages, each by rendezvous or passed to the MPI.
int MPI_Isendrecv(const void* sendbuf, int sendcount, Handle sendtype, int dest, int sendtag,
                  void* recvbuf, int recvcount, Handle recvtype, int source, int recvtag,
                  Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Isendrecv> mpi;
  if (are_messages_native())
    return mpi(comm)(sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype,
                     source, recvtag, comm, request);
  return run_isendrecv(mpi, sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount,
                       recvtype, source, recvtag, comm, request);
}
int PMPI_Isendrecv(const void*, int, Handle, int, int, void*, int, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Isendrecv")));

/// Two messages, each by rendezvous or passed to the MPI.
int MPI_Isendrecv_c(const void* sendbuf, Count sendcount, Handle sendtype, int dest, int sendtag,
                    void* recvbuf, Count recvcount, Handle recvtype, int source, int recvtag,
                    Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Isendrecv_c, &NativeFunctions::Isendrecv> mpi;
  if (are_messages_native())
    return mpi(comm)(sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype,
                     source, recvtag, comm, request);
  return run_isendrecv(mpi, sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount,
                       recvtype, source, recvtag, comm, request);
}
int PMPI_Isendrecv_c(const void*, Count, Handle, int, int, void*, Count, Handle, int, int, Handle,
                     void*) __attribute__((alias("MPI_Isendrecv_c")));

/// Two messages, each by rendezvous or passed to the MPI.
int MPI_Isendrecv_replace(void* buf, int count, Handle datatype, int dest, int sendtag, int source,
                          int recvtag, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Isendrecv_replace> mpi;
  if (are_messages_native())
    return mpi(comm)(buf, count, datatype, dest, sendtag, source, recvtag, comm, request);
  return run_isendrecv(mpi, buf, count, datatype, dest, sendtag, source, recvtag, comm, request);
}
int PMPI_Isendrecv_replace(void*, int, Handle, int, int, int, int, Handle, void*)
    __attribute__((alias("MPI_Isendrecv_replace")));

/// Two messages, each by rendezvous or passed to the MPI.
int MPI_Isendrecv_replace_c(void* buf, Count count, Handle datatype, int dest, int sendtag,
                            int source, int recvtag, Handle comm, void* request) {
  constexpr Native<&NativeFunctions::Isendrecv_replace_c, &NativeFunctions::Isendrecv_replace> mpi;
  if (are_messages_native())
    return mpi(comm)(buf, count, datatype, dest, sendtag, source, recvtag, comm, request);
  return run_isendrecv(mpi, buf, count, datatype, dest, sendtag, source, recvtag, comm, request);
}
int PMPI_Isendrecv_replace_c(void*, Count, Handle, int, int, int, int, Handle, void*)
    __attribute__((alias("MPI_Isendrecv_replace_c")));

}  // extern "C"
#pragma GCC visibility pop
}  // namespace plait::mpi
