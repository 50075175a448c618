// How ranks come to agree: once at MPI_Init that all of them serve, and once for each communicator
// that its ranks are on one node and have met.
#pragma once
#include <memory>

#include "plait/communicator.hpp"
#include "shims/mpi/job.hpp"

namespace plait::mpi {

/// Whether all ranks of MPI_COMM_WORLD are to serve; collective where PLAIT_MPI_HOST says so.
bool agreed_to_serve();
/// Whether plait may take such calls at all; the same on all ranks. Fills in this rank's place.
bool can_attach(Handle comm, Place& place);
/// False where no call with such a message is: asked first, since most calls are small.
bool may_be_wanted(Collective collective, std::uint64_t most_bytes);
/// Whether the call is one that plait was asked to take: PLAIT_OPS, PLAIT_MIN_BYTES.
bool is_wanted(const Request& request);
/// Collective over the communicator. held: how many this process has already. Null on all ranks
/// where one of them cannot.
std::unique_ptr<Communicator> attach(Handle comm, const Place& place, std::size_t held);

}  // namespace plait::mpi
