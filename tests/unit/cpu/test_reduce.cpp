// Compares reduce_cpu with plain loops, bit for bit: types x ops x source counts x sizes x
// alignment, for every instruction set of this machine.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "cpu/numbers.hpp"
#include "cpu/reduce_level.hpp"
#include "cpu/reference_reduce.hpp"
#include "plait/error.hpp"
#include "unit/cpu/helpers.hpp"
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

struct ReduceCase {
  DataType type;
  ReduceOp op;
  int sources;
  std::uint64_t count;
  std::uint64_t skew;  // bytes off alignment
  bool finish;
  int alias;  // index of the source that is dst; -1 = none
  SumOrder order = SumOrder::rank_order;
};

// Without a level, runs the reference.
Bytes run_case(const ReduceCase& one, std::uint64_t seed, std::optional<ReduceLevel> level) {
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
  if (!level)
    reduce_reference(one.type, one.op, dst, srcs, one.count, 7, one.finish, scales, one.order);
  else
    reduce_cpu_at(*level, one.type, one.op, dst, srcs.data(), one.sources, one.count, 7, one.finish,
                  scales.data(), one.order);
  if (one.alias < 0)  // bytes outside the region are unchanged
    for (std::uint64_t i = bytes + one.skew; i < own.size(); ++i)
      if (own[i] != std::byte{0x5a}) return {};
  return Bytes(dst, dst + bytes);
}

void check_case(const ReduceCase& one, std::uint64_t seed) {
  const Bytes wanted = run_case(one, seed, std::nullopt);
  for (const ReduceLevel level : reduce_levels()) {
    const bool same = wanted == run_case(one, seed, level);
    if (!same)
      MESSAGE("differs: ", name_of(level), " ", name_of(one.type), " ", name_of(one.op),
              " sources ", one.sources, " count ", one.count, " skew ", one.skew, " finish ",
              one.finish, " alias ", one.alias, " ", name_of(one.order));
    CHECK(same);
  }
}

// Compares each level's bytes with the reference's.
void check_sources(DataType type, ReduceOp op, const std::vector<Bytes>& sources, int ranks,
                   const std::vector<double>& scales) {
  std::vector<const void*> srcs;
  for (const Bytes& source : sources) srcs.push_back(source.data());
  const std::uint64_t count = sources[0].size() / bytes_of(type);
  Bytes wanted(sources[0].size()), found(sources[0].size());
  reduce_reference(type, op, wanted.data(), srcs, count, ranks, true, scales);
  for (const ReduceLevel level : reduce_levels()) {
    reduce_cpu_at(level, type, op, found.data(), srcs.data(), static_cast<int>(srcs.size()), count,
                  ranks, true, scales.empty() ? nullptr : scales.data());
    INFO(name_of(level), " ", name_of(type), " ", name_of(op), " scale ",
         scales.empty() ? 0.0 : scales[0]);
    CHECK(wanted == found);
  }
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

std::uint32_t reduced_bits(ReduceLevel level, ReduceOp op, float a, float b) {
  const void* srcs[] = {&a, &b};
  float out = 0;
  reduce_cpu_at(level, DataType::fp32, op, &out, srcs, 2, 1, 2, true, nullptr);
  return std::bit_cast<std::uint32_t>(out);
}

}  // namespace

TEST_CASE("reduce_cpu equals the plain loops, bit for bit") {
  std::uint64_t seed = 1;
  for (const DataType type : types())
    for (const ReduceOp op : ops()) {
      if (!allowed(type, op)) continue;
      for (const int sources : {1, 2, 3, 4, 5, 8, 17, 64})
        for (const std::uint64_t count : {0, 1, 31, 128, 513, 1100}) {
          const std::uint64_t skew = seed % 3 == 0 ? 0 : seed % 17;
          const int alias = seed % 2 == 0 ? -1 : static_cast<int>(seed) % sources;
          if (plait_test::sampled(seed))
            check_case({type, op, sources, count, skew, seed % 5 != 0, alias}, seed);
          ++seed;
        }
    }
}

