// Sizes of the plans' memory, and the names of lane kernels (the macros of gpu/lanes/lane.cu define
// them).
#include "gpu/lanes/plan_memory.hpp"

#include "base/text.hpp"
#include "gpu/engine/kernel_types.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kKib = 1ull << 10, kMib = 1ull << 20;

std::vector<PartSize> sizes_of(const Group& group, const ArenaOptions& wish) {
  if (!wish.plans) return {};
  PartSize scratch{.part = &kPlanScratch, .is_small_tier = !wish.two_tiers};
  PartSize inbox{.part = &kPlanInbox, .is_small_tier = !wish.two_tiers};
  scratch.turn = inbox.turn = wish.moves_only ? kLastTurn : kAnyCallsTurn;
  const auto set = [](PartSize& size, std::uint64_t least, std::uint64_t good, std::uint64_t best,
                      std::uint64_t step) {
    size.least = least, size.good = good, size.best = best, size.step = step;
  };
  if (wish.moves_only) {
    set(scratch, kMib, kMib, 16 * kMib, 64 * kKib);
    set(inbox, 256 * kKib, 256 * kKib, kMib, 64 * kKib);
    return {scratch, inbox};
  }
  const std::uint64_t asked = wish.plan_scratch;
  if (asked != 0)
    set(scratch, asked, asked, asked, 4096);
  else
    set(scratch, 4 * kMib, (group.ranks == 2 ? 16 : 4) * kMib, 64 * kMib, kMib);
  set(inbox, kMib, 2 * kMib, 16 * kMib, kMib);
  return {scratch, inbox};
}

KernelUses lane_uses(int ranks) {
  KernelUses uses;
  uses["plait_end_call"] = uses["plait_fail_if_peer_lost"] = {1, 0};
  for (const Request& request : requests_of_all_kernels(ranks)) uses[lane_kernel(request)] = {};
  return uses;
}

}  // namespace

const KernelFamily kLaneKernels{"plan", lane_uses};

const Resources& lane_resources() {
  static const Resources resources{
      {&kPlanFlags}, {&kPlanInbox, &kPlanScratch}, sizes_of, {&kLaneKernels}, {}};
  return resources;
}

std::string lane_kernel(const Request& request) {
  const bool common = has_sum_kernels(request.type, request.op, request.ranks);
  return joined("plait_lane_", name_of(request.type), common ? "_sum" : "_any");
}

}  // namespace plait::cuda
