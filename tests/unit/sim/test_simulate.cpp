// Simulated times that can be computed by hand.
#include <doctest/doctest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "machines.hpp"
#include "plait/error.hpp"
#include "sim/simulate.hpp"
#include "unit/cpu_time.hpp"

using namespace plait;
using namespace plait::test;

namespace {

Plan copies(const Topology& topology, std::vector<std::pair<int, int>> pairs, std::uint64_t bytes) {
  Plan plan = empty_plan(all_reduce(4, bytes));
  int number = 0;
  for (const auto& [src, dst] : pairs)
    plan.lanes.push_back(lane_of(src, LaneKind::copy_engine, "copy" + std::to_string(number++),
                                 {push(plan, topology, src, dst, bytes)}));
  return plan;
}

double total_ns(const Plan& plan, const Topology& topology) {
  return sim::simulate(plan, sim::SimMachine(topology)).total_ns;
}

}  // namespace

TEST_CASE("one copy takes its bytes over the slower of link and port") {
  CHECK(total_ns(copies(switched(4, 100, 80), {{0, 1}}, 8 * kMega), switched(4, 100, 80)) ==
        doctest::Approx(8e6 / 80));
  CHECK(total_ns(copies(switched(4, 50, 80), {{0, 1}}, 8 * kMega), switched(4, 50, 80)) ==
        doctest::Approx(8e6 / 50));
}

TEST_CASE("latency and launch cost come before the bytes") {
  Topology topology = switched(4, 100, 100);
  topology.parameters["copy_launch_ns"].value = 5000;
  for (Link& link : topology.links) link.latency_ns = 700;
  CHECK(total_ns(copies(topology, {{0, 1}}, kMega), topology) ==
        doctest::Approx(5000 + 700 + 1e6 / 100));
}

TEST_CASE("ports are shared max-min fairly") {
  const Topology topology = switched(4, 100, 90);
  // Two flows into GPU 2 get 50 each; 3>1 shares no port and gets 90.
  const Plan plan = copies(topology, {{0, 2}, {1, 2}, {3, 1}}, 9 * kMega);
  const Timeline timeline = sim::simulate(plan, sim::SimMachine(topology));
  CHECK(timeline.spans[0].end_ns == doctest::Approx(9e6 / 50));
  CHECK(timeline.spans[1].end_ns == doctest::Approx(9e6 / 50));
  CHECK(timeline.spans[2].end_ns == doctest::Approx(9e6 / 90));
  CHECK(timeline.bound_by == "gpu2.nvlink.in");
}

TEST_CASE("a flow speeds up when its neighbour ends") {
  const Topology topology = switched(4, 100, 90);
  Plan plan = copies(topology, {{0, 2}, {1, 2}}, 5 * kMega);
  plan.lanes[1].ops[0].dst.bytes = 10 * kMega;
  plan.lanes[1].ops[0].srcs[0].bytes = 10 * kMega;
  // 100 us together at 50, then the remaining 5 MB alone at 90.
  CHECK(total_ns(plan, topology) == doctest::Approx(5e6 / 50 + 5e6 / 90));
}

TEST_CASE("copies to several peers at once slow each other down by port_flow_loss") {
  Topology topology = switched(4, 100, 100);
  const Plan plan = copies(topology, {{0, 1}, {0, 2}}, kMega);
  CHECK(total_ns(plan, topology) == doctest::Approx(2e6 / 100));
  topology.parameters["port_flow_loss"] = {0.25, "test"};
  CHECK(total_ns(plan, topology) == doctest::Approx(2e6 / 80));
}

TEST_CASE("copy engines limit the copies under way") {
  Topology topology = switched(4, 1000, 100);
  const Plan plan = copies(topology, {{0, 1}, {0, 2}, {0, 3}}, kMega);
  topology.parameters["copy_engines"] = {1, "test"};
  CHECK(total_ns(plan, topology) == doctest::Approx(3e6 / 100));
  topology.parameters["copy_engines"] = {3, "test"};
  CHECK(total_ns(plan, topology) == doctest::Approx(1e6 / 100));
}

