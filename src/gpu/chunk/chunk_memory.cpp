// Sizes of the chunks' memory, and the names of chunk kernels (the macros of
// gpu/chunk/direct_chunks.cu define them).
#include "gpu/chunk/chunk_memory.hpp"

#include "base/text.hpp"
#include "gpu/engine/kernel_types.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kMib = 1ull << 20;

/// Over links, packets and tiles are faster. A message longer than a half takes a launch for each
/// piece, and each launch takes 15 us more than its data (E-0475). Copy engines carry messages of
/// more than two pieces.
std::vector<PartSize> sizes_of(const Group& group, const ArenaOptions& wish) {
  if (!group.through_host || group.ranks < 2) return {};
  const auto peers = static_cast<std::uint64_t>(group.ranks - 1);
  const std::uint64_t least = group.ranks <= 8 ? kMib : kMib / 4;  // of a peer, in a piece
  const std::uint64_t half = peers * (group.ranks == 2 ? 8 : 4) * kMib;
  // Two ranks with the usual budget get all of it, pairs and small budgets what is left.
  const bool is_usual = group.ranks == 2 && !wish.moves_only && wish.budget_bytes >= 64 * kMib;
  return {{.part = &kChunkMemory,
           .is_small_tier = !wish.two_tiers,
           .least = is_usual ? half : peers * least,
           .good = half,
           .best = half,
           .step = peers * kMib / 4,
           .turn = kLargestCallsTurn}};
}

KernelUses chunk_uses(int ranks) {
  KernelUses uses;
  for (const Request& request : requests_of_all_kernels(ranks))
    uses[chunk_kernel(request, SumOrder::rank_order)] = {kChunkThreads, 0};
  return uses;
}

KernelUses chunk_tree_uses(int ranks) {
  KernelUses uses;
  for (const Request& request : requests_of_trees(ranks))
    uses[chunk_kernel(request, SumOrder::tree)] = {kChunkThreads, 0};
  return uses;
}

}  // namespace

const KernelFamily kChunkKernels{"direct_chunks", chunk_uses};
const KernelFamily kChunkTreeKernels{
    .name = "direct_chunks in trees", .uses = chunk_tree_uses, .sums_in_trees = true};

const Resources& chunk_resources() {
  static const Resources resources{
      {&kChunkFlags}, {&kChunkMemory}, sizes_of, {&kChunkKernels, &kChunkTreeKernels}, {}};
  return resources;
}

std::string chunk_kernel(const Request& request, SumOrder order) {
  const char* const kind = !reduces(request.collective)  ? "_place"
                           : is_in_tree(request, order)  ? "_tree"
                           : sums_common_floats(request) ? "_sum"
                                                         : "_any";
  return joined("plait_direct_chunks_", name_of(moved_type(request)), kind);
}

}  // namespace plait::cuda
