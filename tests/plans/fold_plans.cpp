// Tests the strategy fold on machines with slow links between two halves: fold is the fastest plan
// in rank order, and carries the message over the cut once in each direction. Also tests that rings
// of reductions with the same result in any order count as rank order.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "base/text.hpp"
#include "plait/report.hpp"
#include "plait/timeline.hpp"
#include "planner/cost.hpp"
#include "planner/strategy.hpp"

namespace {

using namespace plait;

/// Two sockets of `per_socket` GPUs each: PCIe within a socket, the bus between the host memories.
Topology pcie_sockets(int per_socket) {
  Topology topology;
  topology.name = "two PCIe sockets";
  const int gpus = 2 * per_socket;
  for (int i = 0; i < gpus + 2; ++i) {
    Device device;
    device.kind = i < gpus ? DeviceKind::gpu : DeviceKind::host;
    device.index = i < gpus ? i : i - gpus;
    device.numa = i < gpus ? i / per_socket : i - gpus;
    topology.devices.push_back(device);
  }
  for (int i = 0; i < 2 * gpus; ++i)  // a GPU's port, out and in
    topology.resources.push_back({text("gpu{}{}", i / 2, i % 2 == 0 ? ".out" : ".in"), 25.0});
  const auto add = [&](LinkKind kind, int a, int b, double gb_per_s) {
    std::vector<int> ports;
    if (a < gpus) ports.push_back(2 * a);
    if (b < gpus) ports.push_back(2 * b + 1);
    topology.links.push_back({kind, a, b, 1, gb_per_s, 1500.0, ports});
  };
  for (int a = 0; a < gpus; ++a) {
    add(LinkKind::pcie, a, gpus + a / per_socket, 25.0);
    add(LinkKind::pcie, gpus + a / per_socket, a, 25.0);
    for (int b = 0; b < gpus; ++b)
      if (a != b && a / per_socket == b / per_socket) add(LinkKind::pcie, a, b, 25.0);
  }
  add(LinkKind::bus, gpus, gpus + 1, 30.0);
  add(LinkKind::bus, gpus + 1, gpus, 30.0);
  return topology;
}

Request all_reduce(const Topology& topology, int ranks, std::uint64_t bytes) {
  Request request;
  request.ranks = ranks;
  request.count = bytes / 4;
  return checked(request, topology);
}

/// Returns the strategy with the fastest simulated plan in rank order; the closed form must rank
/// this plan first, too.
std::string fastest(const Topology& topology, const Request& request) {
  std::string best, first;
  double least = 0.0;
  for (const Plan& plan : propose(topology, request)) {
    if (plan.sum_order != SumOrder::rank_order) continue;
    if (first.empty()) first = plan.strategy;
    const double ns = simulate(plan, topology).total_ns;
    if (!best.empty() && ns >= least) continue;
    best = plan.strategy;
    least = ns;
  }
  return best == first ? best : text("{}, not {}", best, first);
}

}  // namespace

TEST_CASE("fold is the fastest plan in rank order if the cut between halves is slow") {
  for (const std::uint64_t mib : {64, 256}) {
    const auto of = [&](const Topology& topology, int ranks) {
      return fastest(topology, all_reduce(topology, ranks, mib << 20));
    };
    CHECK(of(load_topology("mist"), 4) == "fold");
    CHECK(of(load_topology("dgx1v"), 8) == "fold");
    CHECK(of(pcie_sockets(4), 8) == "fold");
    CHECK(of(pcie_sockets(2), 4) == "fold");
    CHECK(of(load_topology("hgx-h200"), 4) != "fold");  // all links are alike
  }
}

TEST_CASE("fold sends the message over the cut once each way, and as many bytes in all as direct") {
  const Topology topology = load_topology("hgx-h200");
  for (const int ranks : {4, 6, 8}) {
    const Request request = all_reduce(topology, ranks, 64 << 20);
    const Plan plan = propose_one(topology, request, "fold");
    std::uint64_t over = 0, all = 0;
    for (const Lane& lane : plan.lanes)
      for (const Op& op : lane.ops) {
        if (op.path == kLocalPath || op.kind != OpKind::copy) continue;
        all += op.dst.bytes;
        if (lane.rank < ranks / 2 && op.dst.rank >= ranks / 2) over += op.dst.bytes;
      }
    const std::uint64_t bytes = message_bytes(request);
    CHECK(over == bytes);
    CHECK(all == 2 * static_cast<std::uint64_t>(ranks - 1) * bytes);
  }
}

TEST_CASE("fold refuses types whose sums are wider") {
  Request request;
  request.ranks = 4;
  request.count = 1000;
  request.type = DataType::bf16;
  CHECK_THROWS_WITH(propose_one(load_topology("hgx-h200"), request, "fold"),
                    doctest::Contains("wider than the type"));
}

