// Exports probes: the status of a large message has the size that its RTS header names.
#include "shims/mpi/args/in_call.hpp"
#include "shims/mpi/p2p/matched_messages.hpp"
#include "shims/mpi/p2p/rendezvous.hpp"
#include "shims/mpi/requests/native_call.hpp"

namespace plait::mpi {
namespace {

/// Corrects the status of a probe that found an RTS header.
int fix_probe(int code, Handle comm, int found, void* status) {
  const Abi& abi = native().abi;
  if (code != 0 || found == 0 || !uses_rendezvous()) return code;
  if (status == nullptr || status == abi.status_ignore) return code;
  const std::uint64_t bytes = received_bytes(status);
  const auto* const source =
      reinterpret_cast<const int*>(static_cast<std::byte*>(status) + abi.source_at);
  const std::uint64_t whole = probed_bytes(comm, source[0], source[1], bytes);
  if (whole != bytes) set_received_bytes(status, whole);
  return code;
}

/// The same for a probe that also matches the message.
int fix_matched(int code, Handle comm, int found, const void* message, void* status) {
  if (code == 0 && found != 0 && (uses_rendezvous() || may_hold_gpu_memory()))
    return guarded(comm, [&] {
      add_matched(native().abi.at(message, 0), comm);
      return fix_probe(code, comm, found, status);
    });
  return code;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int MPI_Probe(int source, int tag, Handle comm, void* status) {
  constexpr Native<&NativeFunctions::Probe> mpi;
  const InCall inside(words_of_message(mpi, CallFields::probe, 0, 0, {source, tag}, comm));
  return fix_probe(mpi(comm)(source, tag, comm, status), comm, 1, status);
}
int MPI_Iprobe(int source, int tag, Handle comm, int* flag, void* status) {
  complete_ended();  // not every MPI has a progress hook
  const int code = native().Iprobe(source, tag, comm, flag, status);
  return fix_probe(code, comm, flag == nullptr ? 0 : *flag, status);
}
int MPI_Mprobe(int source, int tag, Handle comm, void* message, void* status) {
  constexpr Native<&NativeFunctions::Mprobe> mpi;
  const InCall inside(words_of_message(mpi, CallFields::probe, 0, 0, {source, tag}, comm));
  const int code = mpi(comm)(source, tag, comm, message, status);
  return fix_matched(code, comm, 1, message, status);
}
int MPI_Improbe(int source, int tag, Handle comm, int* flag, void* message, void* status) {
  complete_ended();
  const int code = native().Improbe(source, tag, comm, flag, message, status);
  return fix_matched(code, comm, flag == nullptr ? 0 : *flag, message, status);
}
int PMPI_Probe(int, int, Handle, void*) __attribute__((alias("MPI_Probe")));
int PMPI_Iprobe(int, int, Handle, int*, void*) __attribute__((alias("MPI_Iprobe")));
int PMPI_Mprobe(int, int, Handle, void*, void*) __attribute__((alias("MPI_Mprobe")));
int PMPI_Improbe(int, int, Handle, int*, void*, void*) __attribute__((alias("MPI_Improbe")));

}  // extern "C"
#pragma GCC visibility pop
}  // namespace plait::mpi
