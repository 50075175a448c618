// Prices of kernel calls: parameters that make a call slower, and plans without a price.
#include <doctest/doctest.h>

#include "machines.hpp"
#include "plait/error.hpp"
#include "sim/simulate.hpp"

using namespace plait;
using namespace plait::test;

namespace {

Plan call(const std::string& kernel, const Request& request,
          std::map<std::string, std::int64_t> params) {
  Plan plan = empty_plan(request);
  plan.strategy = plan.kernel = kernel;
  plan.params = std::move(params);
  return plan;
}

Plan lines(const std::string& kernel, int ranks, std::uint64_t bytes, std::int64_t blocks = 132) {
  return call(kernel, all_reduce(ranks, bytes),
              {{"blocks", blocks}, {"threads", 512}, {"together", 2}, {"line_bytes", 16}});
}

const Topology& machine() {
  static const Topology topology = switched(8, 395, 395);
  return topology;
}

double us(const Plan& plan, Launch launch = Launch::graph) {
  return sim::predicted_ns(plan, machine(), launch) / 1e3;
}

}  // namespace

TEST_CASE(
    "more bytes, more ranks and fewer blocks take longer, flag packets have twice the bytes") {
  for (const char* kernel : {"one_shot", "two_shot"}) {
    CAPTURE(kernel);
    for (const std::uint64_t bytes : {4096ull, 1ull << 20, 64ull << 20}) {
      CHECK(us(lines(kernel, 2, 2 * bytes)) > us(lines(kernel, 2, bytes)));
      CHECK(us(lines(kernel, 4, bytes)) > us(lines(kernel, 2, bytes)));
      CHECK(us(lines(kernel, 2, bytes, 16)) >= us(lines(kernel, 2, bytes)));
    }
  }
  Plan flagged = lines("one_shot", 2, 64 << 20);
  flagged.params["line_bytes"] = 32;
  CHECK(us(flagged) > 1.8 * us(lines("one_shot", 2, 64 << 20)));
}

TEST_CASE("large messages take bytes over the speed of stores on a link") {
  const double bytes = 1 << 30;
  const Plan tiled = call("tiled", all_reduce(2, 1 << 30), {{"blocks", 100}, {"tile_units", 2048}});
  CHECK(us(tiled) > bytes / 395e3);
  CHECK(us(tiled) < 1.15 * bytes / (0.92 * 395e3));
}

TEST_CASE("schedules of tiled change the price") {
  using Schedule = std::map<std::string, std::int64_t>;
  const auto sums = [](int ranks, const Schedule& schedule) {
    Plan plan = call("tiled", all_reduce(ranks, 1 << 30), {{"blocks", 128}, {"tile_units", 4096}});
    plan.params.insert(schedule.begin(), schedule.end());
    return us(plan);
  };
  constexpr std::int64_t kMiB = 1 << 20;
  for (const int ranks : {4, 8}) {
    CAPTURE(ranks);
    const double plain = sums(ranks, {});
    // Fewer bytes in flight keep ranks more in step, until the bytes no longer fill the links.
    CHECK(sums(ranks, {{"in_flight_bytes", kMiB}}) < sums(ranks, {{"in_flight_bytes", 4 * kMiB}}));
    CHECK(sums(ranks, {{"in_flight_bytes", 4 * kMiB}}) < plain);
    CHECK(sums(ranks, {{"in_flight_bytes", 64 * kMiB}}) == doctest::Approx(plain));
    CHECK(sums(ranks, {{"in_flight_bytes", kMiB / 8}}) > plain);
    // The order of targets changes about a percent.
    const double shifted = sums(ranks, {{"shift", 1}});
    CHECK(shifted < plain);
    CHECK(shifted > 0.985 * plain);
  }
  // Two ranks have a single peer each, and no other sender.
  const double pair = sums(2, {});
  CHECK(sums(2, {{"in_flight_bytes", kMiB}}) == doctest::Approx(pair));
  CHECK(sums(2, {{"shift", 1}}) == doctest::Approx(pair));
}

