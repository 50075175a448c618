// reduce_cpu against the plain loops, bit for bit: types x ops x source counts x sizes x alignment.
#include <doctest/doctest.h>

#include <cmath>

#include "exec/reference/reduce.hpp"
#include "unit/exec/helpers.hpp"
#include "unit/scale.hpp"

using namespace plait;
using plait_test::Bytes;
using plait_test::random_elements;

namespace {

bool allowed(DataType type, ReduceOp op) {
  const bool bitwise = op == ReduceOp::bit_and || op == ReduceOp::bit_or || op == ReduceOp::bit_xor;
  if (op == ReduceOp::premul_sum) return is_float(type);
  return !(bitwise && is_float(type));
}

struct Case {
  DataType type;
  ReduceOp op;
  int sources;
  std::uint64_t count;
  std::uint64_t skew;  // bytes off alignment
  bool finish;
  int alias;  // which source dst is; -1 = none
};

Bytes run_case(const Case& one, std::uint64_t seed, bool reference) {
  std::mt19937_64 random(seed);
  const std::uint64_t bytes = one.count * bytes_of(one.type);
  std::vector<Bytes> memory;
  std::vector<const void*> srcs;
  std::vector<double> scales;
  for (int s = 0; s < one.sources; ++s) {
    const Bytes elements = random_elements(random, one.type, one.count);
    memory.emplace_back(bytes + 64);
    std::byte* at = memory.back().data() + (one.skew * static_cast<std::uint64_t>(s + 1)) % 32;
    if (bytes != 0) std::memcpy(at, elements.data(), bytes);
    srcs.push_back(at);
    scales.push_back(0.37 * s - 1.0);
  }
  Bytes own(bytes + 64, std::byte{0x5a});
  std::byte* dst = one.alias < 0 ? own.data() + one.skew
                                 : const_cast<std::byte*>(static_cast<const std::byte*>(
                                       srcs[static_cast<std::size_t>(one.alias)]));
  if (reference)
    reduce_reference(one.type, one.op, dst, srcs, one.count, 7, one.finish, scales);
  else
    reduce_cpu(one.type, one.op, dst, srcs.data(), one.sources, one.count, 7, one.finish,
               scales.data());
  if (one.alias < 0)  // nothing beside the region is touched
    for (std::uint64_t i = bytes + one.skew; i < own.size(); ++i)
      if (own[i] != std::byte{0x5a}) return {};
  return Bytes(dst, dst + bytes);
}

void check_case(const Case& one, std::uint64_t seed) {
  const bool same = run_case(one, seed, true) == run_case(one, seed, false);
  if (!same)
    MESSAGE("differs: ", name_of(one.type), " ", name_of(one.op), " sources ", one.sources,
            " count ", one.count, " skew ", one.skew, " finish ", one.finish, " alias ", one.alias);
  CHECK(same);
}

std::vector<DataType> types() {
  return {
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) DataType::name,
#include "plait/types.def"
#undef PLAIT_TYPE
  };
}

std::vector<ReduceOp> ops() {
  return {
#define PLAIT_REDUCE_OP(name, on_floats, on_integers) ReduceOp::name,
#include "plait/reduce_ops.def"
#undef PLAIT_REDUCE_OP
  };
}

std::uint32_t reduced_bits(ReduceOp op, float a, float b) {
  const void* srcs[] = {&a, &b};
  float out = 0;
  reduce_cpu(DataType::fp32, op, &out, srcs, 2, 1, 2, true, nullptr);
  return std::bit_cast<std::uint32_t>(out);
}

}  // namespace

TEST_CASE("reduce_cpu equals the plain loops, bit for bit") {
  std::uint64_t seed = 1;
  for (const DataType type : types())
    for (const ReduceOp op : ops()) {
      if (!allowed(type, op)) continue;
      for (const int sources : {1, 2, 3, 4, 5, 8, 17, 64})
        for (const std::uint64_t count : {0, 1, 31, 513, 1100}) {
          const std::uint64_t skew = seed % 3 == 0 ? 0 : seed % 17;
          const int alias = seed % 2 == 0 ? -1 : static_cast<int>(seed) % sources;
          if (plait_test::sampled(seed))
            check_case({type, op, sources, count, skew, seed % 5 != 0, alias}, seed);
          ++seed;
        }
    }
}

TEST_CASE("reduce_cpu: small floats with every pair of codes") {
  for (const DataType type : {DataType::fp8e4m3, DataType::fp8e5m2})
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max}) {
      std::vector<std::uint8_t> a(65536), b(65536), fast(65536), plain(65536);
      for (std::size_t i = 0; i < a.size(); ++i) {
        a[i] = static_cast<std::uint8_t>(i);
        b[i] = static_cast<std::uint8_t>(i >> 8);
      }
      const void* srcs[] = {a.data(), b.data()};
      reduce_cpu(type, op, fast.data(), srcs, 2, a.size(), 2, true, nullptr);
      reduce_reference(type, op, plain.data(), {a.data(), b.data()}, a.size(), 2, true, {});
      CHECK(fast == plain);
    }
}

TEST_CASE("reduce_cpu: NaN, infinity, signed zero, subnormals") {
  const float nan = std::nanf("3"), tiny = std::numeric_limits<float>::denorm_min();
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max}) {
    CHECK(reduced_bits(op, nan, 1.0f) == 0x7fc00000u);
    CHECK(reduced_bits(op, 1.0f, -nan) == 0x7fc00000u);
  }
  CHECK(reduced_bits(ReduceOp::sum, INFINITY, -INFINITY) == 0x7fc00000u);
  CHECK(reduced_bits(ReduceOp::min, -0.0f, 0.0f) == 0x80000000u);
  CHECK(reduced_bits(ReduceOp::min, 0.0f, -0.0f) == 0x80000000u);
  CHECK(reduced_bits(ReduceOp::max, -0.0f, 0.0f) == 0u);
  CHECK(reduced_bits(ReduceOp::max, 0.0f, -0.0f) == 0u);
  CHECK(reduced_bits(ReduceOp::sum, -0.0f, -0.0f) == 0x80000000u);
  CHECK(reduced_bits(ReduceOp::sum, tiny, tiny) == 2u);
}

TEST_CASE("reduce_cpu: sixteen-bit floats are rounded once") {
  // 256 + 1 + 1: rounding after each addition would lose both ones in bf16.
  const std::uint16_t big = 0x4380, one = 0x3f80;
  const void* srcs[] = {&big, &one, &one};
  std::uint16_t out = 0;
  reduce_cpu(DataType::bf16, ReduceOp::sum, &out, srcs, 3, 1, 3, true, nullptr);
  CHECK(out == 0x4381);
}

TEST_CASE("reduce_cpu: integer avg truncates, and only where it finishes") {
  const std::int32_t a = -7, b = 0;
  const void* srcs[] = {&a, &b};
  std::int32_t out = 0;
  reduce_cpu(DataType::int32, ReduceOp::avg, &out, srcs, 2, 1, 2, true, nullptr);
  CHECK(out == -3);
  reduce_cpu(DataType::int32, ReduceOp::avg, &out, srcs, 2, 1, 2, false, nullptr);
  CHECK(out == -7);
}
