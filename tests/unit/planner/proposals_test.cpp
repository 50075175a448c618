// Runs every proposal of every strategy on machines of all kinds by an oracle, with lanes in random
// order, out of place and in place; and tests propose().
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "plait/error.hpp"
#include "plait/plan.hpp"
#include "unit/cpu_time.hpp"
#include "unit/planner/plan_runner.hpp"
#include "unit/scale.hpp"

namespace plait {
namespace {

using test::request_of;

void run_all(const Topology& topology, int ranks, std::uint64_t count) {
  static plait_test::Sample is_next_taken;
  for (int c = 0; c <= static_cast<int>(Collective::copy); ++c) {
    if (!is_next_taken()) continue;
    const Request request = request_of(static_cast<Collective>(c), ranks, count);
    std::vector<Plan> plans = propose(topology, request);
    CAPTURE(topology.name);
    CAPTURE(name_of(request.collective));
    CAPTURE(ranks);
    CAPTURE(count);
    REQUIRE(!plans.empty());
    for (const Plan& plan : plans) {
      CAPTURE(label(plan));
      for (const bool in_place : {false, true}) {
        if (in_place && plan.symmetric) continue;  // symmetric plans are for separate buffers
        CAPTURE(in_place);
        const std::string wrong = test::run_plan(plan, in_place, static_cast<unsigned>(count) + 1);
        REQUIRE(wrong == "");
      }
    }
  }
}

TEST_CASE("every proposal computes its collective") {
  for (const char* name : {"hgx-h200", "dgx1v", "mist", "cedar", "narval"}) {
    const Topology topology = load_topology(name);
    const int most = static_cast<int>(rank_devices(topology).size());
    for (int ranks = 1; ranks <= most; ranks += ranks < 5 ? 1 : 3)
      for (const std::uint64_t count : {0, 1, 127, 9001}) run_all(topology, ranks, count);
  }
}

TEST_CASE("every proposal for CPU ranks computes its collective") {
  const Topology topology = local_cpu(16);
  for (const int ranks : {1, 2, 3, 5, 9, 16})
    for (const std::uint64_t count : {2, 9001}) run_all(topology, ranks, count);
  run_all(topology, 2, 700001);
  run_all(topology, 4, 400001);
}

TEST_CASE("proposals are many, quick, in order, and none twice") {
  const Topology topology = load_topology("hgx-h200");
  Request request = request_of(Collective::all_reduce, 8, 256 << 20);
  request.type = DataType::fp32;
  const double start_s = plait_test::cpu_s();
  std::vector<Refusal> refusals;
  const std::vector<Plan> plans = propose(topology, request, &refusals);
  const double took_ms = 1e3 * (plait_test::cpu_s() - start_s);
  MESSAGE("propose took ", took_ms, " ms for ", plans.size(), " plans");
  CHECK(took_ms < (plait_test::kIsSanitized ? 20000.0 : 1000.0));  // 100 ms on an idle machine
  CHECK(plans.size() >= 8);
  CHECK(plans.size() <= 40);
  std::set<std::string> labels;
  for (const Plan& plan : plans) {
    CHECK(labels.insert(label(plan)).second);
    CHECK(op_count(plan) < 25000);  // flat with a host share is the longest
    for (const std::uint64_t bytes : plan.scratch_bytes) CHECK(bytes <= 256U << 20);
    for (const std::uint64_t bytes : plan.ring_bytes) CHECK(bytes <= 8U << 20);
  }
  CHECK(std::any_of(refusals.begin(), refusals.end(),
                    [](const Refusal& refusal) { return refusal.strategy == "pairwise"; }));
}

TEST_CASE("on CPU ranks the best plan for 64 MiB works in small pieces") {
  const Topology topology = local_cpu(2);
  Request request = request_of(Collective::all_reduce, 2, 16 << 20);
  request.type = DataType::fp32;
  const std::vector<Plan> plans = propose(topology, request);
  CHECK((plans.front().strategy == "direct" || plans.front().strategy == "pairwise"));
  CHECK(plans.front().params.at("pieces") >= 32);
}

}  // namespace
}  // namespace plait
