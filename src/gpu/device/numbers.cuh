// Number types on the device: n-way reduction of 16-byte units in rank order, or in a tree
// (SumOrder). Floats of 16 and 8 bits accumulate in fp32 with a single rounding at the end, bit for
// bit as cpu/numbers.hpp on the CPU.
#pragma once
#include <cstdint>
#include <type_traits>

#include "plait/plan.hpp"

namespace plait::cuda {

struct Unit {  // 16 bytes as two 64-bit words: the widest data that a store writes whole.
  unsigned long long lo, hi;
};

__device__ inline float bits_to_float(unsigned bits) { return __uint_as_float(bits); }

/// Returns 1 / value; value: a power of two.
__device__ inline float reciprocal_of_power_of_two(int value) {
  return bits_to_float(static_cast<unsigned>(127 + 1 - __ffs(value)) << 23);
}

/// Converts fp32 to a float of 1 + kExponent + kMantissa <= 16 bits, rounding to nearest even.
/// kInf: the type has infinities; otherwise the largest code is the only NaN, and overflow gives
/// that NaN.
template <int kExponent, int kMantissa, bool kInf>
__device__ inline unsigned narrow(float value) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr int kDrop = 23 - kMantissa;
  constexpr unsigned kTop = (1u << (kExponent + kMantissa)) - 1;  // All ones without the sign.
  constexpr unsigned kInfinity = ((1u << kExponent) - 1) << kMantissa;
  constexpr unsigned kNan = kInf ? kInfinity | (1u << (kMantissa - 1)) : kTop;
  const unsigned bits = __float_as_uint(value);
  const unsigned sign = bits >> 31 << (kExponent + kMantissa);
  const unsigned size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return kNan;
  unsigned code;
  const int exponent = static_cast<int>(size >> 23) - 127;
  if (exponent < 1 - kBias) {  // Below the normal numbers: shift the whole mantissa.
    const int shift = 1 - kBias - exponent + kDrop;
    if (shift > 25) return sign;
    const unsigned mantissa = (size & 0x7fffffu) | 0x800000u;
    const unsigned kept = mantissa >> shift;
    const unsigned rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
    code = kept + (rest > half || (rest == half && (kept & 1)) ? 1 : 0);
  } else {
    const unsigned rounded = size + ((1u << (kDrop - 1)) - 1) + ((size >> kDrop) & 1);
    code = (rounded >> kDrop) - (static_cast<unsigned>(127 - kBias) << kMantissa);
  }
  if (kInf && code >= kInfinity) code = kInfinity;
  if (!kInf && code >= kTop) return kTop;  // The only NaN has no sign.
  return sign | code;
}

template <int kExponent, int kMantissa, bool kInf>
__device__ inline float widen(unsigned code) {
  constexpr int kBias = (1 << (kExponent - 1)) - 1;
  constexpr unsigned kTop = (1u << (kExponent + kMantissa)) - 1;
  constexpr unsigned kInfinity = ((1u << kExponent) - 1) << kMantissa;
  const unsigned size = code & kTop;
  const unsigned sign = (code >> (kExponent + kMantissa) & 1) << 31;
  if (kInf && size >= kInfinity)
    return bits_to_float(size == kInfinity ? sign | 0x7f800000u : 0x7fc00000u);
  if (!kInf && size == kTop) return bits_to_float(0x7fc00000u);
  const float scale = bits_to_float(static_cast<unsigned>(127 + 127 - kBias) << 23);
  return bits_to_float(sign | __float_as_uint(bits_to_float(size << (23 - kMantissa)) * scale));
}

/// fp8e4m3 of a value, with 448 for values above the range.
__device__ inline unsigned saturated_e4m3(float value) {
  return narrow<4, 3, false>(value > 448.0f ? 448.0f : value < -448.0f ? -448.0f : value);
}

/// Conversion instructions for 16-bit floats, defined in ptx.cuh. A pair holds two fp32 values, the
/// first in the lower half. Results equal narrow() and widen() except for NaN: 0x7fff as half of a
/// pair, and any NaN when widened.
__device__ inline unsigned pair_of_bf16(float first, float second);
__device__ inline unsigned pair_of_fp16(float first, float second);
__device__ inline float from_fp16(std::uint16_t code);

// A struct per type: storage type, accumulation type and the two conversions. 16-bit floats also
// convert in pairs: kNan is the type's canonical NaN, which pair() does not produce.
template <DataType kType>
struct DeviceNumber;

