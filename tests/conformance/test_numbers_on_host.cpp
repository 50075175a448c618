// Sums of 16-bit floats as kernels compute them, on a host: the bits of cpu/numbers.hpp for every
// code, for sums that lie between two codes, and for NaN beside numbers. tests/gpu compares a GPU's
// own instructions with the same reference.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <random>

#include "conformance/device_on_host.hpp"
#include "conformance/ptx_on_host.hpp"
#include "cpu/numbers.hpp"

using namespace plait;

namespace {

using Codes = std::array<std::uint16_t, 8>;

/// Compares a sum of two ranks as a kernel computes it with the reference.
template <DataType kType>
void check_sum(const Codes& mine, const Codes& theirs) {
  using N = Number<kType>;
  cuda::Accumulator<kType, static_cast<int>(ReduceOp::sum)> sum;
  sum.first(std::bit_cast<cuda::Unit>(mine), 0, 1.0);
  sum.add(std::bit_cast<cuda::Unit>(theirs), 0, 1.0);
  const auto sum_of_two = sum;
  Codes wanted;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    wanted[i] = N::down(N::up(mine[i]) + N::up(theirs[i]));
  CHECK(std::bit_cast<Codes>(sum.result(0, true, 2)) == wanted);
  for (const int ranks : {2, 4, 8, 16}) {  // kernels of sums serve these averages
    auto mean = sum_of_two;
    for (std::size_t i = 0; i < wanted.size(); ++i)
      wanted[i] = N::down((N::up(mine[i]) + N::up(theirs[i])) / static_cast<float>(ranks));
    CHECK(std::bit_cast<Codes>(mean.result(static_cast<int>(ReduceOp::avg), true, ranks)) ==
          wanted);
  }
}

template <DataType kType>
void check_type() {
  std::mt19937 random(7);
  for (unsigned code = 0; code < 1u << 16; code += 8) {
    Codes every, zeros, any, least;
    zeros.fill(0x8000);  // -0: added to any number gives that number, sign of zero included
    for (unsigned i = 0; i < 8; ++i) {
      every[i] = static_cast<std::uint16_t>(code + i);
      any[i] = static_cast<std::uint16_t>(random());
      // A sum that lies between two codes: the second number is smaller by about the type's
      // precision.
      const int steps =
          (kType == DataType::bf16 ? 8 << 7 : 11 << 10) + static_cast<int>(random() % 512) - 256;
      least[i] = static_cast<std::uint16_t>(every[i] - static_cast<unsigned>(steps));
    }
    check_sum<kType>(every, zeros);
    check_sum<kType>(every, any);
    check_sum<kType>(every, least);
  }
}

}  // namespace

TEST_CASE("averages of fp32 in kernels of sums are exact quotients, subnormal ones too") {
  std::mt19937 random(11);
  using Floats = std::array<float, 4>;
  for (int call = 0; call < 20000; ++call) {
    Floats mine;
    for (float& one : mine) {
      std::uint32_t bits = static_cast<std::uint32_t>(random());
      if (call % 2 == 0) bits &= 0x81ffffffu;  // of the smallest exponents
      one = std::bit_cast<float>(bits);
    }
    for (const int ranks : {1, 2, 4, 8, 16}) {
      cuda::Accumulator<DataType::fp32, static_cast<int>(ReduceOp::sum)> sum;
      sum.first(std::bit_cast<cuda::Unit>(mine), 0, 1.0);
      const auto found = std::bit_cast<std::array<std::uint32_t, 4>>(
          sum.result(static_cast<int>(ReduceOp::avg), true, ranks));
      for (std::size_t i = 0; i < mine.size(); ++i) {
        const float wanted = Number<DataType::fp32>::down(mine[i] / static_cast<float>(ranks));
        REQUIRE(found[i] == std::bit_cast<std::uint32_t>(wanted));
      }
    }
  }
}

TEST_CASE("sums of 16-bit floats in pairs, and their averages: every code, ties, NaN") {
  check_type<DataType::bf16>();
  check_type<DataType::fp16>();
}
