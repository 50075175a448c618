// The numerics contract as plain loops: sources in the written order, 16- and 8-bit floats in fp32,
// a single rounding at the end. In a tree halves are summed first; tree_rounded rounds each sum.
#include "cpu/reference_reduce.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/text.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/numbers.hpp"
#include "plait/error.hpp"

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

template <DataType kType>
typename Number<kType>::Wide add(ReduceOp op, typename Number<kType>::Wide a,
                                 typename Number<kType>::Wide b) {
  if constexpr (Number<kType>::kFloat)
    return add_floats(op, a, b);
  else
    return add_integers(op, a, b);
}

// Sums sources [first, first + count) by halves. value(s): source s. The last sum is rounded by the
// caller, after a division.
template <DataType kType, class Value>
typename Number<kType>::Wide tree_of(ReduceOp op, const Value& value, std::size_t first,
                                     std::size_t count, bool rounds) {
  if (count == 1) return value(first);
  auto left = tree_of<kType>(op, value, first, count / 2, rounds);
  auto right = tree_of<kType>(op, value, first + count / 2, count / 2, rounds);
  if (rounds && count > 2) {
    left = Number<kType>::up(Number<kType>::down(left));
    right = Number<kType>::up(Number<kType>::down(right));
  }
  return add<kType>(op, left, right);
}

}  // namespace

void reduce_reference(DataType type, ReduceOp op, void* dst, const std::vector<const void*>& srcs,
                      std::uint64_t count, int ranks, bool finish,
                      const std::vector<double>& scales, SumOrder order) {
  if (has_no_order(type, op)) order = SumOrder::rank_order;
  if (is_tree(order) && !std::has_single_bit(srcs.size()))
    throw Error(ErrorCode::internal,
                text("wanted a power of two of sources for a tree, found {}", srcs.size()));
  const bool scaled = op == ReduceOp::premul_sum && !scales.empty();
  const PlainFloats same_on_every_thread;
  with_type(type, [&]<DataType kType>() {
    using N = Number<kType>;
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto value = [&](std::size_t s) {
        return element<kType>(srcs[s], i, scaled ? scales[s] : 1.0, scaled);
      };
      auto total = is_tree(order)
                       ? tree_of<kType>(op, value, 0, srcs.size(), order == SumOrder::tree_rounded)
                       : value(0);
      for (std::size_t s = 1; s < srcs.size() && !is_tree(order); ++s)
        total = add<kType>(op, total, value(s));
      if (op == ReduceOp::avg && finish)
        total =
            static_cast<typename N::Wide>(total / static_cast<Divisor<typename N::Wide>>(ranks));
      const typename N::Stored stored = N::down(total);
      std::memcpy(static_cast<char*>(dst) + i * sizeof stored, &stored, sizeof stored);
    }
  });
}

}  // namespace plait