TEST_CASE("fixed costs of a copy-engine ring are the machine's parameters") {
  const Plan plan =
      call("scatter_ring", all_reduce(8, 1 << 30),
           {{"blocks", 100}, {"tile_units", 4096}, {"piece_bytes", 8 << 20}, {"ring_steps", 100}});
  Topology slow = machine();
  slow.parameters["scatter_ring_step_ns"] = {5500.0, "test"};
  CHECK(sim::predicted_ns(plan, slow) ==
        doctest::Approx(sim::predicted_ns(plan, machine()) + 100e3));
  slow.parameters["scatter_ring_ns"] = {40000.0, "test"};
  CHECK(sim::predicted_ns(plan, slow) ==
        doctest::Approx(sim::predicted_ns(plan, machine()) + 110e3));
}

TEST_CASE("an eager call adds its launch, and one direction takes less than both") {
  CHECK(us(lines("one_shot", 2, 1024), Launch::eager) > us(lines("one_shot", 2, 1024)));
  Request there = all_reduce(2, 1024), both = there;
  there.collective = Collective::copy;
  there.peer = 1;
  both.collective = Collective::send_recv;
  const std::map<std::string, std::int64_t> launch{
      {"blocks", 1}, {"threads", 128}, {"together", 4}, {"line_bytes", 16}};
  CHECK(us(call("direct_ll", there, launch)) < us(call("direct_ll", both, launch)));
}

TEST_CASE("a share through host memory gains up to host memory's speed") {
  const auto tiled = [](std::int64_t permille) {
    return us(call("tiled", all_reduce(4, 1 << 30),
                   {{"blocks", 100},
                    {"tile_units", 4096},
                    {"host_permille", permille},
                    {"chunk_bytes", 2 << 20}}));
  };
  const double alone =
      us(call("tiled", all_reduce(4, 1 << 30), {{"blocks", 100}, {"tile_units", 4096}}));
  CHECK(tiled(180) < alone);
  CHECK(tiled(400) > alone);
}

TEST_CASE("eight GPUs share the speed of host memory") {
  const Plan plan = call(
      "tiled", all_reduce(8, 1 << 30),
      {{"blocks", 100}, {"tile_units", 4096}, {"host_permille", 400}, {"chunk_bytes", 2 << 20}});
  Topology slow = machine(), fast = machine();
  slow.parameters["host_gather_all_gb_per_s"] = {101.0, "test"};
  fast.parameters["host_gather_all_gb_per_s"] = {8 * 38.3, "test"};
  CHECK(sim::predicted_ns(plan, slow) > 1.8 * sim::predicted_ns(plan, machine()));
  CHECK(sim::predicted_ns(plan, fast) < sim::predicted_ns(plan, machine()));
}

TEST_CASE("machines' parameters count") {
  Topology slow = machine();
  const double usual = load_topology("hgx-h200").parameters.at("kernel_graph_ns").value;
  slow.parameters["kernel_graph_ns"] = {usual + 10000.0, "test"};
  const Plan plan = lines("one_shot", 2, 1024);
  CHECK(sim::predicted_ns(plan, slow) ==
        doctest::Approx(sim::predicted_ns(plan, machine()) + 10000.0));
}

TEST_CASE("machines without parameters use the measured machine's") {
  const Topology measured = load_topology("hgx-h200");
  Topology silent = measured;
  std::erase_if(silent.parameters,
                [](const auto& one) { return one.second.source.starts_with("fitted"); });
  REQUIRE(silent.parameters.size() + 25 < measured.parameters.size());
  const std::map<std::string, std::int64_t> launch{
      {"blocks", 100}, {"threads", 256}, {"together", 2}, {"line_bytes", 16}, {"tile_units", 2048}};
  for (const char* kernel : {"one_shot", "two_shot", "direct_ll", "tiled", "messages"})
    for (const int ranks : {2, 4, 8})
      for (const std::uint64_t bytes : {1024ull, 1ull << 20, 64ull << 20}) {
        CAPTURE(kernel);
        const Plan plan = call(kernel, all_reduce(ranks, bytes), launch);
        CHECK(sim::predicted_ns(plan, silent) ==
              doctest::Approx(sim::predicted_ns(plan, measured)));
      }
}