#define PLAIT_INTEGER(name, stored)                     \
  template <>                                           \
  struct DeviceNumber<DataType::name> {                 \
    using Stored = stored;                              \
    using Wide = stored;                                \
    static constexpr bool kFloat = false;               \
    static __device__ Wide up(Stored x) { return x; }   \
    static __device__ Stored down(Wide x) { return x; } \
  };
PLAIT_INTEGER(int8, std::int8_t)
PLAIT_INTEGER(uint8, std::uint8_t)
PLAIT_INTEGER(int16, std::int16_t)
PLAIT_INTEGER(uint16, std::uint16_t)
PLAIT_INTEGER(int32, std::int32_t)
PLAIT_INTEGER(uint32, std::uint32_t)
PLAIT_INTEGER(int64, std::int64_t)
PLAIT_INTEGER(uint64, std::uint64_t)
#undef PLAIT_INTEGER

template <>
struct DeviceNumber<DataType::fp32> {
  using Stored = float;
  using Wide = float;
  static constexpr bool kFloat = true;
  static __device__ Wide up(Stored x) { return x; }
  static __device__ Stored down(Wide x) { return x == x ? x : bits_to_float(0x7fc00000u); }
};

template <>
struct DeviceNumber<DataType::fp64> {
  using Stored = double;
  using Wide = double;
  static constexpr bool kFloat = true;
  static __device__ Wide up(Stored x) { return x; }
  static __device__ Stored down(Wide x) {
    return x == x ? x : __longlong_as_double(0x7ff8000000000000ll);
  }
};

#define PLAIT_HALF_FLOAT(name, widened, paired, nan)                         \
  template <>                                                                \
  struct DeviceNumber<DataType::name> {                                      \
    using Stored = std::uint16_t;                                            \
    using Wide = float;                                                      \
    static constexpr bool kFloat = true;                                     \
    static constexpr unsigned kNan = nan;                                    \
    static __device__ Wide up(Stored x) { return widened; }                  \
    static __device__ unsigned pair(Wide x, Wide y) { return paired(x, y); } \
    static __device__ Stored down(Wide x) {                                  \
      return static_cast<Stored>(x == x ? pair(x, x) : kNan);                \
    }                                                                        \
  };
PLAIT_HALF_FLOAT(bf16, bits_to_float(static_cast<unsigned>(x) << 16), pair_of_bf16, 0x7fc0u)
PLAIT_HALF_FLOAT(fp16, from_fp16(x), pair_of_fp16, 0x7e00u)
#undef PLAIT_HALF_FLOAT

#define PLAIT_SMALL_FLOAT(name, stored, exponent, mantissa, inf)                      \
  template <>                                                                         \
  struct DeviceNumber<DataType::name> {                                               \
    using Stored = stored;                                                            \
    using Wide = float;                                                               \
    static constexpr bool kFloat = true;                                              \
    static __device__ Wide up(Stored x) { return widen<exponent, mantissa, inf>(x); } \
    static __device__ Stored down(Wide x) {                                           \
      return static_cast<Stored>(narrow<exponent, mantissa, inf>(x));                 \
    }                                                                                 \
  };
PLAIT_SMALL_FLOAT(fp8e4m3, std::uint8_t, 4, 3, false)
PLAIT_SMALL_FLOAT(fp8e5m2, std::uint8_t, 5, 2, true)
#undef PLAIT_SMALL_FLOAT

template <bool kWide>
struct UnsignedOf {
  using Type = std::uint32_t;
};
template <>
struct UnsignedOf<true> {
  using Type = std::uint64_t;
};

inline constexpr int kAnyOp = -1;  ///< Template argument: the op is known at run time only.
/// Template arguments of kernels of their own for sums in trees (CallArgs::order): a sum or an
/// average, and any op of floats. In the kernels of rank order a tree took registers: they were 2
/// to 18 % slower (E-0470).
inline constexpr int kTreeSum = -2, kTreeAny = -3;
template <int kOp>
inline constexpr bool kIsTree = kOp == kTreeSum || kOp == kTreeAny;
/// The op without the order of its sums.
template <int kOp>
inline constexpr int kUnordered = kOp == kTreeSum   ? static_cast<int>(ReduceOp::sum)
                                  : kOp == kTreeAny ? kAnyOp
                                                    : kOp;

