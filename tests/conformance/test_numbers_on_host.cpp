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
  Codes wanted;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    wanted[i] = N::down(N::up(mine[i]) + N::up(theirs[i]));
  CHECK(std::bit_cast<Codes>(sum.result(0, true, 2)) == wanted);
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

TEST_CASE("sums of 16-bit floats in pairs: every code, ties, NaN") {
  check_type<DataType::bf16>();
  check_type<DataType::fp16>();
}
