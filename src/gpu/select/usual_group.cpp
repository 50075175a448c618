// Lays out the memory of all rooms within a budget.
#include "gpu/select/usual_group.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "gpu/engine/gpu_models.hpp"
#include "gpu/select/all_resources.hpp"
#include "plait/error.hpp"

namespace plait::cuda {

void lay_out_arena(Group& group, const ArenaOptions& wish) {
  const DeviceArenaSizes requested = group.sizes;
  std::vector<PartSize> sizes;
  for (const Resources* const room : all_resources()) {
    if (room->sizes == nullptr) continue;
    const std::vector<PartSize> more = room->sizes(group, wish);
    sizes.insert(sizes.end(), more.begin(), more.end());
  }
  const std::uint64_t bytes =
      wish.budget_bytes != 0 ? wish.budget_bytes : usual_memory_bytes(group.ranks);
  group.tiers = lay_out(sizes, {.bytes = bytes,
                                .ranks = group.ranks,
                                .two_tiers = wish.two_tiers,
                                .is_pair = wish.moves_only,
                                .pairs = wish.pairs ? group.ranks - 1 : 0});
  for (const PartSize& size : sizes) group.sizes.divide(*size.part, size.way);
  for (const ArenaPart* const part : arena_contents().parts) {
    const std::uint64_t first = group.tiers.small[*part], later = group.tiers.large[*part],
                        said = requested[*part];
    group.sizes[*part] = said != 0 ? said : later != 0 ? later : first;
  }
  if (!wish.two_tiers) group.tiers.small = group.sizes;
}

Group small_arena_group_of(const Group& group) {
  Group first = group;
  first.sizes = group.tiers.small;
  first.has_small_arena_alone = group.sizes != group.tiers.small;
  if (first.has_small_arena_alone) {  // Host memory comes with the large arena.
    first.host_bytes = 0;
    first.has_host_reducer = false;
  }
  return first;
}

Group usual_group(int ranks, bool overlap_compute, std::uint64_t memory_bytes, unsigned most_blocks,
                  const std::vector<std::string>& models) {
  Group group;
  describe(group, models, kernel_families());
  group.ranks = ranks;
  group.most_blocks = most_blocks;
  group.overlap_compute = overlap_compute;
  if (overlap_compute) group.most_whole_sm_blocks = kWholeSmBlocksOverlapCompute;
  group.host_bytes = kPlanRingBytes + kExchangeRingBytes;
  group.has_host_reducer = true;
  lay_out_arena(group, {.budget_bytes = memory_bytes,
                        .two_tiers = true,
                        .floats_only = overlap_compute,
                        .pairs = !overlap_compute,
                        .plans = !overlap_compute});
  return group;
}

ArenaOptions pair_arena_options(std::uint64_t bytes) {
  const bool is_large = bytes > kSmallPairBytes;
  return {.budget_bytes = bytes, .two_tiers = is_large, .moves_only = true, .plans = is_large};
}

int pair_blocks(int ranks, int sm_budget) {
  const int most = std::max(1, 96 / (ranks - 1));
  return sm_budget == 0 ? most : std::min(sm_budget, most);
}

Group usual_pair(int ranks, std::uint64_t memory_bytes, const std::vector<std::string>& models) {
  const std::uint64_t bytes = usual_group(ranks, false, memory_bytes, 0, models).tiers.pair_bytes;
  if (bytes == 0)
    throw Error(ErrorCode::invalid_argument,
                text("PLAIT_DEVICE_MEMORY leaves nothing for two of ", ranks, " ranks; raise it"));
  Group group = usual_group(2, false, 0, 0, models);
  group.most_blocks = static_cast<unsigned>(pair_blocks(ranks));
  group.sizes = {};
  lay_out_arena(group, pair_arena_options(bytes));
  return group;
}

}  // namespace plait::cuda