TEST_CASE("a reduction is bound by its kernel or its memory") {
  Topology topology = switched(4, 100, 100);
  Plan plan = empty_plan(all_reduce(4, kMega));
  plan.lanes.push_back(lane_of(0, LaneKind::kernel, "reduce", {reduce_local(0, 3, kMega)}));
  CHECK(total_ns(plan, topology) == doctest::Approx(4e6 / 600));
  topology.parameters["gpu_reduce_gb_per_s"].value = 5000;
  CHECK(total_ns(plan, topology) == doctest::Approx(4e6 / 1000));
  plan.lanes[0].kind = LaneKind::cpu;
  plan.lanes[0].ops[0].dst.space = Space::ring;
  for (Region& src : plan.lanes[0].ops[0].srcs) src.space = Space::ring;
  CHECK(total_ns(plan, topology) == doctest::Approx(4e6 / 30));
}

TEST_CASE("waits end with their signal, whose cost depends on the kind of lane") {
  Topology topology = switched(4, 100, 100);
  topology.parameters["stream_signal_ns"].value = 6000;
  topology.parameters["signal_ns"].value = 1000;
  Plan plan = empty_plan(all_reduce(2, kMega));
  plan.lanes.push_back(
      lane_of(0, LaneKind::copy_engine, "push",
              {push(plan, topology, 0, 1, kMega), flag_op(OpKind::signal, 1, 0, 0, 1)}));
  plan.lanes.push_back(lane_of(1, LaneKind::kernel, "reduce",
                               {flag_op(OpKind::wait, 1, 0, 0, 1), reduce_local(1, 2, kMega)}));
  CHECK(total_ns(plan, topology) == doctest::Approx(10000 + 6000 + 3e6 / 600));
  plan.lanes[0].kind = LaneKind::kernel;
  CHECK(total_ns(plan, topology) == doctest::Approx(10000 + 1000 + 3e6 / 600));
}

TEST_CASE("a kernel's flag waits for its stores, and goes to all peers at once") {
  Topology topology = switched(4, 100, 100);
  for (Link& link : topology.links) link.latency_ns = 700;
  topology.parameters["signal_ns"].value = 1000;
  Plan plan = empty_plan(all_reduce(4, kMega));
  plan.lanes.push_back(
      lane_of(0, LaneKind::kernel, "push",
              {push(plan, topology, 0, 1, kMega), flag_op(OpKind::signal, 1, 0, 0, 1)}));
  // Latency, bytes, latency of the acknowledgement, and the flag.
  CHECK(total_ns(plan, topology) == doctest::Approx(700 + 10000 + 700 + 1000));
  plan.lanes[0].ops.push_back(flag_op(OpKind::signal, 2, 0, 0, 1));
  plan.lanes[0].ops.push_back(flag_op(OpKind::signal, 3, 0, 0, 1));
  CHECK(total_ns(plan, topology) == doctest::Approx(700 + 10000 + 700 + 1000));
}

TEST_CASE("a kernel's loads from a peer take the latency twice, its stores once") {
  Topology topology = switched(2, 100, 100);
  for (Link& link : topology.links) link.latency_ns = 700;
  Plan plan = empty_plan(all_reduce(2, kMega));
  plan.lanes.push_back(lane_of(0, LaneKind::kernel, "pull", {push(plan, topology, 1, 0, kMega)}));
  CHECK(total_ns(plan, topology) == doctest::Approx(1400 + 10000));
  plan.lanes[0].rank = 1;
  CHECK(total_ns(plan, topology) == doctest::Approx(700 + 10000));
}

TEST_CASE("a kernel's stores keep their speed on a link faster than its ports") {
  for (const double link : {100.0, 300.0}) {
    Topology topology = switched(2, 100, link);
    topology.parameters["sm_push_gb_per_s"] = {50, "test"};
    Plan plan = empty_plan(all_reduce(2, kMega));
    plan.lanes.push_back(lane_of(0, LaneKind::kernel, "push", {push(plan, topology, 0, 1, kMega)}));
    CHECK(total_ns(plan, topology) == doctest::Approx(1e6 / 50));
    topology.resources[0].gb_per_s = 25;  // a port slower than the stores
    CHECK(total_ns(plan, topology) == doctest::Approx(1e6 / 25));
  }
}

