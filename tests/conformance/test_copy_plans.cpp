// The plans that copy engines' own code writes down (exec/cuda/copies/copy_plans.hpp): proved, and
// run by the reference executor with the bits of the reference. test_engine_calls.cpp plays the
// same calls on engines in host memory.
#include <doctest/doctest.h>

#include "conformance/engine_calls.hpp"
#include "exec/cuda/copies/copy_plans.hpp"
#include "plait/report.hpp"
#include "unit/scale.hpp"

using namespace plait_test;
using namespace plait_test::engine_calls;

namespace {

CopyTuning tuning_of(const How& how) {
  CopyTuning tuning;
  tuning.host_permille = how.host_permille;
  tuning.gather_permille = how.gather_permille;
  tuning.host_cpu_permille = how.host_cpu_permille;
  tuning.least_chunk_bytes = 1;
  return tuning;
}

void check_call(const Topology& topology, Call& call) {
  const Plan plan =
      plan_beside_host(topology, call.request, room_of(call.request.ranks), tuning_of(call.how));
  CAPTURE(call.label);
  const Report report = verify(plan);
  INFO(print(report).substr(0, 2000));
  CHECK(report.proved());
  CHECK(plan.sum_order == SumOrder::rank_order);
  CHECK(ReferenceExecutor(plan).run(call.inputs) == call.expected);
  CHECK(plan_from_json(to_json(plan)) == plan);
}

}  // namespace

TEST_CASE("the plans of calls by copy engines are proved, and give the reference's bits" *
          doctest::skip(kLooksForRaces)) {
  const Topology topology = load_topology("hgx-h200");
  for (const int ranks : {2, 3, 4, 5, 8})
    for (int seed = 1; seed <= rounds(ranks == 2 ? 20 : ranks <= 4 ? 8 : 3); ++seed)
      for (Call& call : calls_of(topology, ranks, static_cast<unsigned>(seed), true))
        check_call(topology, call);
}
