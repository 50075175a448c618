// Set-up agreements between ranks: in MPI_Init, whether the job is served and the node of each
// rank; later, for each communicator, plait's own communicator.
#pragma once
#include <array>
#include <memory>
#include <optional>

#include "plait/communicator.hpp"
#include "shims/mpi/args/settings.hpp"
#include "shims/mpi/staging/packed_call.hpp"

namespace plait::mpi {

/// Returns whether all ranks of MPI_COMM_WORLD serve host or GPU memory; sets gpus_in_job for the
/// latter. Collective over MPI_COMM_WORLD.
bool agreed_to_serve();
/// Returns why it is not.
const char* why_job_is_native();
/// Returns whether each node has one rank, and PLAIT_MIN_BYTES is not set: plait then has no work
/// inside nodes and serves no call.
bool is_thin(const RankPosition& position);
/// Returns whether plait may serve this communicator; the same on all ranks. Fills `position`.
bool can_attach(Handle comm, RankPosition& position);
/// Returns whether any rank of the communicator has initialised CUDA. Collective over it.
bool any_uses_gpus(Handle comm);
/// Buffer locations that plait serves, by PLAIT_OPS and PLAIT_MIN_BYTES.
struct ServedLocations {
  bool on_host = false, on_gpus = false;
};
ServedLocations served_locations_of(const CallShape& shape, const RankPosition& position);
/// Limit of attached communicators: each takes descriptors and shared memory of the process.
inline constexpr std::size_t kMaxAttached = 64;
/// Limit for persistent requests, leaving the rest to communicators; beyond it a new request is
/// native.
inline constexpr std::size_t kMaxPersistent = 48;
/// Creates plait's communicator, for host memory. can: this rank is able to. Returns null on all
/// ranks if any rank cannot, or if the MPI fails in a step of the set-up on one rank alone: calls
/// are then native on all ranks, so that the ranks' calls stay paired. Collective over the
/// communicator.
std::unique_ptr<Communicator> attach(Handle comm, const RankPosition& position, bool can);

/// A persistent request's state that all ranks can use again, by slot.
struct SpareChoice {
  std::optional<std::size_t> slot;  ///< nothing = no slot has a state that is free on all ranks
  bool may_attach = false;          ///< without a slot: ranks may attach a new state
};
/// The number of slots: a slot is a number of a set-up step.
inline constexpr std::size_t kSpareSlots = 16;
/// Chooses the first slot that is free on all ranks. Freeing a request is local, hence ranks may
/// have different free slots. Collective over the communicator.
SpareChoice choose_spare(Handle comm, const RankPosition& position,
                         const std::array<bool, kSpareSlots>& is_free);

}  // namespace plait::mpi
