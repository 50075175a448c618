// Every collective by direct send and receive, over all kinds of counts, shares and rank numbers.
#include <doctest/doctest.h>

#include "plait/error.hpp"
#include "plait/plan.hpp"
#include "unit/planner/plan_runner.hpp"
#include "unit/scale.hpp"

namespace plait {
namespace {

using test::request_of;
using test::run_plan;

constexpr Collective kAll[] = {Collective::all_reduce, Collective::reduce_scatter,
                               Collective::all_gather, Collective::broadcast,
                               Collective::reduce,     Collective::all_to_all,
                               Collective::gather,     Collective::scatter,
                               Collective::send_recv,  Collective::copy};

void check(const Topology& topology, const Request& request, const std::string& strategy,
           const std::map<std::string, std::int64_t>& params) {
  static plait_test::Sample is_next_taken;
  if (!is_next_taken()) return;
  const Plan plan = propose_one(topology, request, strategy, params);
  for (const bool in_place : {false, true})
    for (unsigned seed = 0; seed < 2; ++seed) {
      const std::string wrong = run_plan(plan, in_place, seed);
      CAPTURE(label(plan));
      CAPTURE(name_of(request.collective));
      CAPTURE(request.ranks);
      CAPTURE(request.count);
      CAPTURE(in_place);
      REQUIRE(wrong == "");
    }
}

TEST_CASE("direct does every collective for any ranks and counts") {
  const Topology topology = load_topology("hgx-h200");
  for (const Collective collective : kAll)
    for (int ranks = 1; ranks <= 8; ranks += ranks < 5 ? 1 : 3)
      for (const std::uint64_t count : {0, 1, 7, 127, 1000, 9001})
        for (const std::int64_t pieces : {1, 3})
          check(topology, request_of(collective, ranks, count), "direct",
                {{"pieces", pieces}, {"throttle", pieces}});
}

TEST_CASE("direct over several paths") {
  const Topology topology = load_topology("hgx-h200");
  for (const Collective collective : kAll)
    for (int ranks = 2; ranks <= 5; ++ranks)
      for (const std::uint64_t count : {1, 1000, 70001}) {
        const Request request = request_of(collective, ranks, count);
        check(topology, request, "direct", {{"host_permille", 300}, {"pieces", 3}});
        check(topology, request, "direct",
              {{"relay_permille", 300}, {"relay", 7}, {"pieces", 2}, {"host_permille", 200}});
        if (!reduces(collective)) continue;
        check(topology, request, "direct", {{"host_cpu_permille", 400}, {"fuse", 0}});
        check(topology, request, "direct", {{"host_cpu_permille", 500}, {"host_permille", 500}});
        if (ranks > 2) check(topology, request, "direct", {{"relay_permille", 0}, {"fuse", 0}});
      }
}

TEST_CASE("direct refuses unsupported requests") {
  const Topology topology = load_topology("hgx-h200");
  const Request request = request_of(Collective::all_reduce, 4, 1000);
  CHECK_THROWS_AS(propose_one(topology, request, "direct", {{"piezes", 2}}), Error);
  CHECK_THROWS_AS(propose_one(topology, request, "direct", {{"pieces", 0}}), Error);
  CHECK_THROWS_AS(propose_one(topology, request, "direkt", {}), Error);
  CHECK_THROWS_AS(propose_one(topology, request, "direct",
                              {{"host_permille", 600}, {"host_cpu_permille", 600}}),
                  Error);
}

}  // namespace
}  // namespace plait
