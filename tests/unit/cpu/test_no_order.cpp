// has_no_order() by cases: any three of the values sensitive to order (-0 and +0, NaNs of either
// sign, infinities, smallest, largest) give the same bits in every order and grouping; sums of
// floats do not.
#include <doctest/doctest.h>

#include <array>
#include <cstring>

#include "cpu/cpu.hpp"
#include "cpu/reference_reduce.hpp"
#include "unit/cpu/helpers.hpp"
#include "unit/scale.hpp"

using namespace plait;

namespace {

using Bits = std::uint64_t;

/// Returns patterns sensitive to order, of a float type with these bits of exponent and mantissa.
std::vector<Bits> float_cases(int exponent, int mantissa) {
  const Bits sign = Bits{1} << (exponent + mantissa), top = ((Bits{1} << exponent) - 1) << mantissa;
  const Bits one = ((Bits{1} << (exponent - 1)) - 1) << mantissa;
  std::vector<Bits> cases;
  for (const Bits bits : {Bits{0}, Bits{1}, one, one + 1, top - 1, top, top | 1, top | (sign >> 1),
                          top | ((Bits{1} << mantissa) - 1)}) {
    cases.push_back(bits);
    cases.push_back(bits | sign);
  }
  return cases;
}

std::vector<Bits> cases_of(DataType type) {
  switch (type) {
    case DataType::fp64: return float_cases(11, 52);
    case DataType::fp32: return float_cases(8, 23);
    case DataType::bf16: return float_cases(8, 7);
    case DataType::fp16: return float_cases(5, 10);
    case DataType::fp8e4m3: return float_cases(4, 3);
    case DataType::fp8e5m2: return float_cases(5, 2);
    default: break;
  }
  const Bits top = Bits{1} << (8 * bytes_of(type) - 1);
  return {0, 1, 2, 3, top - 1, top, top + 1, 2 * top - 2, 2 * top - 1};
}

struct Reducer {
  DataType type;
  ReduceOp op;
  bool by_reference;
  Bits operator()(const std::vector<Bits>& from, bool finish) const {
    std::vector<const void*> srcs;
    for (const Bits& bits : from) srcs.push_back(&bits);
    Bits made = 0;
    if (by_reference)
      reduce_reference(type, op, &made, srcs, 1, 3, finish, {});
    else
      reduce_cpu(type, op, &made, srcs.data(), static_cast<int>(srcs.size()), 1, 3, finish,
                 nullptr);
    return made;
  }
};

/// Counts groupings and orders of three values with results that differ from the flat reduction.
int other_bits(const Reducer& reduce, Bits a, Bits b, Bits c) {
  const Bits flat = reduce({a, b, c}, true);
  int others = 0;
  const std::array<Bits, 3> in{a, b, c};
  for (const auto& order : {std::array{0u, 1u, 2u},
                            {0u, 2u, 1u},
                            {1u, 0u, 2u},
                            {1u, 2u, 0u},
                            {2u, 0u, 1u},
                            {2u, 1u, 0u}}) {
    const Bits x = in[order[0]], y = in[order[1]], z = in[order[2]];
    others += reduce({x, y, z}, true) != flat;
    others += reduce({reduce({x, y}, false), z}, true) != flat;
    others += reduce({x, reduce({y, z}, false)}, true) != flat;
  }
  return others;
}

int other_bits(const Reducer& reduce) {
  int others = 0;
  const std::vector<Bits> cases = cases_of(reduce.type);
  for (const Bits a : cases)
    for (const Bits b : cases)
      for (const Bits c : cases) others += other_bits(reduce, a, b, c);
  return others;
}

bool takes(DataType type, ReduceOp op) {
  const bool bitwise = op == ReduceOp::bit_and || op == ReduceOp::bit_or || op == ReduceOp::bit_xor;
  return is_float(type) ? !bitwise : op != ReduceOp::premul_sum;
}

const std::vector<DataType> kTypes{
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) DataType::name,
#include "plait/types.def"
#undef PLAIT_TYPE
};
const std::vector<ReduceOp> kOps{
#define PLAIT_REDUCE_OP(name, on_floats, on_integers) ReduceOp::name,
#include "plait/reduce_ops.def"
#undef PLAIT_REDUCE_OP
};

}  // namespace

TEST_CASE("reductions without an order give the same bits in every order and grouping") {
  plait_test::Sample is_next_taken;
  for (const DataType type : kTypes)
    for (const ReduceOp op : kOps)
      for (const bool by_reference : {true, false}) {
        if (!takes(type, op) || op == ReduceOp::premul_sum) continue;
        if (plait_test::kIsSanitized && !is_next_taken()) continue;
        CAPTURE(std::string(name_of(type)));
        CAPTURE(std::string(name_of(op)));
        CHECK((other_bits({type, op, by_reference}) == 0) == has_no_order(type, op));
      }
}

TEST_CASE("min and max: -0 is below +0, and any NaN gives the canonical one") {
  const Bits zero = 0, minus = 1u << 31, nan = 0x7fc00000, other_nan = 0xffa00001;
  for (const bool by_reference : {true, false}) {
    const Reducer least{DataType::fp32, ReduceOp::min, by_reference};
    const Reducer most{DataType::fp32, ReduceOp::max, by_reference};
    CHECK(least({zero, minus}, true) == minus);
    CHECK(least({minus, zero}, true) == minus);
    CHECK(most({zero, minus}, true) == zero);
    CHECK(most({minus, zero}, true) == zero);
    CHECK(least({zero, other_nan}, true) == nan);
    CHECK(most({other_nan, zero}, true) == nan);
  }
}
