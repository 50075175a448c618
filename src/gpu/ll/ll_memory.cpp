// Sizes of the packets' memory, and the names of LL kernels (the macros of gpu/ll/*.cu define
// them).
#include "gpu/ll/ll_memory.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/lanes/plan_memory.hpp"
#include "gpu/tile/tile_memory.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kKib = 1ull << 10, kMib = 1ull << 20, kPage = 4096;

/// A 16-byte unit of `direct_ll` takes 24 bytes of a half per peer. Sizes hold the units of 1 MiB
/// and a greeting packet. In two pieces, 1 MiB takes four ranks as long as 2 MiB (E-0279).
constexpr std::uint64_t kSmallSentinel = 1600 * kKib, kSmallSentinelOfMore = 3584 * kKib,
                        kSmallSentinelOfFour = 4672 * kKib;

PartSize sentinels(bool is_small_tier, std::uint64_t least, std::uint64_t good, std::uint64_t best,
                   std::uint64_t step) {
  return {.part = &kSentinelPackets,
          .is_small_tier = is_small_tier,
          .least = least,
          .good = good,
          .best = best,
          .step = step,
          .turn = kSmallCallsTurn,
          .needed_as = "LL packets"};
}

/// In calls of two ranks that only move data, more packets gain nothing.
std::vector<PartSize> sizes_of_pair() {
  PartSize flags = whole(kFlagPackets, kPage);
  flags.turn = kSmallCallsTurn;
  return {flags, sentinels(true, 256 * kKib, kSmallSentinel, kSmallSentinel, 64 * kKib)};
}

std::vector<PartSize> sizes_of(const Group& group, const ArenaOptions& wish) {
  if (wish.moves_only) return sizes_of_pair();
  const int ranks = group.ranks;
  // Through host memory two ranks take chunks for calls of more than 640 KiB. A call has a quarter
  // of a half of 4 MiB, which holds the packets of shorter ones in a piece.
  const bool has_chunks = group.through_host && ranks == 2;
  const std::uint64_t integers =
      wish.floats_only ? 256 * kKib : (has_chunks ? 2 : 4) * kMib + kPage;
  std::vector<PartSize> sizes{{.part = &kFlagPackets,
                               .is_small_tier = true,
                               .least = std::min(64 * kKib, integers),
                               .good = integers,
                               .best = integers,
                               .step = 64 * kKib,
                               .turn = kSmallCallsTurn}};
  const std::uint64_t small = ranks == 2 ? kSmallSentinel : kSmallSentinelOfMore;
  const std::uint64_t first = has_chunks ? 4 * kMib : ranks == 4 ? kSmallSentinelOfFour : small;
  if (wish.two_tiers) sizes.push_back(sentinels(true, 256 * kKib, first, first, 64 * kKib));
  // A two_shot that reuses packets has 24 MiB at most. More packets mean fewer pieces for chains
  // and for direct_ll of two ranks.
  const std::uint64_t best = has_chunks   ? 4 * kMib
                             : ranks == 2 ? 64 * kMib
                             : ranks <= 4 ? 96 * kMib
                                          : 40 * kMib;
  const std::uint64_t good = has_chunks   ? 4 * kMib
                             : ranks == 2 ? 24 * kMib
                             : ranks <= 4 ? 32 * kMib
                                          : 20 * kMib;
  // Through host memory chunks and CPU cores serve calls of more than four ranks that need more
  // packets than this, and chunks come last in the budget.
  const bool has_more = ranks > 4 && !group.through_host;
  const std::uint64_t least = !wish.two_tiers ? small / 2 : has_more ? 20 * kMib : 2 * small;
  sizes.push_back(sentinels(!wish.two_tiers, std::min(least, good), good, best, 256 * kKib));
  return sizes;
}

void add_shots(KernelUses& uses, const Request& request, SumOrder order) {
  if (has_two_shot_to_root(request)) uses[shot_kernel("two_shot", request, true, order)] = {};
  if (request.collective != Collective::all_reduce) return;
  for (const char* const kernel : {"one_shot", "two_shot", "long_two_shot"})
    for (const bool nan_sentinel : {false, true})
      if (nan_sentinel ? is_float(request.type) : !is_in_tree(request, order))
        uses[shot_kernel(kernel, request, nan_sentinel, order)] = {};
}

