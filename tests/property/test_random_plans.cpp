// On random requests the CPU executor must give the reference's bits. A failure prints the seed;
// use the seed in place of the clock to repeat the run.
#include <doctest/doctest.h>

#include <chrono>

#include "conformance/executors.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait_test;

namespace {

const int kCases = rounds(150);

template <class T>
T pick(std::mt19937_64& random, const std::vector<T>& from) {
  return from[random() % from.size()];
}

Request random_request(std::mt19937_64& random) {
  Request request;
  request.ranks = static_cast<int>(random() % 6) + 1;
  request.collective = static_cast<Collective>(random() % 10);
  request.type = static_cast<DataType>(random() % 14);
  request.op = pick<ReduceOp>(
      random, {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max, ReduceOp::avg});
  if (is_float(request.type) && random() % 4 == 0) request.op = ReduceOp::premul_sum;
  if (!is_float(request.type) && random() % 4 == 0) request.op = ReduceOp::bit_xor;
  const std::uint64_t scale = pick<std::uint64_t>(random, {4, 64, 3000, 50000});
  request.count = random() % scale;
  request.root = static_cast<int>(random() % static_cast<std::uint64_t>(request.ranks));
  request.peer = static_cast<int>(random() % static_cast<std::uint64_t>(request.ranks));
  return request;
}

}  // namespace

TEST_CASE("property: cpu equals reference on random requests and plans") {
  const auto seed =
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  int ran = 0;
  for (int i = 0; i < kCases; ++i) {
    const Request unchecked = random_request(random);
    const Topology topology = machine(unchecked.ranks);
    const Request request = checked(unchecked, topology);
    std::vector<Plan> plans = propose(topology, request);
    std::erase_if(plans, [](const Plan& plan) { return plan.symmetric; });
    if (plans.empty()) continue;
    const Plan& plan = plans[random() % plans.size()];
    const Inputs inputs = random_inputs(request, random());
    const bool same = CpuExecutor(plan).run(inputs) == ReferenceExecutor(plan).run(inputs);
    if (!same)
      MESSAGE("differs: seed ", seed, " case ", i, ": ", to_json(request), " ", label(plan));
    CHECK(same);
    ++ran;
  }
  CHECK(ran > kCases / 2);
}
