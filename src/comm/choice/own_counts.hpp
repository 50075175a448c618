// What each rank knows of the counts of blocks -> the counts of all, or the same error on all
// ranks.
#pragma once
#include <cstdint>
#include <vector>

#include "plait/communicator.hpp"

namespace plait {

/// Error(invalid_argument) where the collective has no counts that only some ranks know, where a
/// list has not one count a rank, or where this rank lacks what the collective asks it for.
void check_own_counts(const Request& request, int rank, const OwnCounts& mine);

/// As Request::counts. by_rank: checked. Error(mismatch) naming the first two ranks of which one
/// expects what the other does not send.
std::vector<std::uint64_t> counts_of(const Request& request, const std::vector<OwnCounts>& by_rank);

}  // namespace plait
