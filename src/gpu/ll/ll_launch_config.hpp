// Launch configuration of calls by escaped packets (direct_ll, ll_chain), and the choice of the
// short_direct_ll kernel.
#pragma once
#include <algorithm>

#include "gpu/abi/ll_args.hpp"
#include "gpu/device/kernels.hpp"
#include "gpu/engine/group.hpp"
#include "gpu/engine/tuning.hpp"
#include "gpu/ll/ll_cut.hpp"
#include "gpu/ll/ll_memory.hpp"

namespace plait::cuda {

/// Returns a thread for each unit of the piece, as far as blocks allow. Short calls get small
/// blocks, to use more SMs. is_lean: a block of the kernel takes half an SM.
inline KernelLaunchConfig ll_launch_config(std::uint64_t units, bool is_lean, unsigned most_blocks,
                                           const Tuning& tuning, const Group& group) {
  KernelLaunchConfig config;
  config.threads = tuning.threads != 0 ? static_cast<unsigned>(tuning.threads)
                   : units < 8192      ? 128
                   : units < 65536     ? 256
                                       : group.most_threads(is_lean);
  config.blocks = static_cast<unsigned>(
      std::min<std::uint64_t>((units + config.threads - 1) / config.threads, most_blocks));
  config.programmatic = true;
  return config;
}

/// Most units of a part for which short_direct_ll is faster, for at most `ranks` ranks. The limits
/// of more than four ranks are older; longer parts were not timed. Source:
/// bench/results/gpu_short_hops_h200x4.csv (fp32).
struct ShortDirectLlUnits {
  int ranks;
  std::uint64_t sums, moves;
};
inline constexpr ShortDirectLlUnits kShortDirectLlUnits[] = {
    {2, 8192, 32768}, {4, 32768, 32768}, {8, 8192, 16384}};

/// True if short_direct_ll serves the call.
inline bool is_short_direct_ll(const Request& request, const LlCut& cut,
                               const KernelLaunchConfig& config,
                               SumOrder order = SumOrder::rank_order) {
  if (!has_short_direct_ll(request, order) || cut.pieces != 1 ||
      config.threads > kShortDirectLlThreads ||
      std::uint64_t{config.blocks} * config.threads < cut.units)
    return false;
  for (const ShortDirectLlUnits& most : kShortDirectLlUnits)
    if (request.ranks <= most.ranks)
      return cut.units <= (reduces(request.collective) ? most.sums : most.moves);
  return false;
}

}  // namespace plait::cuda
