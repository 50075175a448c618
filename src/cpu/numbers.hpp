// Element types: accumulation type and conversions, bit for bit the same on every processor
// (gpu/device/numbers.cuh mirrors this file). Rounding is to nearest even, and subnormals are
// kept. A NaN result is always the canonical quiet NaN below. fp8e4m3 is the "fn" kind (no
// infinity, overflow gives NaN, as in ml_dtypes); all other types overflow to infinity. min and max
// give NaN if any input is NaN, and order -0 below +0 (IEEE 754-2019 minimum, maximum). Code
// without branches lets compilers vectorize loops.
#pragma once
#include <bit>
#include <cstdint>
#include <type_traits>

#include "plait/plan.hpp"

namespace plait {

inline constexpr std::uint32_t kNan32 = 0x7fc00000u;
inline constexpr std::uint64_t kNan64 = 0x7ff8000000000000ull;

/// A float of 1 + kExponent + kMantissa bits. kInf: the type has infinities; otherwise the code of
/// all ones is the only NaN.
template <int kExponent, int kMantissa, bool kInf>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr int kDrop = 23 - kMantissa;  // Mantissa bits that fp32 has in addition.
  static constexpr std::uint32_t kTop = (1u << (kExponent + kMantissa)) - 1;
  static constexpr std::uint32_t kInfinity = ((1u << kExponent) - 1) << kMantissa;
  static constexpr std::uint32_t kNan = kInf ? kInfinity | (1u << (kMantissa - 1)) : kTop;

  static std::uint32_t narrow(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 31) << (kExponent + kMantissa);
    const std::uint32_t size = bits & 0x7fffffffu;
    const std::uint32_t rounded = size + ((1u << (kDrop - 1)) - 1) + ((size >> kDrop) & 1u);
    const std::uint32_t normal =
        (rounded >> kDrop) - (static_cast<std::uint32_t>(127 - kBias) << kMantissa);
    // Below the normal numbers the unit is fixed; adding a float of that unit rounds to it.
    constexpr std::uint32_t kMagic = static_cast<std::uint32_t>(127 + 1 - kBias + kDrop) << 23;
    constexpr std::uint32_t kLeastNormal = static_cast<std::uint32_t>(127 + 1 - kBias) << 23;
    const std::uint32_t tiny =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + std::bit_cast<float>(kMagic)) -
        kMagic;
    std::uint32_t code = size < kLeastNormal ? tiny : normal;
    if constexpr (kInf) {
      code = code > kInfinity ? kInfinity : code;
      code = sign | code;
      return size > 0x7f800000u ? kNan : code;
    } else {
      const std::uint32_t whole = sign | code;
      return (code >= kTop) | (size > 0x7f800000u) ? kNan : whole;
    }
  }

  static float widen(std::uint32_t code) {
    const std::uint32_t size = code & kTop;
    const std::uint32_t sign = ((code >> (kExponent + kMantissa)) & 1u) << 31;
    // A multiplication raises the exponent, and converts subnormals correctly too.
    constexpr std::uint32_t kScale = static_cast<std::uint32_t>(127 + 127 - kBias) << 23;
    const float scaled = std::bit_cast<float>(size << kDrop) * std::bit_cast<float>(kScale);
    std::uint32_t bits = sign | std::bit_cast<std::uint32_t>(scaled);
    if constexpr (kInf) {
      bits = size == kInfinity ? sign | 0x7f800000u : bits;
      bits = size > kInfinity ? kNan32 : bits;
    } else {
      bits = size == kTop ? kNan32 : bits;
    }
    return std::bit_cast<float>(bits);
  }
};

/// Storage type, accumulation type, and conversions from storage (up) and back (down).
template <DataType kType>
struct Number;

template <class T>
struct IntegerNumber {
  using Stored = T;
  using Wide = T;
  static constexpr bool kFloat = false;
  static Wide up(Stored x) { return x; }
  static Stored down(Wide x) { return x; }
};
template <>
struct Number<DataType::int8> : IntegerNumber<std::int8_t> {};
template <>
struct Number<DataType::uint8> : IntegerNumber<std::uint8_t> {};
template <>
struct Number<DataType::int16> : IntegerNumber<std::int16_t> {};
template <>
struct Number<DataType::uint16> : IntegerNumber<std::uint16_t> {};
template <>
struct Number<DataType::int32> : IntegerNumber<std::int32_t> {};
template <>
struct Number<DataType::uint32> : IntegerNumber<std::uint32_t> {};
template <>
struct Number<DataType::int64> : IntegerNumber<std::int64_t> {};
template <>
struct Number<DataType::uint64> : IntegerNumber<std::uint64_t> {};

template <>
struct Number<DataType::fp32> {
  using Stored = float;
  using Wide = float;
  static constexpr bool kFloat = true;
  static Wide up(Stored x) { return x; }
  static Stored down(Wide x) { return x == x ? x : std::bit_cast<float>(kNan32); }
};

template <>
struct Number<DataType::fp64> {
  using Stored = double;
  using Wide = double;
  static constexpr bool kFloat = true;
  static Wide up(Stored x) { return x; }
  static Stored down(Wide x) { return x == x ? x : std::bit_cast<double>(kNan64); }
};

template <>
struct Number<DataType::bf16> {
  using Stored = std::uint16_t;
  using Wide = float;
  static constexpr bool kFloat = true;
  static Wide up(Stored x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }
  static Stored down(Wide x) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<Stored>(x == x ? rounded : 0x7fc0u);
  }
};

template <class T, int kExponent, int kMantissa, bool kInf>
struct SmallNumber {
  using Stored = T;
  using Wide = float;
  static constexpr bool kFloat = true;
  static Wide up(Stored x) { return SmallFloat<kExponent, kMantissa, kInf>::widen(x); }
  static Stored down(Wide x) {
    return static_cast<Stored>(SmallFloat<kExponent, kMantissa, kInf>::narrow(x));
  }
};
template <>
struct Number<DataType::fp16> : SmallNumber<std::uint16_t, 5, 10, true> {};
template <>
struct Number<DataType::fp8e4m3> : SmallNumber<std::uint8_t, 4, 3, false> {};
template <>
struct Number<DataType::fp8e5m2> : SmallNumber<std::uint8_t, 5, 2, true> {};

/// Type that avg divides by: int for integers below 32 bits, because int8 cannot hold 128 ranks and
/// turns 256 into 0.
template <class Wide>
using Divisor = std::conditional_t<(sizeof(Wide) < 4), int, Wide>;

/// Calls visit.template operator()<kType>() for a type known at run time only.
template <class Visit>
decltype(auto) with_type(DataType type, Visit&& visit) {
  switch (type) {
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) \
  case DataType::name: return visit.template operator()<DataType::name>();
#include "plait/types.def"
#undef PLAIT_TYPE
  }
  __builtin_unreachable();
}

}  // namespace plait
