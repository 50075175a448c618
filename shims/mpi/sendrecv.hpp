// A send and a receive in one: by two messages of which plait may move either, and for MPIs whose
// MPI_Isendrecv is missing (Open MPI 4.1) or has a status that does not say what came (MPICH).
#pragma once
#include <memory>

#include "shims/mpi/native.hpp"
#include "shims/mpi/rendezvous.hpp"

namespace plait::mpi {

struct SendrecvPeers {
  int to, out_tag, from, in_tag;
  Handle comm;
};

/// Null where the MPI refuses one, with its error.
template <class Width>
std::unique_ptr<PendingRequest> start_send(const void* buffer, typename Width::N count, Handle type,
                                           int to, int tag, Handle comm, int& code);
template <class Width>
std::unique_ptr<PendingRequest> start_recv(void* buffer, typename Width::N count, Handle type,
                                           int from, int tag, Handle comm, int& code);
template <class Width>
std::unique_ptr<PendingRequest> start_sendrecv(const void* in, typename Width::N in_count,
                                               Handle in_type, void* out,
                                               typename Width::N out_count, Handle out_type,
                                               const SendrecvPeers& ends, int& code);
/// What is sent is kept beside.
template <class Width>
std::unique_ptr<PendingRequest> start_sendrecv_replace(void* buffer, typename Width::N count,
                                                       Handle type, const SendrecvPeers& ends,
                                                       int& code);

/// Puts exchanges by the MPI's own messages into the table where they are wanted.
void add_isendrecv(RealMpi& table);

}  // namespace plait::mpi
