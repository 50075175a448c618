// Cuts pre-multiplied sums, and fills in the kernel's arguments.
#include "gpu/scale/scaled_input.hpp"

#include <algorithm>

namespace plait::cuda {
namespace {

KernelUses scale_uses(int) { return {{"plait_scale", {kScaleThreads, 0}}}; }

}  // namespace

const KernelFamily kScaleKernels{"pre-multiplied sum", scale_uses};

const Resources& scale_resources() {
  static const Resources resources{{}, {}, nullptr, {&kScaleKernels}, {}};
  return resources;
}

ScaleArgs scale_args(DataType type, const ScaleFactor& factor, const ScaledRows& rows,
                     const void* input, void* output) {
  const std::uint64_t element = bytes_of(type);
  return {static_cast<const char*>(input),
          static_cast<char*>(output),
          factor.on_gpu,
          factor.bits,
          rows.rows,
          rows.count * element,
          rows.stride * element,
          static_cast<std::int32_t>(type)};
}

unsigned scale_blocks(const ScaleArgs& args, const Group& group, unsigned most_blocks) {
  const std::uint64_t wanted = (args.row_bytes / 16 + kScaleThreads) / kScaleThreads;
  const unsigned most = group.blocks({});
  return static_cast<unsigned>(
      std::min<std::uint64_t>(wanted, most_blocks == 0 ? most : std::min(most, most_blocks)));
}

ScaledPieces scaled_pieces(const Request& sum, int rank) {
  if (sum.collective == Collective::all_reduce) return {sum.count, true};
  const std::uint64_t blocks =
      sum.collective == Collective::reduce_scatter ? static_cast<std::uint64_t>(sum.ranks) : 1;
  constexpr std::uint64_t kGrain = 64;  // elements: pieces begin as aligned as the call
  const std::uint64_t most = kMostScaledBytes / (blocks * bytes_of(sum.type)) / kGrain * kGrain;
  return {std::min(sum.count, most), sum.collective == Collective::reduce && sum.root == rank};
}

ScaledRows rows_of_piece(const Request& sum, std::uint64_t count) {
  if (sum.collective != Collective::reduce_scatter) return {1, count, count};
  return {static_cast<std::uint64_t>(sum.ranks), count, sum.count};
}

}  // namespace plait::cuda
