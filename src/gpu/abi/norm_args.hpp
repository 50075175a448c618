// Arguments of the kernels that sum rows over all ranks and normalise each row.
#pragma once
#include "gpu/abi/ll_args.hpp"

namespace plait::cuda {

/// True if a thread that holds this many 16-byte units of a row fits in 64 registers.
constexpr bool is_lean_norm(int units) { return units <= 2; }
/// Most threads of a block: a block takes half an SM.
constexpr int norm_threads(int units) { return is_lean_norm(units) ? 512 : 256; }
inline constexpr int kMostNormUnits = 8;  ///< kernels hold 2, 4 or 8 units a thread
/// Most units of a row: 16384 elements.
inline constexpr unsigned kMostRowUnits = norm_threads(kMostNormUnits) * kMostNormUnits;
/// Neighbouring units whose squares a warp sums.
inline constexpr unsigned kGroupUnits = 32;
inline constexpr unsigned kMostGroups = kMostRowUnits / kGroupUnits;

/// Kernels that sum and normalise (sum_norm.cuh).
enum class NormKernel { one_shot, cluster, two_shot };

/// Rows of equal length, one behind another. The message of FusedArgs is all rows.
struct NormArgs : FusedArgs {
  void* residual;      ///< read, and replaced by residual + sum
  const void* weight;  ///< one row
  const float* scale;  ///< of fp8 results; null = 1
  std::uint32_t rows;
  std::uint32_t row_units;    ///< 16-byte units of a row
  std::uint32_t slot_blocks;  ///< of sum_norm_two_shot: blocks of a cluster, which share slots
  std::uint32_t lanes;        ///< lanes of a warp that add up two groups each: a power of two
  std::int32_t is_fp8;        ///< not 0: results are fp8e4m3
  float inverse_length;       ///< 1 / elements of a row
  float epsilon;
};

}  // namespace plait::cuda
