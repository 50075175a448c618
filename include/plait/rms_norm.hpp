// RmsNorm: a sum over all ranks, then residual and RMSNorm, in one call
// (Communicator::all_reduce_rms_norm). Tensor-parallel layers make this step after each row-wise
// split product.
#pragma once
#include <cstdint>

#include "plait/plan.hpp"

namespace plait {

inline constexpr std::uint64_t kMostHidden = 16384;  ///< most elements of a row

/// The call, equal on all ranks. A row is a token. For each row:
///   sum      = sum over ranks 0, 1, ... of input, in fp32, rounded once: all_reduce's result
///   residual = residual + sum, in fp32, rounded once
///   square   = sum of the squares of the new residual, in fp32, as a balanced tree of neighbours:
///              ((0 + 1) + (2 + 3)) + ..., absent elements count as 0
///   output   = residual * (1 / sqrt(square * (1 / hidden) + epsilon)) * weight, each step in fp32,
///              rounded once
/// For fp8 the product is divided by the scale (as a factor 1 / scale) in fp32, values above 448
/// become 448, and the only rounding is to fp8e4m3. NaNs are canonical, as in every call.
struct RmsNorm {
  std::uint64_t rows = 0;
  std::uint64_t hidden = 0;          ///< elements of a row: a multiple of 8, at most kMostHidden
  DataType type = DataType::bf16;    ///< bf16 or fp16; of input, residual and weight
  DataType output = DataType::bf16;  ///< `type`, or fp8e4m3
  float epsilon = 1e-6f;
  bool operator==(const RmsNorm&) const = default;
};

/// Memory of a call, aligned to 16 bytes. `output` may be `input` if the types are equal; no other
/// two overlap.
struct RmsNormBuffers {
  const void* input = nullptr;   ///< rows * hidden elements
  void* residual = nullptr;      ///< rows * hidden elements, read and replaced
  const void* weight = nullptr;  ///< hidden elements
  void* output = nullptr;        ///< rows * hidden elements
  const float* scale = nullptr;  ///< of fp8 output, in the memory of the others; null = 1
};

/// Throws Error(invalid_argument, unsupported) for a call that plait does not make, or for buffers
/// that it does not take.
void check_norm(const RmsNorm& norm);
void check_norm(const RmsNorm& norm, const RmsNormBuffers& buffers);
/// The all_reduce inside the call.
Request all_reduce_of(const RmsNorm& norm, int ranks);
/// Bytes of the input, and of the output.
std::uint64_t input_bytes(const RmsNorm& norm);
std::uint64_t output_bytes(const RmsNorm& norm);

}  // namespace plait
