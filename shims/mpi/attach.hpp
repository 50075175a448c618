// How ranks come to agree: once at MPI_Init that all of them serve and which node each is on, and
// once for each communicator that its ranks have met.
#pragma once
#include <memory>

#include "plait/communicator.hpp"
#include "shims/mpi/packed_call.hpp"

namespace plait::mpi {

/// Whether all ranks of MPI_COMM_WORLD are to serve, host memory or GPUs' (then gpus_in_job is
/// set). Collective over it.
bool agreed_to_serve();
/// Whether plait may take such calls at all; the same on all ranks. Fills in this rank's place.
bool can_attach(Handle comm, RankPosition& position);
/// Whether a rank of this communicator has initialised CUDA; all of them together, alike.
bool any_uses_gpus(Handle comm);
/// Where a call's buffers may lie for plait to take it, as PLAIT_OPS and PLAIT_MIN_BYTES have it.
struct ServedLocations {
  bool on_host = false, on_gpus = false;
};
ServedLocations served_locations_of(const CallShape& shape, const RankPosition& position);
inline constexpr std::uint64_t kNever = ~std::uint64_t{0};
/// In host memory of one node, of several, and in GPUs'; kNever where none is served.
std::uint64_t min_bytes_on_host(Collective collective);
std::uint64_t min_bytes_over_nodes(Collective collective);
std::uint64_t min_bytes_on_gpus(Collective collective);
/// What tells one machine, and what a process sees of it, from another: a path of one must be the
/// same file for all.
std::uint64_t host_id();
/// Each takes descriptors and shared memory, which are the program's too.
inline constexpr std::size_t kMaxAttached = 64;
/// While there are as many, the next persistent call is the MPI's: communicators come first.
inline constexpr std::size_t kMaxPersistent = 48;
/// Collective over the communicator. can: whether this rank has what it takes. device: its GPU, or
/// kNoDevice on all ranks. Null on all ranks where one of them cannot.
std::unique_ptr<Communicator> attach(Handle comm, const RankPosition& position, bool can,
                                     int device);

}  // namespace plait::mpi