TEST_CASE("reduce_cpu in trees equals the plain loops, bit for bit") {
  std::uint64_t seed = 1;
  for (const DataType type : types())
    for (const ReduceOp op : ops()) {
      if (!allowed(type, op)) continue;
      for (const SumOrder order : {SumOrder::tree, SumOrder::tree_rounded})
        for (const int sources : {1, 2, 4, 8, 16, 64})
          for (const std::uint64_t count : {1, 31, 513, 1100}) {
            const std::uint64_t skew = seed % 3 == 0 ? 0 : seed % 17;
            const int alias = seed % 2 == 0 ? -1 : static_cast<int>(seed) % sources;
            if (plait_test::sampled(seed))
              check_case({type, op, sources, count, skew, seed % 5 != 0, alias, order}, seed);
            ++seed;
          }
    }
}

// Sums by hand: 1 and seven elements of half a unit of bf16 next to 1. Rank order and trees that
// round once keep the small ones; a tree that rounds each sum keeps the sums of several.
TEST_CASE("reduce_cpu: trees sum in pairs, and round at the end or at each sum") {
  const std::uint16_t one = 0x3f80, half_unit = 0x3b80;  // 1, 2^-8; the unit at 1 is 2^-7
  const std::uint16_t elements[] = {one,       half_unit, half_unit, half_unit,
                                    half_unit, half_unit, half_unit, half_unit};
  std::vector<const void*> srcs;
  for (const std::uint16_t& element : elements) srcs.push_back(&element);
  const auto sum = [&](SumOrder order, int sources) {
    std::uint16_t found = 0, wanted = 0;
    reduce_cpu(DataType::bf16, ReduceOp::sum, &found, srcs.data(), sources, 1, sources, true,
               nullptr, order);
    reduce_reference(DataType::bf16, ReduceOp::sum, &wanted, {srcs.begin(), srcs.begin() + sources},
                     1, sources, true, {}, order);
    CHECK(found == wanted);
    return found;
  };
  CHECK(sum(SumOrder::tree, 4) == 0x3f82);          // 1 + 3/256, to even
  CHECK(sum(SumOrder::tree_rounded, 4) == 0x3f81);  // (1 + 1/256 -> 1) + 2/256
  CHECK(sum(SumOrder::tree, 8) == 0x3f84);          // 1 + 7/256
  CHECK(sum(SumOrder::tree_rounded, 8) == 0x3f83);  // (1 + 2/256) + 4/256

  // In fp32 the order alone shows: 2^24 + 1 + 1 + 1 is 2^24 in turn, and 2^24 + 2 in pairs.
  const float big[] = {16777216.0f, 1.0f, 1.0f, 1.0f};
  const void* from[] = {&big[0], &big[1], &big[2], &big[3]};
  float found = 0;
  reduce_cpu(DataType::fp32, ReduceOp::sum, &found, from, 4, 1, 4, true, nullptr);
  CHECK(found == 16777216.0f);
  reduce_cpu(DataType::fp32, ReduceOp::sum, &found, from, 4, 1, 4, true, nullptr, SumOrder::tree);
  CHECK(found == 16777218.0f);
  CHECK_THROWS_AS(reduce_cpu(DataType::fp32, ReduceOp::sum, &found, from, 3, 1, 3, true, nullptr,
                             SumOrder::tree),
                  Error);
}

TEST_CASE("reduce_cpu: every length up to several groups") {
  std::uint64_t seed = 90000;
  for (const DataType type : types())
    for (std::uint64_t count = 0; count < 300; ++count, ++seed)
      if (plait_test::sampled(seed))
        check_case(
            {type, ReduceOp::sum, 2 + static_cast<int>(seed % 3), count, seed % 16, true, -1},
            seed);
}

TEST_CASE("reduce_cpu: small floats with every pair of codes") {
  for (const DataType type : {DataType::fp8e4m3, DataType::fp8e5m2}) {
    Bytes a(65536), b(65536);
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<std::byte>(i);
      b[i] = static_cast<std::byte>(i >> 8);
    }
    for (const ReduceOp op :
         {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max, ReduceOp::avg}) {
      check_sources(type, op, {a, b}, 3, {});
      check_sources(type, op, {b, a, b, b}, 4, {});
    }
  }
}