template <class Wide>
__device__ inline Wide combine_floats(ReduceOp op, Wide a, Wide b) {
  switch (op) {
    case ReduceOp::prod: return a * b;
    case ReduceOp::min:
      if (a != a || b != b) return a + b;     // A NaN, made canonical by down().
      if (a == b) return signbit(a) ? a : b;  // -0 is below +0.
      return a < b ? a : b;
    case ReduceOp::max:
      if (a != a || b != b) return a + b;
      if (a == b) return signbit(a) ? b : a;
      return a > b ? a : b;
    default:  // sum, avg, premul_sum
      return a + b;
  }
}

/// Integer ops wrap: computed unsigned, in at least 32 bits, and cut to the type.
template <class T>
__device__ inline T combine_integers(ReduceOp op, T a, T b) {
  using Unsigned = typename UnsignedOf<sizeof(T) == 8>::Type;
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

template <class N>
__device__ inline typename N::Wide combine(int op, typename N::Wide a, typename N::Wide b) {
  if constexpr (N::kFloat)
    return combine_floats(static_cast<ReduceOp>(op), a, b);
  else
    return combine_integers(static_cast<ReduceOp>(op), a, b);
}

/// Whether a call's sums are trees, and whether each sum of two is rounded. order: SumOrder.
__device__ inline bool sums_in_tree(int order) { return order >= static_cast<int>(SumOrder::tree); }
__device__ inline bool rounds_sums(int order) {
  return order == static_cast<int>(SumOrder::tree_rounded);
}

/// Accumulates units of a type, source by source.
template <DataType kType, int kGivenOp>
struct Accumulator {
  static constexpr int kOp = kUnordered<kGivenOp>;
  using N = DeviceNumber<kType>;
  using Stored = typename N::Stored;
  using Wide = typename N::Wide;
  static constexpr int kPerUnit = 16 / sizeof(Stored);
  Wide wide[kPerUnit];

  __device__ static Stored at(const Unit& unit, int index) {
    constexpr int kPerWord = 8 / sizeof(Stored);
    const unsigned long long word = index < kPerWord ? unit.lo : unit.hi;
    const unsigned long long part = word >> (index % kPerWord * 8 * sizeof(Stored));
    if constexpr (sizeof(Stored) == 8)
      return __builtin_bit_cast(Stored, part);
    else if constexpr (sizeof(Stored) == 4)
      return __builtin_bit_cast(Stored, static_cast<unsigned>(part));
    else
      return static_cast<Stored>(part);
  }

  __device__ static Wide read(const Unit& unit, int index, int op, double scale) {
    Wide value = N::up(at(unit, index));
    if constexpr (kOp == kAnyOp && N::kFloat)
      if (op == static_cast<int>(ReduceOp::premul_sum)) value = value * static_cast<Wide>(scale);
    return value;
  }

  __device__ void first(const Unit& unit, int op, double scale) {
#pragma unroll
    for (int i = 0; i < kPerUnit; ++i) wide[i] = read(unit, i, op, scale);
  }

  __device__ void add(const Unit& unit, int op, double scale) {
#pragma unroll
    for (int i = 0; i < kPerUnit; ++i)
      wide[i] = combine<N>(kOp == kAnyOp ? op : kOp, wide[i], read(unit, i, op, scale));
  }

  /// Adds the sum of as many ranks, those behind. rounds: both sums are rounded to the type before.
  __device__ void join(Accumulator& next, int op, bool rounds) {
    if (rounds) {
      round();
      next.round();
    }
#pragma unroll
    for (int i = 0; i < kPerUnit; ++i)
      wide[i] = combine<N>(kOp == kAnyOp ? op : kOp, wide[i], next.wide[i]);
  }

  /// Sums units [kFirst, kFirst + kCount) in a tree; kCount: a power of two. scales: by unit.
  template <int kFirst, int kCount, int kUnits>
  __device__ void sum_tree(const Unit (&units)[kUnits], int op, const double* scales, bool rounds) {
    if constexpr (kCount == 1) {
      first(units[kFirst], op, scales[kFirst]);
    } else {
      sum_tree<kFirst, kCount / 2>(units, op, scales, rounds);
      constexpr int kMiddle = kFirst + kCount / 2;
      if constexpr (kCount == 2) {
        add(units[kMiddle], op, scales[kMiddle]);
      } else {
        Accumulator right;
        right.template sum_tree<kMiddle, kCount / 2>(units, op, scales, rounds);
        join(right, op, rounds);
      }
    }
  }

  /// Type that avg divides by: int for integers below 32 bits, as in cpu/numbers.hpp.
  using Divisor = std::conditional_t<(sizeof(Wide) < 4), int, Wide>;
  /// finish: last step of avg, the division by the number of ranks. Kernels of sums serve averages
  /// over powers of two alone (has_sum_kernels), whose reciprocals are exact.
  __device__ Unit result(int op, bool finish, int ranks) {
    const bool is_mean = finish && op == static_cast<int>(ReduceOp::avg);
    if constexpr (kOp == static_cast<int>(ReduceOp::sum) && N::kFloat) {
      // A factor of 1 keeps the bits of a sum. A branch instead takes 1 to 3 % longer (E-0468).
      const float factor = is_mean ? reciprocal_of_power_of_two(ranks) : 1.0f;
#pragma unroll
      for (int i = 0; i < kPerUnit; ++i) wide[i] *= factor;
    }
    if (kOp == kAnyOp && is_mean)
#pragma unroll
      for (int i = 0; i < kPerUnit; ++i)
        wide[i] = static_cast<Wide>(wide[i] / static_cast<Divisor>(ranks));
    if constexpr (N::kFloat && sizeof(Stored) == 2)
      return in_pairs();
    else
      return one_by_one();
  }

 private:
  /// Rounds the sums of floats of 16 and 8 bits to the type. A NaN stays a NaN.
  __device__ void round() {
    if constexpr (N::kFloat && sizeof(Stored) == 2) {
#pragma unroll
      for (int i = 0; i < kPerUnit; i += 2) {
        const unsigned pair = N::pair(wide[i], wide[i + 1]);
        wide[i] = N::up(static_cast<Stored>(pair));
        wide[i + 1] = N::up(static_cast<Stored>(pair >> 16));
      }
    }
    if constexpr (N::kFloat && sizeof(Stored) == 1) {
#pragma unroll
      for (int i = 0; i < kPerUnit; ++i) wide[i] = N::up(N::down(wide[i]));
    }
  }

  __device__ Unit in_pairs() const {
    constexpr int kPairs = kPerUnit / 2;
    unsigned pairs[kPairs];
    bool has_nan = false;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const Wide x = wide[2 * i], y = wide[2 * i + 1];
      pairs[i] = N::pair(x, y);
      has_nan = has_nan || x != x || y != y;
    }
    if (has_nan)
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const Wide x = wide[2 * i], y = wide[2 * i + 1];
        if (x != x) pairs[i] = (pairs[i] & 0xffff0000u) | N::kNan;
        if (y != y) pairs[i] = (pairs[i] & 0xffffu) | N::kNan << 16;
      }
    return {pairs[0] | static_cast<unsigned long long>(pairs[1]) << 32,
            pairs[2] | static_cast<unsigned long long>(pairs[3]) << 32};
  }

  __device__ Unit one_by_one() const {
    unsigned long long words[2] = {0, 0};
    constexpr int kPerWord = 8 / sizeof(Stored);
#pragma unroll
    for (int i = 0; i < kPerUnit; ++i) {
      const Stored stored = N::down(wide[i]);
      unsigned long long part;
      if constexpr (sizeof(Stored) == 8)
        part = __builtin_bit_cast(unsigned long long, stored);
      else if constexpr (sizeof(Stored) == 4)
        part = __builtin_bit_cast(unsigned, stored);
      else if constexpr (sizeof(Stored) == 2)
        part = static_cast<std::uint16_t>(stored);
      else
        part = static_cast<std::uint8_t>(stored);
      words[i / kPerWord] |= part << (i % kPerWord * 8 * sizeof(Stored));
    }
    return {words[0], words[1]};
  }
};

/// Sums the units of 4, 8 or 16 ranks in a tree, four ranks at a time. unit(rank) is a rank's unit,
/// asked for in rank order. order: SumOrder. scales: by rank.
template <class Sum, class UnitOf>
__device__ inline Sum sum_in_tree(int ranks, int op, int order, const double* scales, UnitOf unit) {
  const bool rounds = rounds_sums(order);
  Sum sum, upper;  // of the ranks from 0 on, and from 8 on
#pragma unroll 1
  for (int first = 0; first < ranks; first += 4) {
    Unit got[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) got[k] = unit(first + k);
    Sum four;
    four.template sum_tree<0, 4>(got, op, scales + first, rounds);
    if (first == 0) {
      sum = four;
    } else if (first == 4) {
      sum.join(four, op, rounds);
    } else if (first == 8) {
      upper = four;
    } else {
      upper.join(four, op, rounds);
      sum.join(upper, op, rounds);
    }
  }
  return sum;
}

}  // namespace plait::cuda
