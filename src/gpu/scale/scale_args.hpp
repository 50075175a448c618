// Arguments of the kernel that multiplies a rank's input by the rank's factor.
#pragma once
#include <cstdint>

namespace plait::cuda {

inline constexpr unsigned kScaleThreads = 512;

/// Rows of the input begin `stride_bytes` apart. In the output, rows follow each other. Whole
/// elements everywhere. The output may be the input if there is one row.
struct ScaleArgs {
  const char* input;  ///< null = an empty launch
  char* output;
  const void* factor;         ///< on the GPU, of the elements' type; null = factor_bits
  std::uint64_t factor_bits;  ///< in the lowest bytes
  std::uint64_t rows, row_bytes, stride_bytes;
  std::int32_t type;  ///< DataType
};

}  // namespace plait::cuda