KernelUses shot_uses(int ranks) {
  KernelUses uses;
  for (const Request& request : requests_of_all_kernels(ranks))
    add_shots(uses, request, SumOrder::rank_order);
  return uses;
}

KernelUses shot_tree_uses(int ranks) {
  KernelUses uses;
  for (const Request& request : requests_of_trees(ranks))
    if (sums_common_floats(request)) add_shots(uses, request, SumOrder::tree);
  return uses;
}

void add_direct_ll(KernelUses& uses, const Request& request, SumOrder order) {
  uses[direct_ll_kernel(request, false, order)] = {};
  if (has_short_direct_ll(request, order))
    uses[direct_ll_kernel(request, true, order)] = {kShortDirectLlThreads, 0};
}

KernelUses direct_ll_uses(int ranks) {
  KernelUses uses;
  for (const Request& request : requests_of_all_kernels(ranks)) {
    add_direct_ll(uses, request, SumOrder::rank_order);
    for (const bool is_long : {false, true}) uses[chain_kernel(request, is_long)] = {};
  }
  return uses;
}

KernelUses direct_ll_tree_uses(int ranks) {
  KernelUses uses;
  for (const Request& request : requests_of_trees(ranks))
    add_direct_ll(uses, request, SumOrder::tree);
  return uses;
}

}  // namespace

const KernelFamily kShotKernels{"one_shot and two_shot", shot_uses};
const KernelFamily kDirectLlKernels{"direct_ll and ll_chain", direct_ll_uses};
const KernelFamily kShotTreeKernels{
    .name = "one_shot and two_shot in trees", .uses = shot_tree_uses, .sums_in_trees = true};
const KernelFamily kDirectLlTreeKernels{
    .name = "direct_ll in trees", .uses = direct_ll_tree_uses, .sums_in_trees = true};

const Resources& ll_resources() {
  static const Resources resources{
      {&kChainFlags, &kShotFlags},
      {&kFlagPackets, &kSentinelPackets},
      sizes_of,
      {&kShotKernels, &kDirectLlKernels, &kShotTreeKernels, &kDirectLlTreeKernels},
      {}};
  return resources;
}

bool has_ll_only(const Group& group) {
  const bool has_plans = group.sizes[kPlanScratch] != 0;
  return group.has_small_arena_alone ||
         (group.sizes[kTileMemory] == 0 && (group.runs(kTiledKernels) || !has_plans));
}

bool has_two_shot_to_root(const Request& request) {
  return request.collective == Collective::reduce && is_common_sum(request) && request.ranks > 2;
}

std::string shot_kernel(const std::string& kernel, const Request& request, bool nan_sentinel,
                        SumOrder order) {
  const bool to_root = request.collective == Collective::reduce;
  const int ranks = is_common_number(request.ranks) ? request.ranks : 0;
  return joined(
      "plait_", kernel, to_root ? "_to_root_" : "_", name_of(request.type),
      is_in_tree(request, order) ? joined("_tree_", std::to_string(ranks)) : sum_variant(request),
      nan_sentinel ? "_nan_sentinel" : "_flag");
}

bool has_short_direct_ll(const Request& request, SumOrder order) {
  if (is_in_tree(request, order)) return sums_common_floats(request) && request.ranks <= 8;
  const bool is_common = !reduces(request.collective) || sums_common_floats(request);
  return request.ranks <= (is_common ? 8 : 4);
}

std::string direct_ll_kernel(const Request& request, bool is_short, SumOrder order) {
  const bool is_tree = is_in_tree(request, order), is_common = sums_common_floats(request);
  const char* const kind = !reduces(request.collective) ? "_place"
                           : is_common                  ? is_tree ? "_tree" : "_sum"
                           : is_tree                    ? "_anytree"
                                                        : "_any";
  const char* const type = name_of(moved_type(request));
  if (is_short)
    return joined("plait_short_direct_ll_", type, kind, request.ranks <= 4 ? "_4" : "_8");
  return joined("plait_direct_ll_", type, kind);
}

bool is_lean_chain(const Request& request) {
  return !reduces(request.collective) || sums_common_floats(request);
}

std::string chain_kernel(const Request& request, bool is_long) {
  const char* const kind = !reduces(request.collective) ? "_place"
                           : is_lean_chain(request)     ? "_sum"
                                                        : "_any";
  return joined(is_long ? "plait_long_chain_" : "plait_ll_chain_", name_of(moved_type(request)),
                kind);
}

}  // namespace plait::cuda
