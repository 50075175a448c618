// Groups with memory laid out for all engines: of a communicator, of a pair of its ranks, and of
// usual GPUs for queries.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/engine/group.hpp"

namespace plait::cuda {

/// Lays out memory for all that the group's GPUs can run, within the budget. Keeps sizes already
/// set.
void lay_out_arena(Group& group, const ArenaOptions& wish = {});
/// Group of calls before the large arena exists.
Group small_arena_group_of(const Group& group);
/// Usual budget of a rank's arenas in host memory, so that slots of large calls stay in the host's
/// cache. Two ranks' staging lies in GPU memory, and comes on top.
std::uint64_t usual_host_bytes(int ranks);
/// Group of `ranks` H200s, a process each, with host memory mapped by all: for queries about calls
/// that are not run. memory_bytes: 0 = default. models: other GPU models (topo/gpu_models.hpp).
/// through_host: the GPUs do not address each other, or (has_islands) only some of them do.
Group usual_group(int ranks, bool overlap_compute = false, std::uint64_t memory_bytes = 0,
                  unsigned most_blocks = 0, const std::vector<std::string>& models = {},
                  bool through_host = false, bool has_islands = false);
/// Group of a pair of ranks of the communicator of usual_group().
Group usual_pair(int ranks, std::uint64_t memory_bytes = 0,
                 const std::vector<std::string>& models = {});

/// Options for the arena of a pair with `bytes` of memory; 0 = the pair has no GPU memory.
ArenaOptions pair_arena_options(std::uint64_t bytes);
/// Most blocks of a kernel between two of `ranks` ranks, so that a GPU's kernels for all peers run
/// side by side and leave some SMs. sm_budget: 0 = none.
int pair_blocks(int ranks, int sm_budget = 0);

}  // namespace plait::cuda