TEST_CASE("a kernel's copies inside its GPU have their own speed") {
  Topology topology = switched(2, 100, 100);
  Plan plan = empty_plan(all_reduce(2, kMega));
  Op op = push(plan, topology, 0, 1, kMega);
  op.path = kLocalPath;
  op.dst.rank = 0;
  plan.lanes.push_back(lane_of(0, LaneKind::kernel, "copy", {op}));
  CHECK(total_ns(plan, topology) == doctest::Approx(1e6 / 500));
  topology.parameters["kernel_copy_gb_per_s"] = {250, "test"};
  CHECK(total_ns(plan, topology) == doctest::Approx(1e6 / 250));
  plan.lanes[0].kind = LaneKind::copy_engine;
  CHECK(total_ns(plan, topology) == doctest::Approx(1e6 / 500));
}

TEST_CASE("GPUs that start copies a little apart lose step, and their copies meet at ports") {
  Topology topology = switched(4, 100, 100);
  topology.parameters["copy_launch_ns"].value = 1000;
  const auto speed = [&](double spread_ns) {
    topology.parameters["copy_launch_spread_ns"] = {spread_ns, "test"};
    topology.parameters["port_flow_loss"] = {0.1, "test"};
    Plan plan = empty_plan(all_reduce(4, kMega));
    for (int rank = 0; rank < 4; ++rank) {
      std::vector<Op> ops;
      for (int step = 0; step < 120; ++step)
        ops.push_back(push(plan, topology, rank, (rank + 1 + step % 3) % 4, kMega));
      plan.lanes.push_back(lane_of(rank, LaneKind::copy_engine, "rotation", ops));
    }
    return 120e6 / total_ns(plan, topology);
  };
  CHECK(speed(0.0) == doctest::Approx(1e6 / 11000));
  CHECK(speed(200.0) < 0.9 * speed(0.0));
  CHECK(speed(200.0) > 0.4 * speed(0.0));  // at worst two copies share a port
}

TEST_CASE("a plan that cannot end is refused with the lane that is stuck") {
  const Topology topology = switched(2, 100, 100);
  Plan plan = empty_plan(all_reduce(2, kMega));
  plan.lanes.push_back(lane_of(1, LaneKind::kernel, "sum", {flag_op(OpKind::wait, 1, 0, 0, 1)}));
  CHECK_THROWS_WITH_AS(sim::simulate(plan, sim::SimMachine(topology)),
                       doctest::Contains("rank 1 lane sum op 0"), Error);
}

TEST_CASE("plans that mean nothing on the machine are refused, not run") {
  const Topology topology = switched(2, 100, 100);
  Plan plan = copies(topology, {{0, 1}}, kMega);
  plan.request = all_reduce(2, kMega);
  SUBCASE("path") { plan.lanes[0].ops[0].path = 7; }
  SUBCASE("hop") { plan.lanes[0].ops[0].hop = 3; }
  SUBCASE("link") { plan.paths[0].links[0] = 1000; }
  SUBCASE("another link") { plan.paths[0].links[0] = 2; }
  SUBCASE("place") { plan.lanes[0].ops[0].dst.rank = 9; }
  SUBCASE("rank") { plan.lanes[0].rank = -1; }
  SUBCASE("device") { plan.request.devices[1] = 77; }
  SUBCASE("more ranks than devices") { plan.request.ranks = 5; }
  SUBCASE("fewer ranks than devices") { plan.request.ranks = 1; }
  SUBCASE("root") { plan.request.root = 1 << 20; }
  SUBCASE("root of a library call") {
    plan.calls.push_back({Library::nccl, Collective::broadcast, 1, {0, 1}, 1 << 20, 0});
  }
  SUBCASE("a library call that no rank joins") {
    plan.calls.push_back({Library::nccl, Collective::broadcast, 1, {0, 1}, 0, 0});
  }
  SUBCASE("sources") { plan.lanes[0].ops[0].srcs.clear(); }
  SUBCASE("owner") { plan.lanes[0].ops.push_back(flag_op(OpKind::signal, 2, 0, 0, 1)); }
  SUBCASE("writer") { plan.lanes[0].ops.push_back(flag_op(OpKind::signal, 0, -1, 0, 1)); }
  SUBCASE("word") { plan.lanes[0].ops.push_back(flag_op(OpKind::signal, 0, 1, 1 << 30, 1)); }
  CHECK_THROWS_AS(sim::simulate(plan, sim::SimMachine(topology)), Error);
}

