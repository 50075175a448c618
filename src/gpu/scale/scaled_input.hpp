// The input of a pre-multiplied sum, multiplied by the rank's own factor in front of the sum: where
// the products lie, and the kernel that makes them. Ranks exchange no factors, so any engine sums
// the products. CudaRank launches the kernel, GpuCalls makes the calls.
#pragma once
#include <cstdint>

#include "gpu/engine/resources.hpp"
#include "gpu/scale/scale_args.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// A rank's factor of a pre-multiplied sum, of the elements' type.
struct ScaleFactor {
  const void* on_gpu = nullptr;  ///< read when the call runs; null = `bits`
  std::uint64_t bits = 0;        ///< in the lowest bytes
};

/// Elements of an input, as rows that begin `stride` elements apart.
struct ScaledRows {
  std::uint64_t rows = 1, count = 0, stride = 0;
};

extern const KernelFamily kScaleKernels;
const Resources& scale_resources();

/// Returns the arguments for products of type `type` at `output`. input: of the first row.
ScaleArgs scale_args(DataType type, const ScaleFactor& factor, const ScaledRows& rows,
                     const void* input, void* output);
/// Returns the blocks of a launch in this group.
unsigned scale_blocks(const ScaleArgs& args, const Group& group, unsigned most_blocks);

/// A call of a pre-multiplied sum in pieces: each a call of the sum on its own.
struct ScaledPieces {
  std::uint64_t piece = 0;  ///< elements of the request's count in a piece; of the last, the rest
  bool in_output = false;   ///< products lie in this rank's output, else in memory of the rank
};
/// Bytes of the memory in which a rank holds products, at most.
inline constexpr std::uint64_t kMostScaledBytes = 64ull << 20;
/// Returns how rank `rank` makes the call. All ranks cut alike.
ScaledPieces scaled_pieces(const Request& sum, int rank);
/// Returns the rows of a piece's input. count: elements of the request's count in the piece.
ScaledRows rows_of_piece(const Request& sum, std::uint64_t count);

}  // namespace plait::cuda
