// Shared memory among ranks that can exchange bytes by any means: each rank publishes a piece by
// process and file number, and the peers open the file. All ranks must be on the same machine in
// the same PID namespace.
#pragma once
#include <vector>

#include "comm/shm/memory.hpp"
#include "gpu/arena/arena.hpp"

namespace plait {

/// Makes and maps a piece per rank; called by all ranks together. Throws Error(out_of_memory) if
/// this rank's piece cannot be made, mismatch if another's cannot be opened.
std::vector<Mapping> show_memory(const cuda::Exchange& exchange, int rank, int ranks,
                                 std::uint64_t bytes);
/// Maps rank 0's piece alone; called by all ranks together. Empty on all ranks if any rank cannot
/// map the piece.
Mapping memory_of_rank_0(const cuda::Exchange& exchange, int rank, std::uint64_t bytes);

}  // namespace plait
