// Values agreed on at set-up that engine choices depend on besides the request; equal on all ranks.
// A pure value, so tests make every decision without a GPU.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/arena/arena.hpp"
#include "gpu/engine/kernel_families.hpp"
#include "gpu/engine/tuning.hpp"

namespace plait::cuda {

// Host memory of a rank: a ring for plans, and more behind the ring. Large calls use both.
inline constexpr std::uint64_t kPlanRingBytes = 8ull << 20;  ///< Stays in the cache.
inline constexpr std::uint64_t kExchangeRingBytes = 8ull << 20;

inline constexpr unsigned kTiledBlocks = 100, kTiledBlocksOverlapCompute = 64;

/// By KernelFamily: the GPU and the missing feature; empty if all GPUs run the family.
using FamilyLacks = std::array<std::string, kKernelFamilies>;

struct Group {
  int ranks = 1;
  unsigned multiprocessors = 132;  ///< SMs of the smallest GPU.
  unsigned hardware_queues = 8;    ///< Shared by streams; of the rank with the fewest.
  unsigned most_blocks = 0;  ///< Most blocks of a kernel, to leave SMs to others; 0 = one per SM.
  /// Most blocks of a tiled kernel, so that other kernels fit beside it. Alongside compute 64
  /// blocks carry nearly as much, slow matrix products no more than NCCL does, and let two calls
  /// run at once.
  unsigned most_tiled_blocks = kTiledBlocks;
  /// Most blocks of a message launch. All must run at once.
  unsigned most_message_blocks = 0;
  bool overlap_compute = false;        ///< Large calls take few SMs, as if most_blocks were set.
  bool in_processes = true;            ///< Every rank is a separate process.
  bool has_host_reducer = false;       ///< CPU cores can reduce a part.
  std::uint64_t host_bytes = 0;        ///< Host memory of a rank for large calls; 0 = none.
  DeviceArenaSizes sizes;              ///< Sizes over both tiers.
  ArenaTiers tiers;                    ///< Result of lay_out_arena().
  bool has_small_arena_alone = false;  ///< Calls have the small arena until the large arena exists.
  bool has_rings_alone = false;        ///< Copy-engine slots are laid out for copy_ring only.
  FamilyLacks why_not;

  /// Returns "" if the part exists; otherwise the reason, worded like an engine's why_not().
  std::string why_no_part(ArenaPart part) const;
  const std::string& lacks(KernelFamily family) const {
    return why_not[static_cast<std::size_t>(family)];
  }
  /// True if no slots serve large calls (yet) and no plans do: LL packets in any number of pieces
  /// or steps are the only way.
  bool has_ll_only() const {
    const bool has_plans = sizes.scratch_bytes != 0;
    return has_small_arena_alone ||
           (sizes.tile_bytes == 0 && (runs(KernelFamily::tiled) || !has_plans));
  }
  bool runs(KernelFamily family) const { return lacks(family).empty(); }
  bool leaves_sms() const {
    return overlap_compute || (most_blocks != 0 && most_blocks < multiprocessors);
  }
  /// With a single hardware queue, products enqueued behind an engine's wait would wait too.
  bool has_copy_engines() const;
  /// Blocks of a kernel. All must run at once, a block per SM, since blocks wait for each other
  /// across ranks.
  unsigned blocks(const Tuning& tuning = {}) const;
  /// Blocks of tiled calls that have slots.
  unsigned blocks_of_tiles() const;
  /// Blocks that leave some whole SMs to small kernels.
  unsigned blocks_leaving_sms() const;
  unsigned blocks_alongside_copies(const Tuning& tuning) const;
  /// Blocks of kernels that move pieces out of copy-engine slots; 0 = copy engines do that too.
  unsigned blocks_that_move() const;
  /// Threads of a block with LL packets. A block takes half an SM, so that another communicator's
  /// kernel fits beside it, since the two may come in different orders on different ranks. A kernel
  /// on half of the SMs may take whole SMs. is_lean: the kernel fits in 64 registers.
  unsigned most_threads(bool is_lean) const;

  std::uint64_t inbox_bytes() const;     ///< All copy-engine slots of a rank; 0 = none.
  std::uint64_t slot_bytes() const;      ///< A single slot; 0 = slots for rings only.
  std::uint64_t borrowed_bytes() const;  ///< Tile slots that copy engines borrow.
  std::uint64_t ring_bytes() const;      ///< Borrowed and own slots, as rings use them.
};

/// Options for lay_out_arena() beside the group's values.
struct ArenaOptions {
  std::uint64_t budget_bytes = 0;  ///< 0 = default.
  bool two_tiers = false;          ///< Small arena now, large arena later.
  bool floats_only = false;        ///< No reductions of integers.
  bool moves_only = false;         ///< For a pair that reduces nothing.
  bool pairs = false;              ///< Ranks may send to peers in pairs.
  bool plans = false;              ///< Plans may run.
  std::uint64_t plan_scratch = 0;  ///< Size the user asked for; 0 = a share of the budget.
};

/// Lays out memory for all that the group's GPUs can run, within the budget. Keeps sizes already
/// set.
void lay_out_arena(Group& group, const ArenaOptions& wish = {});
/// Group of calls before the large arena exists.
Group small_arena_group_of(const Group& group);
/// Group of `ranks` H200s, a process each, with host memory mapped by all: for queries about calls
/// that are not run. memory_bytes: 0 = default. models: other GPU models (gpu_models.hpp).
Group usual_group(int ranks, bool overlap_compute = false, std::uint64_t memory_bytes = 0,
                  unsigned most_blocks = 0, const std::vector<std::string>& models = {});
/// Group of a pair of ranks of the communicator of usual_group().
Group usual_pair(int ranks, std::uint64_t memory_bytes = 0,
                 const std::vector<std::string>& models = {});

/// Options for the arena of a pair with `bytes` of memory; 0 = the pair has no GPU memory.
ArenaOptions pair_arena_options(std::uint64_t bytes);
/// Most blocks of a kernel between two of `ranks` ranks, so that a GPU's kernels for all peers run
/// side by side and leave some SMs. sm_budget: 0 = none.
int pair_blocks(int ranks, int sm_budget = 0);

}  // namespace plait::cuda
