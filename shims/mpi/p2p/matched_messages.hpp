// The communicators of matched messages: MPI_Mrecv names the message alone, and an error of plait's
// goes to the handler of the communicator that MPI_Mprobe named.
#pragma once
#include "shims/mpi/abi/native_mpi.hpp"

namespace plait::mpi {

/// Called after MPI_Mprobe or MPI_Improbe has matched a message.
void add_matched(Handle message, Handle comm);
/// Returns and forgets the message's communicator; MPI_COMM_WORLD if unknown or freed.
Handle take_matched(Handle message);

}  // namespace plait::mpi
