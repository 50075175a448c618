// Compares small plans of every strategy, run by the reference executor, with plain loops: integers
// exactly, floats with fp64. All rank-order plans must give the same bits, out of place and in
// place.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "cpu/reference.hpp"
#include "plait/error.hpp"
#include "plans/cases.hpp"

namespace {

using namespace plait;
using Bytes = std::vector<std::byte>;

const std::vector<std::uint64_t> kCounts{0, 1, 5, 127, 1009};
const DataType kTypes[] = {DataType::fp32, DataType::int32, DataType::bf16, DataType::fp64};
const ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::max, ReduceOp::avg, ReduceOp::prod};

// Values near 1, so that products of 16 neither vanish nor overflow; exact in bf16 (7 bits).
double input_value(int rank, std::uint64_t element, DataType type) {
  const std::uint64_t mixed =
      (element + 1) * 0x9e3779b97f4a7c15ULL + static_cast<unsigned>(rank) * 7919;
  const auto step = static_cast<double>(mixed >> 40 & 63);
  return is_float(type) ? 1.0 + (step - 32.0) / 128.0 : step - 32.0;
}

void store(std::byte* at, DataType type, double value) {
  const auto put = [at](auto typed) { std::memcpy(at, &typed, sizeof typed); };
  switch (type) {
    case DataType::fp32: return put(static_cast<float>(value));
    case DataType::int32: return put(static_cast<std::int32_t>(value));
    case DataType::fp64: return put(value);
    default:  // bf16: the upper half of an fp32 with a lower half of zeros
      return put(static_cast<std::uint16_t>(
          std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16));
  }
}

double load(const std::byte* at, DataType type) {
  const auto get = [at](auto typed) {
    std::memcpy(&typed, at, sizeof typed);
    return typed;
  };
  switch (type) {
    case DataType::fp32: return static_cast<double>(get(0.0F));
    case DataType::int32: return get(std::int32_t{0});
    case DataType::fp64: return get(0.0);
    default:
      return static_cast<double>(
          std::bit_cast<float>(static_cast<std::uint32_t>(get(std::uint16_t{0})) << 16));
  }
}

double tolerance(DataType type, int ranks) {
  const double epsilon = type == DataType::fp64   ? 0x1p-52
                         : type == DataType::fp32 ? 0x1p-23
                                                  : 0x1p-7;
  return epsilon * (ranks + 1);
}

double combined(const Request& request, std::uint64_t element) {
  double result = input_value(0, element, request.type);
  std::int64_t product = static_cast<std::int64_t>(result);
  for (int rank = 1; rank < request.ranks; ++rank) {
    const double value = input_value(rank, element, request.type);
    product = static_cast<std::int32_t>(product * static_cast<std::int64_t>(value));  // wraps
    if (request.op == ReduceOp::max)
      result = std::max(result, value);
    else if (request.op == ReduceOp::prod)
      result *= value;
    else
      result += value;
  }
  if (request.op == ReduceOp::prod && !is_float(request.type)) return static_cast<double>(product);
  return request.op == ReduceOp::avg ? result / request.ranks : result;
}

double expected(const Request& request, int rank, std::uint64_t element) {
  const std::uint64_t count = request.count;
  const int block = static_cast<int>(element / count);
  const std::uint64_t within = element % count;
  const std::uint64_t mine = static_cast<std::uint64_t>(rank) * count;
  switch (request.collective) {
    case Collective::all_reduce:
    case Collective::reduce: return combined(request, element);
    case Collective::reduce_scatter: return combined(request, mine + element);
    case Collective::all_gather:
    case Collective::gather: return input_value(block, within, request.type);
    case Collective::broadcast:
    case Collective::copy: return input_value(request.root, element, request.type);
    case Collective::scatter: return input_value(request.root, mine + element, request.type);
    case Collective::all_to_all: return input_value(block, mine + within, request.type);
    case Collective::send_recv:
      return input_value((rank + request.ranks - 1) % request.ranks, element, request.type);
  }
  return 0.0;
}

// NCCL's in-place layouts: the smaller buffer is the rank's block of the larger buffer.
struct RankBuffers {
  std::vector<Bytes> memory;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
};

