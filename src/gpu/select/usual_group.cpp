// Lays out the memory of all rooms within a budget. A usual group knows its GPUs from their names
// alone; communicators on GPUs probe kernels instead (engine/kernel_families.hpp).
#include "gpu/select/usual_group.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/select/all_resources.hpp"
#include "plait/error.hpp"
#include "topo/gpu_models.hpp"

namespace plait::cuda {

namespace {

constexpr int kLeast = 80;  // device code is built from this compute capability on (docs/nccl.md)

std::string number(int capability) { return text("{}.{}", capability / 10, capability % 10); }

/// Returns the kernel families that some model does not run. An unknown GPU runs all.
FamilyLacks lacks_of(const std::vector<std::string>& models) {
  FamilyLacks lacks;
  for (const std::string& model : models) {
    const GpuModel* const known = gpu_model(model);
    if (known == nullptr) continue;
    if (known->is_of_amd) {
      lacks.add_all(text("{} is a GPU of AMD, plait's device code runs on GPUs of NVIDIA", model));
      return lacks;
    }
    const int capability = known->capability;
    const std::string found = text("{} has compute capability {}", model, number(capability));
    if (capability < kLeast) {
      lacks.add_all(text("{}, plait's device code wants {} or later", found, number(kLeast)));
      return lacks;
    }
    for (const KernelFamily* const family : kernel_families())
      if (lacks.of(*family).empty() && (capability < family->from || capability >= family->below))
        lacks.add(*family, text("{}, {}", found, family->wants));
  }
  return lacks;
}

/// Fills in what ranks on `models` agree on: kernels that all run, and the multiprocessors of the
/// smallest. No models: leaves the group unchanged.
void describe(Group& group, const std::vector<std::string>& models) {
  if (models.empty()) return;
  group.why_not = lacks_of(models);
  unsigned fewest = ~0u;
  bool all_known = true;
  for (const std::string& model : models) {
    const GpuModel* const known = gpu_model(model);
    if (known == nullptr || known->multiprocessors == 0)
      all_known = false;
    else
      fewest = std::min(fewest, known->multiprocessors);
  }
  group.multiprocessors = all_known ? fewest : std::min(fewest, group.multiprocessors);
}

}  // namespace

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

std::uint64_t usual_host_bytes(int ranks) {
  constexpr std::uint64_t kHostBytes = 64ull << 20;
  return kHostBytes + (ranks == 2 ? staging_bytes() : 0);
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
                  const std::vector<std::string>& models, bool through_host, bool has_islands) {
  Group group;
  describe(group, models);
  group.through_host = through_host;
  group.has_islands = through_host && has_islands;
  if (through_host && memory_bytes == 0) memory_bytes = usual_host_bytes(ranks);
  group.ranks = ranks;
  group.most_blocks = most_blocks;
  group.overlap_compute = overlap_compute;
  group.most_whole_sm_blocks = whole_sm_blocks(group.multiprocessors, overlap_compute);
  group.host_bytes = kPlanRingBytes + kExchangeRingBytes;
  group.has_host_reducer = !through_host || cores_take_calls(ranks);
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
                text("PLAIT_DEVICE_MEMORY leaves nothing for two of {} ranks; raise it", ranks));
  Group group = usual_group(2, false, 0, 0, models);
  group.most_blocks = static_cast<unsigned>(pair_blocks(ranks));
  group.sizes = {};
  lay_out_arena(group, pair_arena_options(bytes));
  return group;
}

}  // namespace plait::cuda
