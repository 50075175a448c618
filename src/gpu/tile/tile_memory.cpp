// Sizes of the tiles' slots, and the names of tiled kernels (the macros of gpu/tile/tiled.cu define
// them).
#include "gpu/tile/tile_memory.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/tile/tiled_shape.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kKib = 1ull << 10;

/// With slots of 24 KiB four ranks take 4 to 5 % longer than with 48 KiB; with 64 KiB 1 to 2 %
/// longer than with 48, since fewer slots are cached (E-0269, E-0270). Two ranks have four times
/// the bytes that tiles take, since exchanges of two ranks borrow the slots; through host memory
/// exchanges have slots of their own. In calls of two ranks that only move data, tiles are no
/// faster than packets.
std::vector<PartSize> sizes_of(const Group& group, const ArenaOptions& wish) {
  const unsigned blocks = group.runs(kTiledKernels) ? blocks_of_tiles(group) : 0;
  if (wish.moves_only || blocks == 0) return {};
  const int ranks = group.ranks;
  const bool lends = ranks == 2 && !group.through_host;
  const std::uint64_t slots = tile_slots(ranks, blocks) * (lends ? 4 : 1);
  const std::uint64_t least = ranks <= 8 ? 16 : 8;
  const std::uint64_t best = ranks == 3 || ranks == 4 ? 48 : 64;
  const std::uint64_t good = ranks == 2 ? 32 : 48;
  return {{.part = &kTileMemory,
           .is_small_tier = !wish.two_tiers,
           .least = slots * least * kKib,
           .good = slots * good * kKib,
           .best = slots * best * kKib,
           .step = slots * kKib,
           .turn = kLargeCallsTurn,
           .way = blocks}};
}

KernelUses tiled_uses(int ranks) {
  KernelUses uses;
  for (const Request& request : requests_of_all_kernels(ranks))
    uses[tiled_kernel(request)] = {kTileThreads, kTileSharedBytes};
  return uses;
}

}  // namespace

/// From 12.0 on a block has 99 KiB of shared memory.
const KernelFamily kTiledKernels{
    "tiled", tiled_uses, 90, 120,
    "tiled kernels want 9.0 or later and 192 KiB of shared memory a block"};

const Resources& tile_resources() {
  static const Resources resources{
      {&kTileFlags}, {&kTileMemory}, sizes_of, {&kTiledKernels}, {kTilePlanFlags}};
  return resources;
}

unsigned blocks_of_tiles(const Group& group) {
  return std::min(group.blocks(), group.most_whole_sm_blocks);
}

std::string tiled_kernel(const Request& request) {
  return joined("plait_tiled_", name_of(moved_type(request)), sum_variant(request));
}

}  // namespace plait::cuda