TEST_CASE("a plan that names no launch is simulated op by op") {
  Plan plan = empty_plan(all_reduce(2, 8 * kMega));
  plan.kernel = "one_shot";
  plan.lanes.push_back(
      lane_of(0, LaneKind::copy_engine, "copy", {push(plan, machine(), 0, 1, 8 * kMega)}));
  CHECK(sim::predicted_ns(plan, machine()) ==
        sim::simulate(plan, sim::SimMachine(machine())).total_ns);
}

TEST_CASE("a kernel call's ops are scaled to its time") {
  Plan plan = lines("one_shot", 2, 1 << 20, 256);
  Op there = push(plan, machine(), 0, 1, 1 << 20);
  there.dst.space = Space::inbox;
  plan.lanes.push_back(lane_of(0, LaneKind::kernel, "one_shot", {there}));
  const Timeline timeline = sim::simulate(plan, sim::SimMachine(machine()));
  CHECK(timeline.total_ns == sim::predicted_ns(plan, machine()));
  CHECK(timeline.spans.back().end_ns == doctest::Approx(timeline.total_ns));
  CHECK(timeline.resources.front().bytes == 1 << 20);
  CHECK(timeline.algbw_gb_per_s == doctest::Approx((1 << 20) / timeline.total_ns));
  plan.params["line_bytes"] = 32;
  CHECK(sim::simulate(plan, sim::SimMachine(machine())).resources.front().bytes == 2 << 20);
}

TEST_CASE("a launch that cannot be meant, and ranks without a link, are errors") {
  Plan plan = lines("direct_ll", 2, 1024, 0);
  CHECK_THROWS_WITH_AS(us(plan), doctest::Contains("wanted blocks from 1 on, found 0"), Error);
  Topology apart = machine();
  std::erase_if(apart.links, [](const Link& link) { return link.kind == LinkKind::nvlink; });
  CHECK_THROWS_WITH_AS(sim::predicted_ns(lines("direct_ll", 2, 1024), apart),
                       doctest::Contains("no link"), Error);
}

TEST_CASE("with a link for every pair a rank's links work at the same time") {
  Topology pairs = switched(4, 300, 100), behind_switch = switched(4, 300, 300);
  for (Link& link : pairs.links)
    if (link.kind == LinkKind::nvlink) link.resources.clear();
  const auto us_on = [](const Topology& topology, const Plan& plan) {
    return sim::predicted_ns(plan, topology) / 1e3;
  };
  const Plan direct =
      call("tiled", all_reduce(4, 1 << 30), {{"blocks", 100}, {"tile_units", 2048}});
  // Three links of 100 GB/s equal a port of 300, and stores to a single peer reach more of a link.
  CHECK(us_on(pairs, direct) < 1.05 * us_on(behind_switch, direct));
  CHECK(us_on(pairs, direct) > 0.8 * us_on(behind_switch, direct));
  // The pairs' links behind a port of 100 have a third of that.
  CHECK(us_on(switched(4, 100, 100), direct) > 2.5 * us_on(pairs, direct));

  for (const char* kernel : {"one_shot", "two_shot"}) {
    const Plan by_packets = lines(kernel, 4, 64 << 20);
    CHECK(us_on(pairs, by_packets) < 1.05 * us_on(behind_switch, by_packets));
  }
}

TEST_CASE("the slowest of unequal links bounds a call, and a bus that pairs share") {
  Topology unequal = switched(4, 300, 100);
  for (Link& link : unequal.links)
    if (link.kind == LinkKind::nvlink) link.resources.clear();
  Topology slower = unequal, bus = unequal;
  slower.links.front().gb_per_s = 50;
  bus.resources.push_back({"bus", 100});
  const int last = static_cast<int>(bus.resources.size()) - 1;
  for (Link& link : bus.links)  // four pairs in a single direction, between halves of the GPUs
    if (link.kind == LinkKind::nvlink && link.src < 2 && link.dst >= 2) link.resources = {last};
  const Plan plan = call("tiled", all_reduce(4, 1 << 30), {{"blocks", 100}, {"tile_units", 2048}});
  const double whole = sim::predicted_ns(plan, unequal);
  CHECK(sim::predicted_ns(plan, slower) > 1.8 * whole);
  CHECK(sim::predicted_ns(plan, bus) > 3.5 * whole);
}
