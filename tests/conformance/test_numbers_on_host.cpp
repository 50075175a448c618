// Sums of 16-bit floats as kernels compute them, on a host: the bits of cpu/numbers.hpp for every
// code, for sums that lie between two codes, and for NaN beside numbers. tests/gpu compares a GPU's
// own instructions with the same reference.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <random>
#include <vector>

#include "conformance/device_on_host.hpp"
#include "conformance/ptx_on_host.hpp"
#include "cpu/numbers.hpp"
#include "cpu/reference_reduce.hpp"

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

/// Compares trees of `ranks` units as kernels sum them with the reference: the units loaded at
/// once, and four at a time.
template <DataType kType, int kRanks>
void check_tree(SumOrder order, ReduceOp op, std::mt19937& random) {
  using Sum = cuda::Accumulator<kType, cuda::kAnyOp>;
  std::array<cuda::Unit, kRanks> units;
  cuda::Unit all[kRanks];
  std::vector<const void*> srcs;
  double scales[16];
  std::vector<double> factors;
  for (std::size_t r = 0; r < kRanks; ++r) {
    for (unsigned long long* word : {&units[r].lo, &units[r].hi})
      *word = static_cast<unsigned long long>(random()) << 32 | random();
    if constexpr (kType == DataType::bf16 || kType == DataType::fp32) {  // not NaN, near each other
      const unsigned long long sign_and_some = 0x83ff83ff83ff83ffull, one = 0x3f803f803f803f80ull;
      for (unsigned long long* word : {&units[r].lo, &units[r].hi})
        *word = (*word & sign_and_some) ^ one;
    }
    all[r] = units[r];
    srcs.push_back(&units[r]);
    scales[r] = 0.25 * static_cast<double>(r) - 1.0;
    factors.push_back(scales[r]);
  }
  cuda::Unit wanted{};
  reduce_reference(kType, op, &wanted, srcs, 16 / bytes_of(kType), kRanks, true,
                   op == ReduceOp::premul_sum ? factors : std::vector<double>{}, order);
  const int code = static_cast<int>(order), number = static_cast<int>(op);
  Sum at_once, by_fours = cuda::sum_in_tree<Sum>(kRanks, number, code, scales, [&](int rank) {
                 return units[static_cast<std::size_t>(rank)];
               });
  at_once.template sum_tree<0, kRanks>(all, number, scales, order == SumOrder::tree_rounded);
  using Bits = std::array<std::uint64_t, 2>;
  INFO(name_of(kType), " ", name_of(op), " ", name_of(order), " ", kRanks);
  CHECK(std::bit_cast<Bits>(at_once.result(number, true, kRanks)) == std::bit_cast<Bits>(wanted));
  CHECK(std::bit_cast<Bits>(by_fours.result(number, true, kRanks)) == std::bit_cast<Bits>(wanted));
}

template <DataType kType>
void check_trees() {
  std::mt19937 random(5);
  for (int call = 0; call < 2000; ++call)
    for (const SumOrder order : {SumOrder::tree, SumOrder::tree_rounded})
      for (const ReduceOp op :
           {ReduceOp::sum, ReduceOp::prod, ReduceOp::avg, ReduceOp::premul_sum}) {
        check_tree<kType, 4>(order, op, random);
        check_tree<kType, 8>(order, op, random);
        check_tree<kType, 16>(order, op, random);
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

TEST_CASE("kernels sum trees of 4, 8 and 16 ranks with the reference's bits, of every float") {
  check_trees<DataType::fp32>();
  check_trees<DataType::fp64>();
  check_trees<DataType::bf16>();
  check_trees<DataType::fp16>();
  check_trees<DataType::fp8e4m3>();
  check_trees<DataType::fp8e5m2>();
}
