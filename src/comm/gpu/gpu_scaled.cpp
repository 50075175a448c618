// Pre-multiplied sums with a factor a rank: the rank's products, then the sum of the products by
// any engine.
#include <algorithm>

#include "comm/gpu/drop_in.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "gpu/device/call_buffers.hpp"

namespace plait {

/// Memory for products is allocated at first need. With several ranks in a process the allocation
/// could wait for a kernel that waits for this process, as the large arena's could. Several pieces
/// would be several calls to the large arena's count.
const char* GpuCalls::why_not_scaled(const LimitedRequest& sum) {
  const cuda::Group& group = cuda_->full_group();
  if (!reduces(sum.collective) || sum.op != ReduceOp::sum || sum.count == 0)
    return "only sums of at least one element take factors";
  if (!group.runs(cuda::kScaleKernels)) return "no kernel for factors is loaded";
  if (sum.collective != Collective::all_reduce && !group_.in_processes)
    return "its products need memory, which ranks of one process cannot get during calls";
  if (options_.beats_nccl && !group.through_host &&
      input_bytes(sum, group_.rank) > most_scaled_ahead_of_nccl(sum))
    return "its products with the rank's factor take longer than the sum is ahead of NCCL's";
  const std::uint64_t piece = cuda::scaled_pieces(sum, group_.rank).piece;
  if (piece < sum.count && cuda_->has_lazy_arena())
    return "its products do not fit into the memory for products";
  const auto takes_piece = [&](std::uint64_t count) {
    LimitedRequest part = sum;
    part.count = count;
    return takes(part);
  };
  if (!takes_piece(piece) || (sum.count % piece != 0 && !takes_piece(sum.count % piece)))
    return "no engine serves the sum of the products";
  return nullptr;
}

int GpuCalls::enqueue_scaled(const LimitedRequest& sum, const cuda::ScaleFactor& factor,
                             const void* input, void* output, cuda::Stream stream) {
  cuda::check_alignment(sum, group_.rank, input, output);
  const cuda::ScaledPieces pieces = cuda::scaled_pieces(sum, group_.rank);
  const std::uint64_t element = bytes_of(sum.type);
  int engine = -1;
  for (std::uint64_t at = 0; at < sum.count; at += pieces.piece) {
    LimitedRequest part = sum;
    part.count = std::min(pieces.piece, sum.count - at);
    const cuda::ScaledRows rows = cuda::rows_of_piece(sum, part.count);
    const auto* const from = static_cast<const char*>(input) + at * element;
    // Peers of a root have no output.
    char* const to = output == nullptr ? nullptr : static_cast<char*>(output) + at * element;
    char* const products =
        pieces.in_output ? to : cuda_->memory_of_products(rows.rows * rows.count * element);
    cuda_->enqueue_products(cuda::scale_args(sum.type, factor, rows, from, products),
                            sum.limits.most_blocks, stream);
    engine = enqueue_taken(part, products, to, stream);
  }
  return engine;
}

}  // namespace plait
