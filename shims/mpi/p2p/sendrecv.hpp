// A send and a receive in one call, as two messages, each native or by rendezvous. Also replaces an
// MPI_Isendrecv that is missing (Open MPI 4.1) or lacks the received count in the status (MPICH).
#pragma once
#include <memory>

#include "shims/mpi/p2p/rendezvous.hpp"
#include "shims/mpi/requests/native_call.hpp"

namespace plait::mpi {

struct SendrecvPeers {
  int to, out_tag, from, in_tag;
  Handle comm;
};

/// Return null and set `refusal` if the MPI refuses.
template <class N>
std::unique_ptr<PendingRequest> start_send(const void* buffer, N count, Handle type, int to,
                                           int tag, Handle comm, Refusal& refusal);
template <class N>
std::unique_ptr<PendingRequest> start_sendrecv(const void* in, N in_count, Handle in_type,
                                               void* out, N out_count, Handle out_type,
                                               const SendrecvPeers& ends, Refusal& refusal);
/// Copies the data to send first, since the receive overwrites the buffer.
template <class N>
std::unique_ptr<PendingRequest> start_sendrecv_replace(void* buffer, N count, Handle type,
                                                       const SendrecvPeers& ends, Refusal& refusal);

}  // namespace plait::mpi