TEST_CASE("a plan whose request names no devices runs on the first") {
  const Topology topology = switched(2, 100, 100);
  Plan plan = copies(topology, {{0, 1}}, kMega);
  plan.request = all_reduce(2, kMega);
  const double bound_ns = sim::simulate(plan, sim::SimMachine(topology)).lower_bound_ns;
  plan.request.devices.clear();
  CHECK(sim::simulate(plan, sim::SimMachine(topology)).lower_bound_ns == bound_ns);
}

TEST_CASE("jobs that run at once share the machine") {
  const Topology topology = switched(4, 100, 100);
  const Plan plan = copies(topology, {{0, 1}}, kMega);
  const Plan other = copies(topology, {{2, 1}}, kMega);
  const sim::SimMachine machine(topology);
  const auto together = sim::simulate({{&plan, 0.0}, {&other, 0.0}}, machine);
  CHECK(together[0].total_ns == doctest::Approx(20000));
  CHECK(together[1].total_ns == doctest::Approx(20000));
  const auto apart = sim::simulate({{&plan, 0.0}, {&other, 50000.0}}, machine);
  CHECK(apart[0].total_ns == doctest::Approx(10000));
  CHECK(apart[1].total_ns == doctest::Approx(10000));
  CHECK(apart[1].spans[0].start_ns == doctest::Approx(50000));
}

TEST_CASE("one host thread for all ranks enqueues later than one each") {
  Topology topology = switched(4, 1000, 1000);
  topology.parameters["issue_ns"] = {2000, "test"};
  const Plan plan = copies(topology, {{0, 1}, {1, 2}, {2, 3}, {3, 0}}, kMega);
  CHECK(total_ns(plan, topology) == doctest::Approx(2000 + 1000));
  const auto by_one = sim::simulate({{&plan, 0.0}}, sim::SimMachine(topology), {true});
  CHECK(by_one[0].spans[3].start_ns == doctest::Approx(8000));
}

TEST_CASE("the same plan gives the same timeline, byte for byte") {
  const Topology topology = switched(4, 100, 90);
  const Plan plan = copies(topology, {{0, 2}, {1, 2}, {3, 1}, {2, 0}, {0, 1}}, 9 * kMega + 4);
  const sim::SimMachine machine(topology);
  CHECK(to_json(sim::simulate(plan, machine)) == to_json(sim::simulate(plan, machine)));
}

TEST_CASE("lower bound: cuts and receives") {
  const Topology topology = switched(4, 100, 100);
  Request request = all_reduce(4, 400 * kMega);
  // Ranks receive 4 x (100 + PCIe), and the host's DRAM serves 100 in each direction.
  CHECK(lower_bound_ns(request, topology) == doctest::Approx(2.0 * 3 * 400e6 / 500));
  request.collective = Collective::broadcast;
  CHECK(lower_bound_ns(request, topology) == doctest::Approx(400e6 / 200));
  request.ranks = 1;
  request.devices = {0};
  CHECK(lower_bound_ns(request, topology) == 0.0);
}

TEST_CASE("text, JSON and trace carry the timeline") {
  const Topology topology = switched(4, 100, 90);
  Plan plan = copies(topology, {{0, 2}, {1, 2}}, 9 * kMega);
  plan.lanes[0].ops.push_back(flag_op(OpKind::signal, 2, 0, 0, 1));
  plan.lanes.push_back(lane_of(2, LaneKind::kernel, "sum", {flag_op(OpKind::wait, 2, 0, 0, 1)}));
  const Timeline timeline = sim::simulate(plan, sim::SimMachine(topology));
  CHECK(print(timeline).find("bound by   gpu2.nvlink.in") != std::string::npos);
  const auto json = nlohmann::json::parse(to_json(timeline));
  CHECK(json["total_ns"] == timeline.total_ns);
  CHECK(json["spans"].size() == 4);
  const auto trace = nlohmann::json::parse(to_trace_json(timeline, plan));
  int slices = 0, arrows = 0;
  std::vector<double> port;  // rate into GPU 2, at each change
  for (const auto& event : trace["traceEvents"]) {
    slices += event["ph"] == "X";
    arrows += event["ph"] == "s" || event["ph"] == "f";
    if (event["ph"] == "C" && event["name"] == "GB/s gpu2.nvlink.in")
      port.push_back(event["args"]["gb_per_s"]);
  }
  CHECK(slices == 4);
  CHECK(arrows == 2);
  REQUIRE(port.size() == 2);
  CHECK(port[0] == doctest::Approx(100));
  CHECK(port[1] == 0.0);
  CHECK_THROWS_AS(to_trace_json(timeline, empty_plan(plan.request)), Error);
  Plan without_paths = plan;
  without_paths.paths.clear();
  CHECK_THROWS_AS(to_trace_json(timeline, without_paths), Error);
}

