// Combines each rank's known block counts into the counts of all ranks, or into the same error on
// all ranks.
#pragma once
#include <cstdint>
#include <vector>

#include "plait/communicator.hpp"

namespace plait {

/// Throws Error(invalid_argument) if every rank knows all counts of this collective, if a list
/// does not have exactly one count per rank, or if this rank lacks a count that it must know.
void check_own_counts(const Request& request, int rank, const OwnCounts& mine);

/// Returns Request::counts. by_rank: checked. Throws Error(mismatch) with the first pair of ranks
/// whose sender and receiver have different counts.
std::vector<std::uint64_t> counts_of(const Request& request, const std::vector<OwnCounts>& by_rank);

}  // namespace plait