// A source times a factor covers all float32 to round: ties, both sides of every tie, subnormals,
// overflows and NaN.
TEST_CASE("reduce_cpu: small floats, rounding of every code at many scales") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const DataType type :
       {DataType::bf16, DataType::fp16, DataType::fp8e4m3, DataType::fp8e5m2}) {
    const std::size_t codes = bytes_of(type) == 1 ? 256 : 65536;
    Bytes all(codes * bytes_of(type));
    for (std::size_t i = 0; i < codes; ++i) {
      const std::uint16_t code = static_cast<std::uint16_t>(i);
      std::memcpy(all.data() + i * bytes_of(type), &code, bytes_of(type));
    }
    std::vector<double> scales = {0.0, -0.0, infinity, -infinity, std::nan(""), 1e300, 1e-300};
    for (int power = -40; power <= 40; ++power)
      for (const double step : {1.0, 1.0 + 0x1p-23, 1.0625, 1.125, 1.25, 1.4999999, 1.5, 1.75})
        for (const double sign : {1.0, -1.0}) scales.push_back(sign * std::ldexp(step, power));
    for (std::size_t s = 0; s < scales.size(); ++s)
      if (plait_test::sampled(s)) {
        check_sources(type, ReduceOp::premul_sum, {all}, 1, {scales[s]});
        if (codes == 256) check_sources(type, ReduceOp::premul_sum, {all, all}, 2, {scales[s], 1});
      }
  }
}

TEST_CASE("reduce_cpu: 16-bit floats, every code with special ones") {
  for (const DataType type : {DataType::bf16, DataType::fp16}) {
    Bytes all(131072), other(131072);
    for (std::uint32_t i = 0; i < 65536; ++i) std::memcpy(all.data() + 2 * i, &i, 2);
    const bool half = type == DataType::fp16;
    const std::uint16_t infinity = half ? 0x7c00 : 0x7f80, least = half ? 0x0400 : 0x0080;
    for (const int code : {0, 1, least - 1, +least, half ? 0x3c00 : 0x3f80, infinity - 1, +infinity,
                           infinity + 1, 0x7fff, 0x1234, 0x3555})
      for (const int sign : {0, 0x8000}) {
        const std::uint16_t value = static_cast<std::uint16_t>(code | sign);
        for (std::size_t i = 0; i < 65536; ++i) std::memcpy(other.data() + 2 * i, &value, 2);
        for (const ReduceOp op :
             {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max, ReduceOp::avg})
          check_sources(type, op, {all, other}, 3, {});
      }
  }
}

TEST_CASE("reduce_cpu: levels") {
  const std::vector<ReduceLevel> levels = reduce_levels();
  CHECK(levels.front() == ReduceLevel::base);
  const float one = 1.0f;
  const void* srcs[] = {&one};
  float out = 0;
  if (levels.back() != ReduceLevel::avx512)
    CHECK_THROWS_AS(reduce_cpu_at(ReduceLevel::avx512, DataType::fp32, ReduceOp::sum, &out, srcs, 1,
                                  1, 1, true, nullptr),
                    Error);
  CHECK_THROWS_AS(reduce_cpu_at(ReduceLevel::base, DataType::fp32, ReduceOp::sum, &out, srcs, 0, 1,
                                1, true, nullptr),
                  Error);
}

TEST_CASE("reduce_cpu: NaN, infinity, signed zero, subnormals") {
  const float nan = std::nanf("3"), tiny = std::numeric_limits<float>::denorm_min();
  for (const ReduceLevel level : reduce_levels()) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max}) {
      CHECK(reduced_bits(level, op, nan, 1.0f) == 0x7fc00000u);
      CHECK(reduced_bits(level, op, 1.0f, -nan) == 0x7fc00000u);
    }
    CHECK(reduced_bits(level, ReduceOp::sum, INFINITY, -INFINITY) == 0x7fc00000u);
    CHECK(reduced_bits(level, ReduceOp::min, -0.0f, 0.0f) == 0x80000000u);
    CHECK(reduced_bits(level, ReduceOp::min, 0.0f, -0.0f) == 0x80000000u);
    CHECK(reduced_bits(level, ReduceOp::max, -0.0f, 0.0f) == 0u);
    CHECK(reduced_bits(level, ReduceOp::max, 0.0f, -0.0f) == 0u);
    CHECK(reduced_bits(level, ReduceOp::sum, -0.0f, -0.0f) == 0x80000000u);
    CHECK(reduced_bits(level, ReduceOp::sum, tiny, tiny) == 2u);
  }
}

