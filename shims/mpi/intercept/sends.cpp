// Exports the sends. tools/mpi_functions.py writes this file from functions.txt.
#include "shims/mpi/intercept/message_call.hpp"

namespace plait::mpi {
#pragma GCC visibility push(default)
extern "C" {

/// By rendezvous, or passed to the MPI.
int MPI_Send(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm) {
  constexpr Native<&NativeFunctions::Send> mpi;
  if (may_pass(mpi)) return pass_send(mpi, buf, count, datatype, dest, tag, comm);
  return run_send(mpi, buf, count, datatype, dest, tag, comm);
}
int PMPI_Send(const void*, int, Handle, int, int, Handle) __attribute__((alias("MPI_Send")));

/// By rendezvous, or passed to the MPI.
int MPI_Send_c(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm) {
  constexpr Native<&NativeFunctions::Send_c, &NativeFunctions::Send> mpi;
  if (may_pass(mpi)) return pass_send(mpi, buf, count, datatype, dest, tag, comm);
  return run_send(mpi, buf, count, datatype, dest, tag, comm);
}
int PMPI_Send_c(const void*, Count, Handle, int, int, Handle) __attribute__((alias("MPI_Send_c")));

/// By rendezvous, or passed to the MPI.
int MPI_Ssend(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm) {
  constexpr Native<&NativeFunctions::Ssend> mpi;
  if (may_pass(mpi)) return pass_send(mpi, buf, count, datatype, dest, tag, comm);
  return run_send(mpi, buf, count, datatype, dest, tag, comm);
}
int PMPI_Ssend(const void*, int, Handle, int, int, Handle) __attribute__((alias("MPI_Ssend")));

/// By rendezvous, or passed to the MPI.
int MPI_Ssend_c(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm) {
  constexpr Native<&NativeFunctions::Ssend_c, &NativeFunctions::Ssend> mpi;
  if (may_pass(mpi)) return pass_send(mpi, buf, count, datatype, dest, tag, comm);
  return run_send(mpi, buf, count, datatype, dest, tag, comm);
}
int PMPI_Ssend_c(const void*, Count, Handle, int, int, Handle)
    __attribute__((alias("MPI_Ssend_c")));

/// By rendezvous, or passed to the MPI.
int MPI_Rsend(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm) {
  constexpr Native<&NativeFunctions::Rsend> mpi;
  if (may_pass(mpi)) return pass_send(mpi, buf, count, datatype, dest, tag, comm);
  return run_send(mpi, buf, count, datatype, dest, tag, comm);
}
int PMPI_Rsend(const void*, int, Handle, int, int, Handle) __attribute__((alias("MPI_Rsend")));

/// By rendezvous, or passed to the MPI.
int MPI_Rsend_c(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm) {
  constexpr Native<&NativeFunctions::Rsend_c, &NativeFunctions::Rsend> mpi;
  if (may_pass(mpi)) return pass_send(mpi, buf, count, datatype, dest, tag, comm);
  return run_send(mpi, buf, count, datatype, dest, tag, comm);
}
int PMPI_Rsend_c(const void*, Count, Handle, int, int, Handle)
    __attribute__((alias("MPI_Rsend_c")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Bsend(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm) {
  constexpr Native<&NativeFunctions::Bsend> mpi;
  if (uses_rendezvous()) note_native_send(buf, count, datatype, dest, tag, comm);
  return staged(
      comm, [&](CallStaging& staging) { staging.add_input(buf, datatype, count); }, mpi(comm), buf,
      count, datatype, dest, tag, comm);
}
int PMPI_Bsend(const void*, int, Handle, int, int, Handle) __attribute__((alias("MPI_Bsend")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Bsend_c(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm) {
  constexpr Native<&NativeFunctions::Bsend_c, &NativeFunctions::Bsend> mpi;
  if (uses_rendezvous()) note_native_send(buf, count, datatype, dest, tag, comm);
  return staged(
      comm, [&](CallStaging& staging) { staging.add_input(buf, datatype, count); }, mpi(comm), buf,
      count, datatype, dest, tag, comm);
}
int PMPI_Bsend_c(const void*, Count, Handle, int, int, Handle)
    __attribute__((alias("MPI_Bsend_c")));

/// By rendezvous, or passed to the MPI.
int MPI_Isend(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
              void* request) {
  constexpr Native<&NativeFunctions::Isend> mpi;
  if (are_messages_native()) return mpi(comm)(buf, count, datatype, dest, tag, comm, request);
  return run_isend(mpi, buf, count, datatype, dest, tag, comm, request);
}
int PMPI_Isend(const void*, int, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Isend")));

/// By rendezvous, or passed to the MPI.
int MPI_Isend_c(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                void* request) {
  constexpr Native<&NativeFunctions::Isend_c, &NativeFunctions::Isend> mpi;
  if (are_messages_native()) return mpi(comm)(buf, count, datatype, dest, tag, comm, request);
  return run_isend(mpi, buf, count, datatype, dest, tag, comm, request);
}
int PMPI_Isend_c(const void*, Count, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Isend_c")));

/// By rendezvous, or passed to the MPI.
int MPI_Issend(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
               void* request) {
  constexpr Native<&NativeFunctions::Issend> mpi;
  if (are_messages_native()) return mpi(comm)(buf, count, datatype, dest, tag, comm, request);
  return run_isend(mpi, buf, count, datatype, dest, tag, comm, request);
}
int PMPI_Issend(const void*, int, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Issend")));

/// By rendezvous, or passed to the MPI.
int MPI_Issend_c(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                 void* request) {
  constexpr Native<&NativeFunctions::Issend_c, &NativeFunctions::Issend> mpi;
  if (are_messages_native()) return mpi(comm)(buf, count, datatype, dest, tag, comm, request);
  return run_isend(mpi, buf, count, datatype, dest, tag, comm, request);
}
int PMPI_Issend_c(const void*, Count, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Issend_c")));

/// By rendezvous, or passed to the MPI.
int MPI_Irsend(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
               void* request) {
  constexpr Native<&NativeFunctions::Irsend> mpi;
  if (are_messages_native()) return mpi(comm)(buf, count, datatype, dest, tag, comm, request);
  return run_isend(mpi, buf, count, datatype, dest, tag, comm, request);
}
int PMPI_Irsend(const void*, int, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Irsend")));

/// By rendezvous, or passed to the MPI.
int MPI_Irsend_c(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                 void* request) {
  constexpr Native<&NativeFunctions::Irsend_c, &NativeFunctions::Irsend> mpi;
  if (are_messages_native()) return mpi(comm)(buf, count, datatype, dest, tag, comm, request);
  return run_isend(mpi, buf, count, datatype, dest, tag, comm, request);
}
int PMPI_Irsend_c(const void*, Count, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Irsend_c")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ibsend(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
               void* request) {
  constexpr Native<&NativeFunctions::Ibsend> mpi;
  if (uses_rendezvous()) note_native_send(buf, count, datatype, dest, tag, comm);
  return start_staged(
      comm, request, [&](CallStaging& staging) { staging.add_input(buf, datatype, count); },
      mpi(comm), buf, count, datatype, dest, tag, comm);
}
int PMPI_Ibsend(const void*, int, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Ibsend")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ibsend_c(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                 void* request) {
  constexpr Native<&NativeFunctions::Ibsend_c, &NativeFunctions::Ibsend> mpi;
  if (uses_rendezvous()) note_native_send(buf, count, datatype, dest, tag, comm);
  return start_staged(
      comm, request, [&](CallStaging& staging) { staging.add_input(buf, datatype, count); },
      mpi(comm), buf, count, datatype, dest, tag, comm);
}
int PMPI_Ibsend_c(const void*, Count, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Ibsend_c")));

/// By rendezvous, or passed to the MPI.
int MPI_Send_init(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
                  void* request) {
  constexpr Native<&NativeFunctions::Send_init> mpi;
  if (are_messages_native()) return mpi(comm)(buf, count, datatype, dest, tag, comm, request);
  return run_send_init(mpi, buf, count, datatype, dest, tag, comm, request);
}
int PMPI_Send_init(const void*, int, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Send_init")));

/// By rendezvous, or passed to the MPI.
int MPI_Send_init_c(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                    void* request) {
  constexpr Native<&NativeFunctions::Send_init_c, &NativeFunctions::Send_init> mpi;
  if (are_messages_native()) return mpi(comm)(buf, count, datatype, dest, tag, comm, request);
  return run_send_init(mpi, buf, count, datatype, dest, tag, comm, request);
}
int PMPI_Send_init_c(const void*, Count, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Send_init_c")));

/// By rendezvous, or passed to the MPI.
int MPI_Rsend_init(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
                   void* request) {
  constexpr Native<&NativeFunctions::Rsend_init> mpi;
  if (are_messages_native()) return mpi(comm)(buf, count, datatype, dest, tag, comm, request);
  return run_send_init(mpi, buf, count, datatype, dest, tag, comm, request);
}
int PMPI_Rsend_init(const void*, int, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Rsend_init")));

/// By rendezvous, or passed to the MPI.
int MPI_Rsend_init_c(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                     void* request) {
  constexpr Native<&NativeFunctions::Rsend_init_c, &NativeFunctions::Rsend_init> mpi;
  if (are_messages_native()) return mpi(comm)(buf, count, datatype, dest, tag, comm, request);
  return run_send_init(mpi, buf, count, datatype, dest, tag, comm, request);
}
int PMPI_Rsend_init_c(const void*, Count, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Rsend_init_c")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ssend_init(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
                   void* request) {
  constexpr Native<&NativeFunctions::Ssend_init> mpi;
  if (uses_rendezvous()) note_native_send(buf, count, datatype, dest, tag, comm);
  return init_staged(
      comm, request, [&](CallStaging& staging) { staging.add_input(buf, datatype, count); },
      mpi(comm), buf, count, datatype, dest, tag, comm);
}
int PMPI_Ssend_init(const void*, int, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Ssend_init")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Ssend_init_c(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                     void* request) {
  constexpr Native<&NativeFunctions::Ssend_init_c, &NativeFunctions::Ssend_init> mpi;
  if (uses_rendezvous()) note_native_send(buf, count, datatype, dest, tag, comm);
  return init_staged(
      comm, request, [&](CallStaging& staging) { staging.add_input(buf, datatype, count); },
      mpi(comm), buf, count, datatype, dest, tag, comm);
}
int PMPI_Ssend_init_c(const void*, Count, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Ssend_init_c")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Bsend_init(const void* buf, int count, Handle datatype, int dest, int tag, Handle comm,
                   void* request) {
  constexpr Native<&NativeFunctions::Bsend_init> mpi;
  if (uses_rendezvous()) note_native_send(buf, count, datatype, dest, tag, comm);
  return init_staged(
      comm, request, [&](CallStaging& staging) { staging.add_input(buf, datatype, count); },
      mpi(comm), buf, count, datatype, dest, tag, comm);
}
int PMPI_Bsend_init(const void*, int, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Bsend_init")));

/// Passed to the MPI, with staging buffers for GPU memory.
int MPI_Bsend_init_c(const void* buf, Count count, Handle datatype, int dest, int tag, Handle comm,
                     void* request) {
  constexpr Native<&NativeFunctions::Bsend_init_c, &NativeFunctions::Bsend_init> mpi;
  if (uses_rendezvous()) note_native_send(buf, count, datatype, dest, tag, comm);
  return init_staged(
      comm, request, [&](CallStaging& staging) { staging.add_input(buf, datatype, count); },
      mpi(comm), buf, count, datatype, dest, tag, comm);
}
int PMPI_Bsend_init_c(const void*, Count, Handle, int, int, Handle, void*)
    __attribute__((alias("MPI_Bsend_init_c")));

}  // extern "C"
#pragma GCC visibility pop
}  // namespace plait::mpi
