// Values agreed on at set-up that engine choices depend on besides the request; equal on all ranks.
// A pure value, so tests make every decision without a GPU.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/arena/arena.hpp"
#include "gpu/engine/kernel_families.hpp"
#include "gpu/engine/tuning.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

// Host memory of a rank: a ring for plans, and more behind the ring. Large calls use both.
inline constexpr std::uint64_t kPlanRingBytes = 8ull << 20;  ///< Stays in the cache.
inline constexpr std::uint64_t kExchangeRingBytes = 8ull << 20;

/// Multiprocessors of an H200: of GPUs that nothing is known of, and the count behind
/// whole_sm_blocks().
inline constexpr unsigned kUsualMultiprocessors = 132;

/// Most blocks of a kernel that takes whole SMs, so that other kernels fit beside it. On an H200
/// 100 blocks fill the links (338 of 346 GB/s, E-0132) and leave 32 SMs; alongside compute 64 carry
/// nearly as much, slow matrix products no more than NCCL does, and let two calls run at once.
/// Smaller GPUs get the same limits, larger GPUs leave as many SMs (not measured).
constexpr unsigned whole_sm_blocks(unsigned multiprocessors, bool overlap_compute) {
  if (multiprocessors <= kUsualMultiprocessors) return overlap_compute ? 64 : 100;
  return overlap_compute ? multiprocessors / 2 - 2 : multiprocessors - 32;
}

/// Whether CPU cores may reduce whole calls of ranks without a link (host_path/host_cores.cpp).
constexpr bool cores_take_calls(int ranks) { return ranks > 2; }

struct Group {
  int ranks = 1;
  unsigned multiprocessors = kUsualMultiprocessors;  ///< SMs of the smallest GPU.
  unsigned hardware_queues = 8;  ///< Shared by streams; of the rank with the fewest.
  unsigned most_blocks = 0;  ///< Most blocks of a kernel, to leave SMs to others; 0 = one per SM.
  /// Most blocks of a kernel that takes whole SMs: whole_sm_blocks() of the GPUs.
  unsigned most_whole_sm_blocks = whole_sm_blocks(kUsualMultiprocessors, false);
  /// Most blocks of a message launch. All must run at once.
  unsigned most_message_blocks = 0;
  bool overlap_compute = false;   ///< Large calls take few SMs, as if most_blocks were set.
  bool in_processes = true;       ///< Every rank is a separate process.
  bool through_host = false;      ///< Arenas lie in host memory.
  bool has_islands = false;       ///< And some ranks address each other's GPU memory.
  bool has_host_reducer = false;  ///< CPU cores can reduce a part, or calls without a link.
  std::uint64_t host_bytes = 0;   ///< Host memory of a rank for large calls; 0 = none.
  DeviceArenaSizes sizes;         ///< Sizes over both tiers.
  ArenaTiers tiers;               ///< Result of lay_out_arena().
  SumOrder sum_order = SumOrder::rank_order;  ///< Rank order, or a tree, which is a demand.
  bool has_small_arena_alone = false;  ///< Calls have the small arena until the large arena exists.
  FamilyLacks why_not;

  /// Returns "" if the part exists; otherwise the reason, worded like an engine's why_not().
  std::string why_no_part(const ArenaPart& part) const;
  /// The GPU and the missing feature; empty if all GPUs run the family.
  const std::string& lacks(const KernelFamily& family) const { return why_not.of(family); }
  bool runs(const KernelFamily& family) const { return lacks(family).empty(); }
  bool leaves_sms() const {
    return overlap_compute || (most_blocks != 0 && most_blocks < multiprocessors);
  }
  /// Blocks of a kernel. All must run at once, a block per SM, since blocks wait for each other
  /// across ranks.
  unsigned blocks(const Tuning& tuning = {}) const;
  /// Blocks that leave some whole SMs to small kernels.
  unsigned blocks_leaving_sms() const;
  /// Threads of a block with LL packets. A block takes half an SM, so that another communicator's
  /// kernel fits beside it, since the two may come in different orders on different ranks. A kernel
  /// on half of the SMs may take whole SMs. is_lean: the kernel fits in 64 registers.
  unsigned most_threads(bool is_lean) const;
};

/// Options for lay_out_arena() (select/usual_group.hpp) beside the group's values.
struct ArenaOptions {
  std::uint64_t budget_bytes = 0;  ///< 0 = default.
  bool two_tiers = false;          ///< Small arena now, large arena later.
  bool floats_only = false;        ///< No reductions of integers.
  bool moves_only = false;         ///< For a pair that reduces nothing.
  bool pairs = false;              ///< Ranks may send to peers in pairs.
  bool plans = false;              ///< Plans may run.
  std::uint64_t plan_scratch = 0;  ///< Size the user asked for; 0 = a share of the budget.
};

}  // namespace plait::cuda
