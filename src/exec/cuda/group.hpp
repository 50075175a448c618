// What ranks on GPUs agreed on when they met: all that decisions about a call look at besides the
// request, equal on all ranks. A value, so every decision can be made, and tested, with no GPU.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "exec/cuda/device/arena.hpp"
#include "exec/cuda/device/kernel_families.hpp"
#include "exec/cuda/tuning.hpp"

namespace plait::cuda {

// Host memory of a rank: for plans, and behind it more for large calls, which take both.
inline constexpr std::uint64_t kPlanRingBytes = 8ull << 20;  ///< stays in the cache
inline constexpr std::uint64_t kExchangeRingBytes = 8ull << 20;

inline constexpr unsigned kTiledBlocks = 100, kTiledBlocksOverlapCompute = 64;

/// By Family: which GPU lacks what; empty where all GPUs run the family.
using FamilyLacks = std::array<std::string, kKernelFamilies>;

struct Group {
  int ranks = 1;
  unsigned multiprocessors = 132;  ///< of the GPU that has the fewest
  unsigned hardware_queues = 8;    ///< that streams share, of the rank that has the fewest
  unsigned most_blocks = 0;        ///< of a kernel, to leave SMs to others; 0 = one an SM
  /// Of a tiled kernel, so that others' fit beside. Beside computing 64 carry nearly as much, take
  /// no more from products than NCCL does, and let two calls run at once.
  unsigned most_tiled_blocks = kTiledBlocks;
  unsigned most_message_blocks = 0;    ///< of a launch of messages: all must run at once
  bool overlap_compute = false;        ///< large calls take few SMs, as where most_blocks is set
  bool in_processes = true;            ///< every rank is a process of its own
  bool has_host_reducer = false;       ///< CPU cores can take a part
  std::uint64_t host_bytes = 0;        ///< of a rank's host memory for large calls; 0 = none
  DeviceArenaSizes sizes;              ///< of all room
  ArenaTiers tiers;                    ///< how the budget was shared out
  bool has_small_arena_alone = false;  ///< what calls have until the later room is there
  bool has_rings_alone = false;        ///< copy engines' slots are as copy_ring uses them
  FamilyLacks why_not;

  /// "" where there is such a part; else why not, as why_not() of an engine says it.
  std::string why_no_part(ArenaPart part) const;
  const std::string& lacks(KernelFamily family) const {
    return why_not[static_cast<std::size_t>(family)];
  }
  /// No slots take large calls (yet), nor plans: any number of pieces or steps by lines is better
  /// than none.
  bool has_ll_only() const {
    const bool has_plans = sizes.scratch_bytes != 0;
    return has_small_arena_alone ||
           (sizes.tile_bytes == 0 && (runs(KernelFamily::tiled) || !has_plans));
  }
  bool runs(KernelFamily family) const { return lacks(family).empty(); }
  bool leaves_sms() const {
    return overlap_compute || (most_blocks != 0 && most_blocks < multiprocessors);
  }
  /// With one hardware queue, products that are enqueued behind an engine's wait would wait too.
  bool has_copy_engines() const;
  /// Blocks wait for each other across ranks, so all must run at once: one an SM.
  unsigned blocks(const Tuning& tuning = {}) const;
  /// Of tiled calls that have slots.
  unsigned blocks_of_tiles() const;
  /// Whole SMs less, so that small kernels find some.
  unsigned blocks_leaving_sms() const;
  unsigned blocks_alongside_copies(const Tuning& tuning) const;
  /// Of kernels that take pieces out of where copy engines put them; 0 = engines do that, too.
  unsigned blocks_that_move() const;
  /// Of a block of lines. Half an SM, so that another communicator's kernel fits beside it: the two
  /// could meet in different orders on different ranks. Of half the SMs, a block may take whole
  /// ones. is_lean: the kernel keeps within 64 registers.
  unsigned most_threads(bool is_lean) const;

  std::uint64_t inbox_bytes() const;     ///< copy engines' slots of a rank, as one; 0 = none
  std::uint64_t slot_bytes() const;      ///< one of them; 0 = room for rings alone
  std::uint64_t borrowed_bytes() const;  ///< slots of tiled kernels that engines borrow
  std::uint64_t ring_bytes() const;      ///< all of these, as rings of copy engines use them
};

/// What is wanted of memory beside what a group says.
struct ArenaOptions {
  std::uint64_t budget_bytes = 0;  ///< 0 = what is usual
  bool two_tiers = false;          ///< in two rooms
  bool floats_only = false;        ///< reductions of integers are not asked for
  bool moves_only = false;         ///< a pair's: nothing is reduced
  bool pairs = false;              ///< ranks may send to each other alone
  bool plans = false;              ///< plans may run
  std::uint64_t plan_scratch = 0;  ///< asked for by name; 0 = a part of the budget
};

/// Room for what the group's GPUs can run, within a budget, but for sizes that are there already.
void lay_out_arena(Group& group, const ArenaOptions& wish = {});
/// The group as it is until the later room is there.
Group small_arena_group_of(const Group& group);
/// Of so many H200s, a process each, with host memory that all map: for those who ask what would
/// run. memory_bytes: 0 = what is usual. models: of other GPUs (gpu_models.hpp).
Group usual_group(int ranks, bool overlap_compute = false, std::uint64_t memory_bytes = 0,
                  unsigned most_blocks = 0, const std::vector<std::string>& models = {});
/// Two ranks of such a communicator by themselves.
Group usual_pair(int ranks, std::uint64_t memory_bytes = 0,
                 const std::vector<std::string>& models = {});

/// What is wanted of memory for a pair that gets so much; 0 = it has no GPU.
ArenaOptions pair_arena_options(std::uint64_t bytes);
/// Most blocks of a kernel that sends between two ranks of so many: a GPU's with all other ranks
/// fit side by side, and leave some SMs to others. sm_budget: 0 = none.
int pair_blocks(int ranks, int sm_budget = 0);

}  // namespace plait::cuda
