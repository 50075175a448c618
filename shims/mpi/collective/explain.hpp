// Says who serves. PLAIT_DEBUG=INFO has a line for each communicator that plait serves, or that
// stays with the native MPI. PLAIT_DEBUG=EXPLAIN says why the native MPI runs a call, and why a
// served call stages device memory: a line for each function and reason, with the first such call.
#pragma once
#include <string>

#include "shims/mpi/args/collective_args.hpp"
#include "shims/mpi/args/fallback.hpp"
#include "shims/mpi/args/shape.hpp"

namespace plait::mpi {

/// Says in MPI_Init whether plait serves the job, by rank 0 of MPI_COMM_WORLD.
void note_job(bool serves);
/// Says on each rank that plait serves the communicator.
void note_attached(const RankPosition& position);
/// Says by rank 0 of a communicator of several ranks why all its calls are the native MPI's.
void note_native(Handle comm);
/// Explains a collective. The caller checks is_explaining().
[[gnu::cold]] void explain_fallback(const char* function, const CollectiveArgs& args, Fallback why);
/// Explains why a served call stages this rank's device memory, on the rank itself: peers may have
/// other reasons. The caller checks is_explaining().
[[gnu::cold]] void explain_staging(const CollectiveArgs& args, const char* why);
/// Explains a message between two ranks.
[[gnu::cold]] void explain_message(const char* function, Count count, Handle type, Handle comm,
                                   const std::string& why);

}  // namespace plait::mpi