TEST_CASE("rings count as rank order only if every order of the reduction has the same result") {
  const Topology topology = load_topology("hgx-h200");
  struct FoldRow {
    DataType type;
    ReduceOp op;
    bool has_no_order;
  };
  for (const FoldRow& row : {FoldRow{DataType::int32, ReduceOp::sum, true},
                             {DataType::int8, ReduceOp::avg, true},
                             {DataType::uint64, ReduceOp::prod, true},
                             {DataType::uint8, ReduceOp::bit_xor, true},
                             {DataType::fp32, ReduceOp::min, true},
                             {DataType::bf16, ReduceOp::max, true},
                             {DataType::fp32, ReduceOp::sum, false},
                             {DataType::bf16, ReduceOp::avg, false},
                             {DataType::fp64, ReduceOp::prod, false},
                             {DataType::fp32, ReduceOp::premul_sum, false}})
    for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter}) {
      Request request;
      request.collective = collective;
      request.ranks = 5;
      request.count = 1009;
      request.type = row.type;
      request.op = row.op;
      Plan plan = propose_one(topology, request, "ring");
      CHECK((plan.sum_order == SumOrder::rank_order) == row.has_no_order);
      plan.sum_order = SumOrder::rank_order;
      CHECK(verify(plan).proved() == row.has_no_order);
    }
}

namespace {

/// Makes a mistake at an op; returns false if the op cannot hold the mistake.
bool spoil(const std::string& mistake, std::vector<Op>& ops, std::size_t k) {
  Op& op = ops[k];
  if (mistake == (op.kind == OpKind::wait ? "no wait" : "no signal")) {
    if (op.kind != OpKind::wait && op.kind != OpKind::signal) return false;
    ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(k));
    return true;
  }
  if (mistake == "signal before data" && op.kind == OpKind::signal && k > 0 &&
      (ops[k - 1].kind == OpKind::copy || ops[k - 1].kind == OpKind::reduce)) {
    std::swap(ops[k], ops[k - 1]);
    return true;
  }
  const bool moves = op.kind == OpKind::copy || op.kind == OpKind::reduce;
  if (mistake == "another's part" && moves && op.srcs[0].space == Space::input) {
    op.srcs[0].offset = op.srcs[0].offset == 0 ? op.srcs[0].bytes : 0;
    return true;
  }
  if (mistake == "other order" && op.kind == OpKind::reduce) {
    std::swap(op.srcs[0], op.srcs[1]);
    return true;
  }
  if (mistake == "a source left out" && op.kind == OpKind::reduce) {
    op.srcs.pop_back();
    return true;
  }
  return false;
}

struct ScheduleMistake {
  const char* what;
  const char* strategy;
};
const ScheduleMistake kMistakes[]{
#define PLAIT_LINE_MUTANT(...)
#define PLAIT_TILE_MUTANT(...)
#define PLAIT_SCHEDULE_MUTANT(mistake, strategy) {mistake, #strategy},
#include "plans/plan_mutants.def"
#undef PLAIT_LINE_MUTANT
#undef PLAIT_TILE_MUTANT
#undef PLAIT_SCHEDULE_MUTANT
};

}  // namespace

TEST_CASE("verify finds mistakes in folds, phases and rings at every place") {
  // In phases a rank also waits for the partner only to keep pace. This wait protects no data, so
  // verify finds a missing wait in the work lane alone.
  const auto is_harmful = [](const ScheduleMistake& mistake, const std::string& lane) {
    const std::string what = mistake.what;
    const bool is_pacing = std::string(mistake.strategy) == "phases" && what == "no wait";
    return !is_pacing || lane.ends_with(".work");
  };
  for (const ScheduleMistake& mistake : kMistakes) {
    const Topology topology = load_topology("hgx-h200");
    Request request = all_reduce(topology, 4, 9000);
    if (std::string(mistake.strategy) == "ring") request.type = DataType::int32;
    const std::string cut = std::string(mistake.strategy) == "phases" ? "slabs" : "chunks";
    const Plan right =
        propose_one(topology, request, mistake.strategy,
                    {{std::string(mistake.strategy) == "ring" ? "segments" : cut, 5}});
    REQUIRE(verify(right).proved());
    int made = 0;
    for (std::size_t lane = 0; lane < right.lanes.size(); ++lane)
      for (std::size_t k = 0; k < right.lanes[lane].ops.size(); ++k) {
        Plan plan = right;
        if (!is_harmful(mistake, right.lanes[lane].name) ||
            !spoil(mistake.what, plan.lanes[lane].ops, k))
          continue;
        ++made;
        CAPTURE(text("{} in {}, lane {} of rank {}, op {}", mistake.what, mistake.strategy,
                     right.lanes[lane].name, right.lanes[lane].rank, k));
        CHECK(!verify(plan).proved());
      }
    CHECK(made > 0);
  }
}
