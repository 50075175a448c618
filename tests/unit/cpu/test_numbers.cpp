// Conversions of every code of the small types, compared with rounding computed in double.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "cpu/numbers.hpp"

using namespace plait;

namespace {

// The same rounding, by arithmetic on doubles: scale to units in the last place, nearbyint.
double rounded(double value, int exponent_bits, int mantissa_bits, bool has_infinity) {
  if (std::isnan(value)) return value;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int top_exponent = (1 << exponent_bits) - 1 - bias - (has_infinity ? 1 : 0);
  const double largest = has_infinity
                             ? std::ldexp(2.0 - std::ldexp(1.0, -mantissa_bits), top_exponent)
                             : std::ldexp(2.0 - std::ldexp(2.0, -mantissa_bits), top_exponent);
  if (std::isinf(value)) return has_infinity ? value : std::nan("");
  int exponent = value == 0 ? 1 - bias : std::ilogb(value);
  if (exponent < 1 - bias) exponent = 1 - bias;
  const double unit = std::ldexp(1.0, exponent - mantissa_bits);
  const double result = std::nearbyint(value / unit) * unit;
  if (std::fabs(result) <= largest) return result;
  return has_infinity ? std::copysign(INFINITY, value) : std::nan("");
}

template <DataType kType>
void check_all_codes(std::uint32_t codes, std::uint32_t nan_code) {
  using N = Number<kType>;
  int differing = 0;
  for (std::uint32_t code = 0; code < codes; ++code) {
    const auto stored = static_cast<typename N::Stored>(code);
    const float wide = N::up(stored);
    const std::uint32_t back = N::down(wide);
    if (back != (std::isnan(wide) ? nan_code : code)) ++differing;
  }
  CHECK(differing == 0);
}

template <DataType kType>
void check_rounding(int exponent_bits, int mantissa_bits, bool has_infinity) {
  using N = Number<kType>;
  std::mt19937_64 random(11);
  int differing = 0;
  const auto check = [&](float value) {
    const double wanted = rounded(value, exponent_bits, mantissa_bits, has_infinity);
    const double found = N::up(N::down(value));
    const bool same = std::isnan(wanted)
                          ? std::isnan(found)
                          : wanted == found && std::signbit(wanted) == std::signbit(found);
    if (!same) ++differing;
  };
  for (int i = 0; i < 300000; ++i)
    check(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  for (int i = 0; i < 300000; ++i)  // around the type's own range
    check(static_cast<float>(std::ldexp(static_cast<double>(random() % 4096) - 2048.0,
                                        static_cast<int>(random() % 48) - 36)));
  // Every tie between neighbouring codes.
  const std::uint32_t codes = 1u << (exponent_bits + mantissa_bits);
  for (std::uint32_t code = 0; code + 1 < codes; ++code) {
    const float low = N::up(static_cast<typename N::Stored>(code));
    const float high = N::up(static_cast<typename N::Stored>(code + 1));
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const float tie = low / 2 + high / 2;
    check(tie);
    check(-tie);
    check(std::nextafter(tie, 0.0f));
    check(std::nextafter(tie, INFINITY));
  }
  CHECK(differing == 0);
}

}  // namespace

TEST_CASE("small floats: every code survives the way up and back") {
  check_all_codes<DataType::bf16>(65536, 0x7fc0);
  check_all_codes<DataType::fp16>(65536, 0x7e00);
  check_all_codes<DataType::fp8e4m3>(256, 0x7f);
  check_all_codes<DataType::fp8e5m2>(256, 0x7e);
}

TEST_CASE("small floats: rounding is to nearest even, as computed in double") {
  check_rounding<DataType::bf16>(8, 7, true);
  check_rounding<DataType::fp16>(5, 10, true);
  check_rounding<DataType::fp8e4m3>(4, 3, false);
  check_rounding<DataType::fp8e5m2>(5, 2, true);
}

TEST_CASE("small floats: known codes") {
  CHECK(Number<DataType::fp8e4m3>::down(448.0f) == 0x7e);
  CHECK(Number<DataType::fp8e4m3>::down(464.0f) == 0x7e);  // a tie: to even
  CHECK(Number<DataType::fp8e4m3>::down(465.0f) == 0x7f);  // overflow gives NaN
  CHECK(Number<DataType::fp8e4m3>::down(-INFINITY) == 0x7f);
  CHECK(Number<DataType::fp8e5m2>::down(57344.0f) == 0x7b);
  CHECK(Number<DataType::fp8e5m2>::down(65536.0f) == 0x7c);
  CHECK(Number<DataType::fp16>::down(65504.0f) == 0x7bff);
  CHECK(Number<DataType::fp16>::down(65520.0f) == 0x7c00);
  CHECK(Number<DataType::fp16>::down(1.0f) == 0x3c00);
  CHECK(Number<DataType::bf16>::down(-0.0f) == 0x8000);
  CHECK(Number<DataType::fp16>::up(1) == std::ldexp(1.0f, -24));
}

TEST_CASE("wide floats: a NaN becomes the canonical one") {
  const float odd = std::bit_cast<float>(0xffc12345u);
  CHECK(std::bit_cast<std::uint32_t>(Number<DataType::fp32>::down(odd)) == kNan32);
  const double wide = std::bit_cast<double>(0xfff8000012345678ull);
  CHECK(std::bit_cast<std::uint64_t>(Number<DataType::fp64>::down(wide)) == kNan64);
}
