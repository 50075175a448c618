// Residual and RMSNorm in host memory, with the roundings and the order of
// include/plait/rms_norm.hpp (gpu/norm/row_norm.cuh mirrors this file).
#include "cpu/rms_norm.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "cpu/float_mode.hpp"
#include "cpu/numbers.hpp"

namespace plait {
namespace {

constexpr float kMostFp8 = 448.0f;

/// Sums the squares in a balanced tree of neighbours. squares: a power of two of them.
float sum_in_tree(std::vector<float>& squares) {
  for (std::size_t left = squares.size() / 2; left > 0; left /= 2)
    for (std::size_t i = 0; i < left; ++i) squares[i] = squares[2 * i] + squares[2 * i + 1];
  return squares[0];
}

template <DataType kType>
void norm_rows(const RmsNorm& norm, const void* sums, const RmsNormBuffers& buffers) {
  using N = Number<kType>;
  using Stored = typename N::Stored;
  const auto* const weight = static_cast<const Stored*>(buffers.weight);
  const float inverse_length = 1.0f / static_cast<float>(norm.hidden);
  const float inverse_scale = buffers.scale == nullptr ? 1.0f : 1.0f / *buffers.scale;
  std::vector<float> squares(std::bit_ceil(norm.hidden));
  for (std::uint64_t row = 0; row < norm.rows; ++row) {
    const std::uint64_t at = row * norm.hidden;
    const Stored* const sum = static_cast<const Stored*>(sums) + at;
    Stored* const residual = static_cast<Stored*>(buffers.residual) + at;
    std::fill(squares.begin(), squares.end(), 0.0f);
    for (std::uint64_t i = 0; i < norm.hidden; ++i) {
      residual[i] = N::down(N::up(sum[i]) + N::up(residual[i]));
      squares[i] = N::up(residual[i]) * N::up(residual[i]);
    }
    const float factor = 1.0f / std::sqrt(sum_in_tree(squares) * inverse_length + norm.epsilon);
    for (std::uint64_t i = 0; i < norm.hidden; ++i) {
      const float value = N::up(residual[i]) * factor * N::up(weight[i]);
      if (norm.output == DataType::fp8e4m3) {
        const float scaled = value * inverse_scale;
        const float in_range = scaled > kMostFp8    ? kMostFp8
                               : scaled < -kMostFp8 ? -kMostFp8
                                                    : scaled;
        static_cast<std::uint8_t*>(buffers.output)[at + i] =
            Number<DataType::fp8e4m3>::down(in_range);
      } else {
        static_cast<Stored*>(buffers.output)[at + i] = N::down(value);
      }
    }
  }
}

}  // namespace

void rms_norm(const RmsNorm& norm, const void* sums, const RmsNormBuffers& buffers) {
  const PlainFloats plain;
  if (norm.type == DataType::bf16)
    norm_rows<DataType::bf16>(norm, sums, buffers);
  else
    norm_rows<DataType::fp16>(norm, sums, buffers);
}

}  // namespace plait
