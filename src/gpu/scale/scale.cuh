// Multiplies a rank's input by the rank's factor: each product is rounded once to the type, as
// NCCL's products are, and integers wrap. A sum follows, by the kernels of all sums.
#pragma once
#include "gpu/device/memory.cuh"
#include "gpu/scale/scale_args.hpp"

namespace plait::cuda {

/// Returns the bits of a number of `bytes` bytes.
__device__ inline unsigned long long bits_at(const void* number, unsigned bytes) {
  switch (bytes) {
    case 1: return *static_cast<const std::uint8_t*>(number);
    case 2: return *static_cast<const std::uint16_t*>(number);
    case 4: return *static_cast<const std::uint32_t*>(number);
    default: return *static_cast<const unsigned long long*>(number);
  }
}

/// Products of units with a factor.
template <DataType kType>
struct ScaledUnits {
  using Product = Accumulator<kType, static_cast<int>(ReduceOp::prod)>;
  using N = typename Product::N;
  using Stored = typename Product::Stored;
  Unit factors;  ///< the factor in each place

  __device__ explicit ScaledUnits(const ScaleArgs& args) {
    unsigned long long word =
        args.factor == nullptr ? args.factor_bits : bits_at(args.factor, sizeof(Stored));
    for (unsigned width = 8 * sizeof(Stored); width < 64; width *= 2)
      word = (word & ((1ull << width) - 1)) * (1ull | 1ull << width);
    factors = {word, word};
  }
  __device__ ulonglong2 of(const ulonglong2& unit) const {
    Product product;
    product.first(Unit{unit.x, unit.y}, 0, 1.0);
    product.add(factors, 0, 1.0);
    const Unit made = product.result(0, false, 1);
    return {made.lo, made.hi};
  }
  __device__ Stored of(Stored value) const {
    return N::down(
        combine<N>(static_cast<int>(ReduceOp::prod), N::up(value), N::up(Product::at(factors, 0))));
  }
};

template <DataType kType>
__device__ inline void scale_rows(const ScaleArgs& args) {
  const ScaledUnits<kType> scaled(args);
  using Stored = typename ScaledUnits<kType>::Stored;
  const std::uint64_t first = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x,
                      stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  const bool by_units = is_aligned(args.input) && is_aligned(args.output) &&
                        ((args.row_bytes | args.stride_bytes) & 15) == 0;
  for (std::uint64_t row = 0; row < args.rows; ++row) {
    const char* const from = args.input + row * args.stride_bytes;
    char* const to = args.output + row * args.row_bytes;
    if (!by_units) {
      for (std::uint64_t at = first; at < args.row_bytes / sizeof(Stored); at += stride)
        reinterpret_cast<Stored*>(to)[at] = scaled.of(reinterpret_cast<const Stored*>(from)[at]);
      continue;
    }
    const std::uint64_t units = args.row_bytes / 16;
    const auto* const in = reinterpret_cast<const ulonglong2*>(from);
    auto* const out = reinterpret_cast<ulonglong2*>(to);
    constexpr unsigned kAtOnce = 4;  // Loads in flight.
    std::uint64_t at = first;
    for (; at + (kAtOnce - 1) * stride < units; at += kAtOnce * stride) {
      ulonglong2 held[kAtOnce];
#pragma unroll
      for (unsigned i = 0; i < kAtOnce; ++i) held[i] = in[at + i * stride];
#pragma unroll
      for (unsigned i = 0; i < kAtOnce; ++i) out[at + i * stride] = scaled.of(held[i]);
    }
    for (; at < units; at += stride) out[at] = scaled.of(in[at]);
  }
}

__device__ inline void scale(const ScaleArgs& args) {
  switch (static_cast<DataType>(args.type)) {
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) \
  case DataType::name: return scale_rows<DataType::name>(args);
#include "plait/types.def"
#undef PLAIT_TYPE
  }
}

}  // namespace plait::cuda
