// The numerics contract as plain loops: sources in the written order, 16- and 8-bit floats in fp32,
// a single rounding at the end.
#include "cpu/reference_reduce.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/float_mode.hpp"
#include "cpu/numbers.hpp"

namespace plait {
namespace {

template <class Wide>
Wide add_floats(ReduceOp op, Wide a, Wide b) {
  const bool is_nan = std::isnan(a) || std::isnan(b);
  switch (op) {
    case ReduceOp::prod: return a * b;
    case ReduceOp::min:
      if (is_nan) return std::numeric_limits<Wide>::quiet_NaN();
      if (a == b) return std::signbit(a) ? a : b;  // -0 is below +0
      return a < b ? a : b;
    case ReduceOp::max:
      if (is_nan) return std::numeric_limits<Wide>::quiet_NaN();
      if (a == b) return std::signbit(a) ? b : a;
      return a > b ? a : b;
    default:  // sum, avg, premul_sum; floats have no bitwise ops (checked() refuses them)
      return a + b;
  }
}

// Wraps: computed unsigned in at least 32 bits, then truncated to the type.
template <class T>
T add_integers(ReduceOp op, T a, T b) {
  using Unsigned = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  const Unsigned x = static_cast<Unsigned>(a), y = static_cast<Unsigned>(b);
  switch (op) {
    case ReduceOp::prod: return static_cast<T>(x * y);
    case ReduceOp::min: return a < b ? a : b;
    case ReduceOp::max: return a > b ? a : b;
    case ReduceOp::bit_and: return static_cast<T>(x & y);
    case ReduceOp::bit_or: return static_cast<T>(x | y);
    case ReduceOp::bit_xor: return static_cast<T>(x ^ y);
    default: return static_cast<T>(x + y);
  }
}

template <DataType kType>
typename Number<kType>::Wide element(const void* src, std::uint64_t index, double scale,
                                     bool scaled) {
  typename Number<kType>::Stored stored;
  std::memcpy(&stored, static_cast<const char*>(src) + index * sizeof stored, sizeof stored);
  auto value = Number<kType>::up(stored);
  if constexpr (Number<kType>::kFloat)
    if (scaled) value *= static_cast<typename Number<kType>::Wide>(scale);
  return value;
}

}  // namespace

void reduce_reference(DataType type, ReduceOp op, void* dst, const std::vector<const void*>& srcs,
                      std::uint64_t count, int ranks, bool finish,
                      const std::vector<double>& scales) {
  const bool scaled = op == ReduceOp::premul_sum && !scales.empty();
  const PlainFloats same_on_every_thread;
  with_type(type, [&]<DataType kType>() {
    using N = Number<kType>;
    for (std::uint64_t i = 0; i < count; ++i) {
      auto total = element<kType>(srcs[0], i, scaled ? scales[0] : 1.0, scaled);
      for (std::size_t s = 1; s < srcs.size(); ++s) {
        const auto next = element<kType>(srcs[s], i, scaled ? scales[s] : 1.0, scaled);
        if constexpr (N::kFloat)
          total = add_floats(op, total, next);
        else
          total = add_integers(op, total, next);
      }
      if (op == ReduceOp::avg && finish)
        total =
            static_cast<typename N::Wide>(total / static_cast<Divisor<typename N::Wide>>(ranks));
      const typename N::Stored stored = N::down(total);
      std::memcpy(static_cast<char*>(dst) + i * sizeof stored, &stored, sizeof stored);
    }
  });
}

}  // namespace plait
