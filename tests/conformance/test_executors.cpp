// A single body of tests for all executors: the bits of the reference for every proposed plan of
// every collective, and the same bits from every rank-order plan.
#include <doctest/doctest.h>

#include "conformance/executors.hpp"
#include "plait/error.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait_test;

namespace {

std::vector<Collective> collectives() {
  return {
#define PLAIT_COLLECTIVE(name, input, output, busbw) Collective::name,
#include "plait/collectives.def"
#undef PLAIT_COLLECTIVE
  };
}

Request request_of(const Topology& topology, Collective collective, int ranks, std::uint64_t count,
                   DataType type, ReduceOp op) {
  Request request;
  request.collective = collective;
  request.ranks = ranks;
  request.count = count;
  request.type = type;
  request.op = op;
  request.root = ranks - 1;
  return checked(request, topology);
}

}  // namespace

TEST_CASE_TEMPLATE("executors: every proposed plan gives the reference's bits", Executor,
                   ReferenceExecutor, CpuExecutor) {
  int plans = 0;
  Sample is_next_taken;
  for (const int ranks : {1, 2, 3, 4})
    for (const Collective collective : collectives()) {
      const Topology topology = machine(ranks);
      for (const std::uint64_t count : {1, 257, 40001}) {
        const Request request =
            request_of(topology, collective, ranks, count, DataType::bf16, ReduceOp::sum);
        std::vector<Bytes> rank_order;  // the result of all rank-order plans
        for (const Plan& plan : propose(topology, request)) {
          if (plan.symmetric || !is_next_taken()) continue;
          Executor executor(plan);
          ReferenceExecutor reference(plan);
          for (std::uint64_t call = 0; call < 2; ++call) {
            const Inputs inputs = random_inputs(request, 100 + call);
            const std::vector<Bytes> found = executor.run(inputs);
            const bool same = found == reference.run(inputs);
            if (!same)
              MESSAGE(Executor::kName, " differs: ", name_of(collective), " ", label(plan),
                      " ranks ", ranks, " count ", count, " call ", call);
            CHECK(same);
            if (call != 0 || plan.sum_order != SumOrder::rank_order) continue;
            if (rank_order.empty()) rank_order = found;
            if (found != rank_order)
              MESSAGE("not as other rank-order plans: ", name_of(collective), " ", label(plan),
                      " ranks ", ranks, " count ", count);
            CHECK(found == rank_order);
          }
          ++plans;
        }
      }
    }
  CHECK(plans > rounds(100));
}