RankBuffers buffers_for(const Request& request, bool in_place) {
  RankBuffers made;
  const std::uint64_t element_bytes = bytes_of(request.type);
  for (int rank = 0; rank < request.ranks; ++rank) {
    const std::uint64_t in = input_bytes(request, rank), out = output_bytes(request, rank);
    const bool shared = in_place && in != 0 && out != 0;
    const std::uint64_t shift = static_cast<std::uint64_t>(rank) * request.count * element_bytes;
    Bytes& memory =
        made.memory.emplace_back(shared ? std::max(in, out) : in + out, std::byte{0x5a});
    std::byte* input = memory.data() + (shared && out > in ? shift : 0);
    std::byte* output = memory.data() + (!shared ? in : in > out ? shift : 0);
    for (std::uint64_t i = 0; i < in / element_bytes; ++i)
      store(input + i * element_bytes, request.type, input_value(rank, i, request.type));
    made.inputs.push_back(input);
    made.outputs.push_back(output);
  }
  return made;
}

std::uint64_t wrong_elements(const Request& request, const RankBuffers& buffers) {
  const std::uint64_t element_bytes = bytes_of(request.type);
  std::uint64_t wrong = 0;
  for (int rank = 0; rank < request.ranks; ++rank) {
    const auto* output =
        static_cast<const std::byte*>(buffers.outputs[static_cast<std::size_t>(rank)]);
    for (std::uint64_t i = 0; i < output_bytes(request, rank) / element_bytes; ++i) {
      const double found = load(output + i * element_bytes, request.type);
      const double wanted = expected(request, rank, i);
      const bool exact = !is_float(request.type) || !reduces(request.collective);
      const double off = exact && request.op != ReduceOp::avg ? 0.0
                         : is_float(request.type)
                             ? tolerance(request.type, request.ranks) * std::abs(wanted)
                             : 1.0;
      wrong += std::abs(found - wanted) <= off ? 0 : 1;
    }
  }
  return wrong;
}

std::string bits(const Request& request, const RankBuffers& buffers) {
  std::string all;
  for (int rank = 0; rank < request.ranks; ++rank)
    all.append(static_cast<const char*>(buffers.outputs[static_cast<std::size_t>(rank)]),
               output_bytes(request, rank));
  return all;
}

struct OracleTally {
  std::uint64_t runs = 0;
  std::uint64_t compared = 0;
  std::map<std::string, std::string> bits_of;  // request -> outputs of the first rank-order plan
};

void run_one(const Plan& plan, OracleTally& tally) {
  for (const bool in_place : {false, true}) {
    if (in_place && plan.request.collective == Collective::all_to_all) continue;  // NCCL has none
    if (in_place && plan.request.collective == Collective::send_recv) continue;
    RankBuffers buffers = buffers_for(plan.request, in_place);
    run_reference(plan, buffers.inputs, buffers.outputs);
    ++tally.runs;
    CHECK(wrong_elements(plan.request, buffers) == 0);
    if (plan.sum_order != SumOrder::rank_order || !reduces(plan.request.collective)) continue;
    Request key = plan.request;
    key.devices.clear();  // on any machine
    const std::string found = bits(plan.request, buffers);
    const auto [first, is_new] = tally.bits_of.try_emplace(to_json(key), found);
    if (is_new) continue;
    ++tally.compared;
    CHECK(first->second == found);
  }
}

void run_sizes(const cases::PlanCase& unsized, OracleTally& tally, std::size_t& turn) {
  for (const std::uint64_t count : kCounts) {
    cases::PlanCase one = unsized;
    ++turn;
    one.request.count = count;
    // Type and op depend on the size, not on the strategy, hence rank-order plans share requests.
    const std::size_t kind =
        static_cast<std::size_t>(count + static_cast<std::uint64_t>(one.request.ranks));
    one.request.type = kTypes[kind % std::size(kTypes)];
    one.request.op = kOps[kind / 4 % std::size(kOps)];
    try {
      one.request = checked(one.request, one.topology);
      const std::vector<Params> sets = one.strategy.candidates(one.topology, one.request);
      const Plan plan = one.strategy.build(one.topology, one.request, sets[turn % sets.size()]);
      CAPTURE(label(plan));
      CAPTURE(to_json(plan.request));
      CAPTURE(one.topology.name);
      run_one(plan, tally);
    } catch (const Error& refusal) {
      CAPTURE(refusal.what());
      CHECK(refusal.code() == ErrorCode::unsupported);
    }
  }
}

}  // namespace

TEST_CASE("every small plan gives the results of plain loops, and rank-order plans the same bits") {
  OracleTally tally;
  std::size_t turn = 0;
  for (const Topology& topology : cases::machines())
    cases::for_each_case(topology,
                         [&](const cases::PlanCase& one) { run_sizes(one, tally, turn); });
  MESSAGE(tally.runs, " runs right, ", tally.compared, " compared bit by bit");
  CHECK(tally.runs > static_cast<std::uint64_t>(plait_test::rounds(3000)));
  if (!plait_test::takes_few())
    CHECK(tally.compared > static_cast<std::uint64_t>(plait_test::rounds(500)));
}
