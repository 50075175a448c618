// Calls that fill streams with copies and small kernels: costs computed by hand.
#include <doctest/doctest.h>

#include "machines.hpp"
#include "sim/simulate.hpp"

using namespace plait;
using namespace plait::test;

namespace {

constexpr double kCopyNs = 1000, kStepNs = 5000, kSwitchNs = 300, kIssueNs = 700;

Topology machine() {
  Topology topology = switched(2, 100, 100);
  topology.parameters["engine_copy_ns"] = {kCopyNs, "test"};
  topology.parameters["engine_step_ns"] = {kStepNs, "test"};
  topology.parameters["engine_switch_ns"] = {kSwitchNs, "test"};
  topology.parameters["engine_issue_ns"] = {kIssueNs, "test"};
  topology.parameters["engine_reduce_gb_per_s"] = {300.0, "test"};
  return topology;
}

/// Two ranks push to each other and synchronise; `more` follows.
Plan meeting(const Topology& topology, std::uint64_t bytes, const std::vector<Op>& more = {}) {
  Plan plan = empty_plan(all_reduce(2, bytes));
  plan.enqueued.resize(2);
  for (int rank = 0; rank < 2; ++rank) {
    const int peer = 1 - rank;
    std::vector<Op> ops{push(plan, topology, rank, peer, bytes),
                        flag_op(OpKind::signal, peer, rank, 0, 1),
                        flag_op(OpKind::wait, rank, peer, 0, 1)};
    for (Op op : more) {
      op.dst.rank = rank;
      for (Region& src : op.srcs) src.rank = rank;
      ops.push_back(op);
    }
    plan.enqueued[static_cast<std::size_t>(rank)].assign(ops.size(), rank);
    plan.lanes.push_back(lane_of(rank, LaneKind::copy_engine, "stream", ops));
  }
  return plan;
}

}  // namespace

TEST_CASE("a copy, and one kernel that signals and waits") {
  const Topology topology = machine();
  const double ns = kCopyNs + 1e6 / 100 + kSwitchNs + kStepNs;
  CHECK(sim::predicted_ns(meeting(topology, 1000000), topology) == doctest::Approx(ns));
}

TEST_CASE("a following reduction is another kernel, with its own speed") {
  const Topology topology = machine();
  const double before = sim::predicted_ns(meeting(topology, 1000000), topology);
  const double ns = before + kStepNs + 3e6 / 300;
  CHECK(sim::predicted_ns(meeting(topology, 1000000, {reduce_local(0, 2, 1000000)}), topology) ==
        doctest::Approx(ns));
}

TEST_CASE("an eager call takes at least the host's time") {
  Topology topology = machine();
  const Plan plan = meeting(topology, 1000000);
  const double ns = sim::predicted_ns(plan, topology);
  CHECK(sim::predicted_ns(plan, topology, Launch::eager) == ns);  // two calls of the driver
  topology.parameters["engine_issue_ns"].value = ns;
  CHECK(sim::predicted_ns(plan, topology, Launch::eager) == doctest::Approx(2 * ns));
  CHECK(sim::predicted_ns(plan, topology) == ns);
}

TEST_CASE("events between a rank's streams cost nothing") {
  const Topology topology = machine();
  Plan plan = meeting(topology, 1000000), with = plan;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const int me = static_cast<int>(rank);
    with.lanes[rank].ops.push_back(flag_op(OpKind::signal, me, me, 7, 1));
    with.lanes.push_back(
        lane_of(me, LaneKind::kernel, "other", {flag_op(OpKind::wait, me, me, 7, 1)}));
    with.enqueued[rank].push_back(me);
    with.enqueued[rank].push_back(2 + me);
  }
  CHECK(sim::predicted_ns(with, topology) == sim::predicted_ns(plan, topology));
}