TEST_CASE("reduce_cpu: sixteen-bit floats are rounded once") {
  // 256 + 1 + 1: rounding after each addition would lose both 1s in bf16.
  const std::uint16_t big = 0x4380, one = 0x3f80;
  const void* srcs[] = {&big, &one, &one};
  std::uint16_t out = 0;
  reduce_cpu(DataType::bf16, ReduceOp::sum, &out, srcs, 3, 1, 3, true, nullptr);
  CHECK(out == 0x4381);
}

// Small types cannot hold every count of ranks: int8 has 256 as 0, and 200 as -56.
TEST_CASE("integer avg divides by counts of ranks that the type does not hold") {
  const auto average = [](auto total, int ranks) {
    using T = decltype(total);
    constexpr bool kSigned = std::is_signed_v<T>;
    const DataType type = sizeof(T) == 1 ? (kSigned ? DataType::int8 : DataType::uint8)
                                         : (kSigned ? DataType::int16 : DataType::uint16);
    const Bytes elements = [&] {
      Bytes all(300 * sizeof(T));
      for (std::size_t i = 0; i < 300; ++i) std::memcpy(&all[i * sizeof(T)], &total, sizeof(T));
      return all;
    }();
    check_sources(type, ReduceOp::avg, {elements}, ranks, {});
    T found = 0;
    reduce_reference(type, ReduceOp::avg, &found, {elements.data()}, 1, ranks, true, {});
    return static_cast<int>(found);
  };
  for (const int ranks : {1, 2, 127, 128, 129, 200, 255, 256, 257, 32767, 32768, 65536, 70000})
    for (const int total : {-32768, -129, -128, -127, -1, 0, 1, 100, 127, 200, 255, 32767, 65535}) {
      CAPTURE(ranks);
      CAPTURE(total);
      CHECK(average(static_cast<std::int8_t>(total), ranks) ==
            static_cast<std::int8_t>(total) / ranks);
      CHECK(average(static_cast<std::uint8_t>(total), ranks) ==
            static_cast<std::uint8_t>(total) / ranks);
      CHECK(average(static_cast<std::int16_t>(total), ranks) ==
            static_cast<std::int16_t>(total) / ranks);
      CHECK(average(static_cast<std::uint16_t>(total), ranks) ==
            static_cast<std::uint16_t>(total) / ranks);
    }
  // As with 256 ranks, totals wrap before the division.
  const std::int8_t one = 1, two = 2;
  std::vector<const void*> srcs(256, &one);
  std::int8_t found = 7;
  reduce_cpu(DataType::int8, ReduceOp::avg, &found, srcs.data(), 256, 1, 256, true, nullptr);
  CHECK(found == 0);
  srcs.assign(200, &two);  // 400 (-112 in int8)
  reduce_cpu(DataType::int8, ReduceOp::avg, &found, srcs.data(), 200, 1, 112, true, nullptr);
  CHECK(found == -1);
}

TEST_CASE("reduce_cpu: integer avg truncates, only in the last reduction") {
  const std::int32_t a = -7, b = 0;
  const void* srcs[] = {&a, &b};
  std::int32_t out = 0;
  reduce_cpu(DataType::int32, ReduceOp::avg, &out, srcs, 2, 1, 2, true, nullptr);
  CHECK(out == -3);
  reduce_cpu(DataType::int32, ReduceOp::avg, &out, srcs, 2, 1, 2, false, nullptr);
  CHECK(out == -7);
}
