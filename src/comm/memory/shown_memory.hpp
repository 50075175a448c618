// Shared memory among ranks that can exchange bytes, whatever carries them: each shows its piece by
// process and number, and the others open it there. So all are of one machine and one PID
// namespace.
#pragma once
#include <vector>

#include "comm/memory/memory.hpp"
#include "exec/cuda/device/arena.hpp"

namespace plait {

/// One piece a rank, by rank; all ranks together. Error(out_of_memory) where this rank's cannot be
/// made, mismatch where another's cannot be opened.
std::vector<Mapping> show_memory(const cuda::Exchange& exchange, int rank, int ranks,
                                 std::uint64_t bytes);
/// Rank 0's alone; all ranks together. Empty on all of them where one cannot have it.
Mapping memory_of_rank_0(const cuda::Exchange& exchange, int rank, std::uint64_t bytes);

}  // namespace plait
