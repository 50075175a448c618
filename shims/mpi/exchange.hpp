// A send and a receive in one: by two messages of which plait may move either, and for MPIs whose
// MPI_Isendrecv is missing (Open MPI 4.1) or has a status that does not say what came (MPICH).
#pragma once
#include <memory>

#include "shims/mpi/native.hpp"
#include "shims/mpi/rendezvous.hpp"

namespace plait::mpi {

struct Ends {
  int to, out_tag, from, in_tag;
  Handle comm;
};

/// Null where the MPI refuses one, with its error.
template <class Width>
std::unique_ptr<Begun> begun_send(const void* buffer, typename Width::N count, Handle type, int to,
                                  int tag, Handle comm, int& code);
template <class Width>
std::unique_ptr<Begun> begun_receive(void* buffer, typename Width::N count, Handle type, int from,
                                     int tag, Handle comm, int& code);
template <class Width>
std::unique_ptr<Begun> begun_exchange(const void* in, typename Width::N in_count, Handle in_type,
                                      void* out, typename Width::N out_count, Handle out_type,
                                      const Ends& ends, int& code);
/// What is sent is kept beside.
template <class Width>
std::unique_ptr<Begun> begun_exchange_in_place(void* buffer, typename Width::N count, Handle type,
                                               const Ends& ends, int& code);

/// Puts exchanges by the MPI's own messages into the table where they are wanted.
void add_exchanges(Real& table);

}  // namespace plait::mpi
