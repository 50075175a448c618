// Sizes of the copy engines' slots, as far as a group's memory and hardware queues allow.
#include "gpu/copy/copy_memory.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "gpu/copy/exchange_cut.hpp"
#include "gpu/copy/ring_cut.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/tile/tile_memory.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kKib = 1ull << 10, kMib = 1ull << 20;

/// Few enough to leave memory bandwidth to copy engines, enough to reduce a piece while the next
/// piece arrives.
constexpr unsigned kBlocksAlongsideCopies = 48;

/// Reserves slots only if shipped tables would use the slots: with more than two ranks for
/// rotations under an SM budget, otherwise for rings of up to eight ranks. From 24 MiB on a pair's
/// copy engines have all the slots they need (docs/design/memory_tiers.md).
std::vector<PartSize> sizes_of(const Group& group, const ArenaOptions& wish) {
  const int ranks = group.ranks;
  if (group.through_host && ranks == 2) {
    PartSize staging = whole(kChunkStaging, staging_bytes());
    staging.is_small_tier = !wish.two_tiers;
    return {staging};
  }
  const bool copies = ranks > 1 && group.runs(kCopyKernels);
  const bool exchanges = copies && (ranks == 2 || group.most_blocks != 0);
  const bool rings = copies && ranks <= 8 && !exchanges;
  const std::uint64_t slots = exchanges ? rotation_slots(ranks) : kRingSlots;
  const std::uint64_t best = rotation_slot_bytes(ranks);
  const auto size = [&](std::uint64_t least, std::uint64_t good, std::uint64_t most) {
    // A user who sets the slots' size may use them for any engine.
    const bool is_for_rings = rings && group.sizes[kCopyMemory] == 0;
    return std::vector<PartSize>{{.part = &kCopyMemory,
                                  .is_small_tier = !wish.two_tiers,
                                  .least = slots * least,
                                  .good = slots * good,
                                  .best = slots * most,
                                  .step = slots * 64 * kKib,
                                  .turn = kLargestCallsTurn,
                                  .way = is_for_rings ? kRingsAlone : 0}};
  };
  if (exchanges && wish.moves_only) return size(4 * kMib, 6 * kMib, best);
  if (wish.moves_only) return {};
  if (exchanges && ranks == 2) {
    std::vector<PartSize> sizes = size(4 * kMib, 12 * kMib, best);
    if (wish.two_tiers && wish.budget_bytes == 0)
      sizes.push_back({.part = &kLongInbox,
                       .least = kLongInboxBytes,
                       .good = kLongInboxBytes,
                       .best = kLongInboxBytes,
                       .turn = kLargestCallsTurn,
                       .is_beyond_budget = true});
    return sizes;
  }
  if (exchanges) return size(2 * kMib, best / 4, best);
  if (!rings) return {};
  // With the tile slots, borrowed by rings, pieces are 24 to 32 MiB.
  const std::uint64_t more = ranks <= 4 ? 18 * kMib : 9 * kMib;
  return size(ranks <= 4 ? 4 * kMib : kMib, more, more);
}

KernelUses copy_uses(int ranks) {
  KernelUses uses;
  uses["plait_engine_step"] = uses["plait_engine_end"] = {32, 0};
  for (const Request& request : requests_of_all_kernels(ranks))
    for (const int sources : {1, 2, request.ranks})
      uses[piece_kernel(request.type, request.op, sources, SumOrder::rank_order)] = {};
  return uses;
}

KernelUses copy_tree_uses(int ranks) {
  KernelUses uses;
  for (const Request& request : requests_of_trees(ranks))
    uses[piece_kernel(request.type, request.op, ranks, SumOrder::tree)] = {};
  return uses;
}

}  // namespace

const KernelFamily kCopyKernels{"copy engine", copy_uses};
const KernelFamily kCopyTreeKernels{
    .name = "copy engine in trees", .uses = copy_tree_uses, .sums_in_trees = true};

const Resources& copy_resources() {
  static const Resources resources{
      {&kEngineFlags},
      {&kCopyMemory, &kChunkStaging, &kLongInbox},
      sizes_of,
      {&kCopyKernels, &kCopyTreeKernels},
      {kCopyPlanFlags, kHostPlanFlags, kEventPlanFlags, kPartPlanFlags}};
  return resources;
}

std::uint64_t staging_bytes() { return kChunkSlots * kMostChunkBytes; }

std::string piece_kernel(DataType type, ReduceOp op, int sources, SumOrder order) {
  if (sources == 1) return "plait_piece_move";
  const bool common = has_sum_kernels(type, op, sources) && is_common_number(sources);
  const char* const kind = is_tree(order) && sources > 2 ? "_tree_" : common ? "_sum_" : "_any_";
  return joined("plait_piece_", name_of(type), kind, std::to_string(common ? sources : 0));
}

bool has_copy_engines(const Group& group) {
  constexpr unsigned kEnoughQueues = 8;
  return group.hardware_queues >= kEnoughQueues && group.runs(kCopyKernels);
}

std::string why_no_copy_engines(const Group& group) {
  if (!group.in_processes) return "copy engines need a process for each rank";
  if (!group.runs(kCopyKernels)) return group.lacks(kCopyKernels);
  if (!has_copy_engines(group))
    return text("copy engines need 8 hardware queues, found {} (set CUDA_DEVICE_MAX_CONNECTIONS)",
                group.hardware_queues);
  return "";
}

unsigned blocks_alongside_copies(const Group& group, const Tuning& tuning) {
  return std::min(group.blocks(), tuning.blocks != 0 ? static_cast<unsigned>(tuning.blocks)
                                                     : kBlocksAlongsideCopies);
}

unsigned blocks_that_move(const Group& group) {
  return group.leaves_sms() ? 0 : kBlocksAlongsideCopies;
}

std::uint64_t inbox_bytes(const Group& group) {
  return has_copy_engines(group) ? group.sizes[kCopyMemory] : 0;
}

std::uint64_t long_inbox_bytes(const Group& group, std::uint64_t part_bytes) {
  const std::uint64_t bytes = group.sizes[kLongInbox];
  const bool is_long = part_bytes >= kInboxesOfLong * bytes && inbox_bytes(group) != 0;
  return is_long && group.host_bytes != 0 ? bytes : 0;
}

std::uint64_t slot_bytes(const Group& group) {
  if (group.sizes.divided(kCopyMemory) == kRingsAlone) return 0;
  return inbox_bytes(group) / rotation_slots(group.ranks) / 4096 * 4096;
}

std::uint64_t borrowed_bytes(const Group& group) {
  const bool borrows = inbox_bytes(group) != 0 && (group.ranks > 2 || slot_bytes(group) != 0);
  return borrows ? group.sizes[kTileMemory] : 0;
}

std::uint64_t ring_bytes(const Group& group) {
  return group.ranks > 2 ? borrowed_bytes(group) / 4096 * 4096 + inbox_bytes(group) : 0;
}

std::uint64_t rotation_slots(int ranks) {
  return static_cast<std::uint64_t>(std::max(2, ranks - 1)) * kRotationSlots;
}

std::uint64_t rotation_slot_bytes(int ranks) {
  const std::uint64_t mib = ranks == 2 ? 32 : ranks <= 4 ? 64 : ranks <= 8 ? 16 : 8;
  return mib << 20;
}

}  // namespace plait::cuda
