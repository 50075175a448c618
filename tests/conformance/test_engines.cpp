// Runs every engine of engines.def through a single body of tests (conformance.hpp). An engine
// whose work goes through the queue is covered by being in the list. The tests of a kernel say how
// the kernel is traced (Traced).
#include <doctest/doctest.h>

#include "conformance/conformance.hpp"
#include "plan/sum_order.hpp"

using namespace plait_test;
using namespace plait_test::conformance;

namespace {

/// Checks each half by itself: kernels are traced, copies are emulated. The plan gives the order of
/// the halves, and verify() proves it; then the whole call is emulated.
std::string trace_scatter_ring(const EngineRun& run, const Plan& plan) {
  const Topology topology = linked_machine(run.request.ranks);
  const auto part_of = [&](Collective collective, std::uint64_t count, const Engine& engine) {
    Request request = run.request;
    request.collective = collective;
    request.count = count;
    Tuning tuning = run.tuning;
    if (&engine == &tiled_engine()) tuning.tile_units = 0;
    return EngineRun{engine, checked(request, topology), tuning, run.group};
  };
  const auto ranks = static_cast<std::uint64_t>(run.request.ranks);
  const std::uint64_t each = run.request.count / ranks, rest = run.request.count % ranks;
  std::vector<EngineRun> by_tiles{part_of(Collective::reduce_scatter, each, tiled_engine())};
  if (rest != 0) by_tiles.push_back(part_of(Collective::all_reduce, rest, tiled_engine()));
  std::size_t lanes = 0;  // each half's ops are among the plan's
  for (const EngineRun& one : by_tiles) {
    const Plan part =
        plait::cuda::plan_of(one.engine, topology, one.request, one.tuning, one.group);
    lanes += part.lanes.size();
    const std::string fault = trace_tiles(one, part);
    if (!fault.empty()) return fault;
  }
  if (plan.lanes.size() <= lanes) return "wanted lanes of both halves in the plan";
  const std::string fault =
      emulate(part_of(Collective::all_gather, each, copy_ring_engine()), topology);
  return fault.empty() ? emulate_scatter_ring(run) : fault;
}

const Traced kScatterRing{"scatter_ring", trace_scatter_ring};

}  // namespace

TEST_CASE("every engine refuses a call with a reason, or does what its plan says") {
  for (const Engine* const engine : engines()) check_engine(*engine, traces());
}

TEST_CASE("engines sum in a tree of ranks, or refuse with a reason") {
  int summed = 0, refused = 0;
  for (const Engine* const engine : engines())
    for (const int ranks : {4, 6, 8})
      for (const SumOrder order : {SumOrder::tree, SumOrder::tree_rounded})
        for (const Collective collective :
             {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce}) {
          Group group = group_of(ranks);
          group.sum_order = order;
          const Topology topology = linked_machine(ranks);
          Request request;
          request.collective = collective;
          request.ranks = ranks;
          request.count = 1009;
          request.type = DataType::bf16;
          request = checked(request, topology);
          CAPTURE(engine->info().name);
          CAPTURE(ranks);
          const std::string why = why_not(*engine, request, {}, group);
          if (!why.empty()) {
            ++refused;
            if (ranks == 6 && why.find("does not serve") == std::string::npos)
              CHECK(why.find("power of two of ranks, found 6") != std::string::npos);
            continue;
          }
          const Plan plan = plan_of(*engine, topology, request, {}, group);
          CHECK(plan.sum_order == order);
          CHECK(first_finding(verify(plan)) == "");
          const Inputs inputs = random_inputs(request, 17);
          const Plan direct = propose_one(topology, request, "direct");
          CHECK(ReferenceExecutor(plan).run(inputs) ==
                ReferenceExecutor(plait::in_order(direct, order).value()).run(inputs));
          if (plan.kernel.empty()) CHECK(emulate({*engine, request, {}, group}, topology) == "");
          ++summed;
        }
  CHECK(summed > 30);
  CHECK(refused > 30);
}

TEST_CASE("a plan with a part beside the engine goes through JSON unchanged") {
  int checked_plans = 0;
  for (const Engine* const engine : engines())
    for (const int ranks : {2, 3}) {
      const Topology topology = linked_machine(ranks);
      Request request;
      request.ranks = ranks;
      request.count = 40009;
      request = checked(request, topology);
      for (const Tuning& tuning : tunings_of(*engine, request)) {
        if (tuning.host_permille == 0 && tuning.host_cpu_permille == 0) continue;
        if (!why_not(*engine, request, tuning, group_of(ranks)).empty()) continue;
        const Plan plan = plan_of(*engine, topology, request, tuning, group_of(ranks));
        CAPTURE(label(plan));
        CHECK(plan_from_json(to_json(plan)) == plan);
        ++checked_plans;
      }
    }
  CHECK(checked_plans > 0);
}