TEST_CASE("a plan of many ops is simulated in time linear in ops, and fast") {
  const Topology topology = switched(8, 400, 390);
  const auto seconds = [&](int pieces) {
    Plan plan = empty_plan(all_reduce(8, kMega));
    for (int rank = 0; rank < 8; ++rank) {
      std::vector<Op> ops;
      for (int piece = 0; piece < pieces; ++piece)
        for (int k = 1; k < 8; ++k)
          ops.push_back(push(plan, topology, rank, (rank + k) % 8, kMega));
      plan.lanes.push_back(lane_of(rank, LaneKind::copy_engine, "push", ops));
    }
    const double start_s = plait_test::cpu_s();
    sim::simulate(plan, sim::SimMachine(topology));
    return plait_test::cpu_s() - start_s;
  };
  seconds(4);
  const double few = seconds(20), many = seconds(200);  // 1120 and 11200 ops
  MESSAGE("1120 ops: " << few * 1e3 << " ms, 11200 ops: " << many * 1e3 << " ms");
  CHECK(few < 0.05);  // 10 ms on an idle machine
  CHECK(many < 40 * few + 0.05);
}

TEST_CASE("a priced call begins with its last lane, takes its price and keeps loads and rates") {
  const Topology topology = switched(2, 100, 100);
  Plan plan = empty_plan(all_reduce(2, 3 * kMega));
  const auto event = [](OpKind kind, int rank, int index) {
    return flag_op(kind, rank, rank, index, 1);
  };
  // Rank 1 sums 1 MB first. Then both ranks send 3 MB in the call, and rank 0 sends 1 MB behind the
  // call.
  for (const int rank : {0, 1}) {
    std::vector<Op> stream{event(OpKind::signal, rank, 0), event(OpKind::wait, rank, 1)};
    if (rank == 1) stream.insert(stream.begin(), reduce_local(1, 1, kMega));
    if (rank == 0) stream.push_back(push(plan, topology, 0, 1, kMega));
    plan.lanes.push_back(lane_of(rank, LaneKind::kernel, "stream", stream));
    plan.lanes.push_back(
        lane_of(rank, LaneKind::kernel, "inner",
                {event(OpKind::wait, rank, 0), push(plan, topology, rank, 1 - rank, kMega),
                 push(plan, topology, rank, 1 - rank, 2 * kMega), event(OpKind::signal, rank, 1)}));
  }
  const sim::SimMachine machine(topology);
  const Timeline by_lanes = sim::simulate(plan, machine);
  const double first_ns = by_lanes.spans[7].end_ns;  // of rank 1's sum
  CHECK(first_ns > 0.0);
  CHECK(by_lanes.total_ns == doctest::Approx(first_ns + 30000).epsilon(0.2));
  for (const double ns : {12000.0, 90000.0}) {
    const Timeline timeline = sim::simulate(plan, machine, {{{{1, 0, 3}, {3, 0, 3}}, ns}});
    CHECK(timeline.total_ns == doctest::Approx(first_ns + ns + 10000));
    for (const std::size_t wait : {3u, 10u}) {  // first span of each inner lane
      CHECK(timeline.spans[wait].end_ns == doctest::Approx(first_ns));
      CHECK(timeline.spans[wait + 1].start_ns == doctest::Approx(first_ns));
      CHECK(timeline.spans[wait + 2].start_ns == doctest::Approx(first_ns + ns / 3));
      CHECK(timeline.spans[wait + 2].end_ns == doctest::Approx(first_ns + ns));
      CHECK(timeline.spans[wait + 3].start_ns >= first_ns + ns);
    }
    for (const ResourceLoad& load : timeline.resources) {
      double bytes = 0.0;
      for (std::size_t i = 0; i + 1 < load.rates.size(); ++i)
        bytes += load.rates[i].gb_per_s * (load.rates[i + 1].at_ns - load.rates[i].at_ns);
      CHECK(bytes == doctest::Approx(load.bytes));
      if (load.name == "gpu0.nvlink.out") CHECK(load.bytes == 4 * kMega);
    }
  }
}
