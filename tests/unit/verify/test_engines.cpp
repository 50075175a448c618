// Engines' plans: flags that jump and count over calls, slots reused by the next call, a single
// hardware queue, a single branch of a graph. Each test breaks a single thing of a correct plan.
#include "unit/verify/example.hpp"

namespace plait {
using example::expect;
using example::op;
using example::rules;

namespace {

constexpr int kArrived = 0, kTaken = 1, kEvents = 100;
constexpr int kFork = kEvents, kPushed = kEvents + 1;

Op flagged(OpKind kind, Flag flag, std::uint32_t value) {
  Op made;
  made.kind = kind;
  made.flag = flag;
  made.value = value;
  return made;
}
Op raise(int owner, int writer, int index, std::uint32_t value = 1) {
  return flagged(OpKind::signal, {owner, writer, index}, value);
}
Op await(int owner, int writer, int index, std::uint32_t value = 1) {
  return flagged(OpKind::wait, {owner, writer, index}, value);
}

/// Two ranks gather: each pushes into the peer's slot after the previous call's data was taken from
/// the slot. Lane 2 r is the caller's stream of rank r, lane 2 r + 1 the rank's pushes.
Plan gather() {
  Plan plan = example::direct(Collective::all_gather, 2, 64);
  const std::vector<Lane> by_lanes = plan.lanes;
  plan.lanes.clear();
  plan.scratch_bytes = {256, 256};
  for (int rank = 0; rank < 2; ++rank) {
    const int peer = 1 - rank;
    const auto copy = [&](Region dst, Region src) {
      Op made;
      made.dst = dst;
      made.srcs = {src};
      for (std::size_t i = 0; i < plan.paths.size() && dst.rank != src.rank; ++i)
        if (plan.paths[i].devices == std::vector<int>{src.rank, dst.rank})
          made.path = static_cast<int>(i);
      return made;
    };
    const auto place = [&](int of) {
      return Region{Space::output, rank, static_cast<std::uint64_t>(of) * 256, 256};
    };
    plan.lanes.push_back(
        {rank,
         LaneKind::kernel,
         "home",
         {raise(rank, rank, kFork), await(rank, rank, kPushed), await(rank, peer, kArrived),
          copy(place(peer), {Space::scratch, rank, 0, 256}),
          copy(place(rank), {Space::input, rank, 0, 256}), raise(peer, rank, kTaken)}});
    plan.lanes.push_back({rank,
                          LaneKind::copy_engine,
                          "push",
                          {await(rank, rank, kFork), await(rank, peer, kTaken, 0),
                           copy({Space::scratch, peer, 0, 256}, {Space::input, rank, 0, 256}),
                           raise(peer, rank, kArrived), raise(rank, rank, kPushed)}});
    const int home = 2 * rank, push = home + 1;
    plan.enqueued.push_back({home, push, push, push, push, push, home, home, home, home, home});
  }
  plan.counts = {{kArrived, 1}, {kTaken, 1}};
  return plan;
}

/// Returns the plan with flags and slots of its own, for another plan on the same arena.
Plan with_words_of_its_own(Plan plan) {
  for (Lane& lane : plan.lanes)
    for (Op& each : lane.ops)
      if (each.flag.index < kEvents) each.flag.index += 10;
  plan.counts = {{kArrived + 10, 1}, {kTaken + 10, 1}};
  return plan;
}

}  // namespace

TEST_CASE("an engine's plan is proved over calls in a row, without a barrier") {
  const Plan plan = gather();
  const Report report = verify(plan);
  INFO(print(report));
  CHECK(report.proved());
  CHECK(verify_in_a_row({&plan, &plan, &plan}).proved());
  CHECK(verify_in_a_graph({&plan, &plan}).proved());
  CHECK(verify_in_a_row({}).proved());
  Plan by_lanes = plan;  // the same lanes, without Plan::counts
  by_lanes.counts.clear();
  CHECK(rules(verify(by_lanes)) == std::vector<std::string>{"flag"});
}

TEST_CASE("row: a slot reused before it is empty") {
  Plan plan = gather();
  plan.lanes[1].ops.erase(plan.lanes[1].ops.begin() + 1);
  plan.enqueued[0].erase(plan.enqueued[0].begin() + 1);
  expect(plan, "hazard", 1, "(in calls in a row: example, then example)");
  plan = gather();
  op(plan, 1, OpKind::wait, 1).before = 1;  // satisfied by the call before the last
  expect(plan, "hazard", 1, "r0.2:push#2, which writes it");
}

TEST_CASE("row: another engine's call on the same slots") {
  const Plan plan = gather(), other = with_words_of_its_own(plan);
  CHECK(verify(other).proved());
  Report report = verify_in_a_row({&plan, &other});  // no wait is for the second call's flags
  INFO(print(report));
  CHECK(rules(report) == std::vector<std::string>{"hazard"});
  CHECK(report.plan == "example, then example");
  Plan apart = other;
  for (Lane& lane : apart.lanes)
    for (Op& each : lane.ops) {
      if (each.dst.space == Space::scratch) each.dst.offset += 256;
      for (Region& src : each.srcs)
        if (src.space == Space::scratch) src.offset += 256;
    }
  apart.scratch_bytes = {512, 512};
  CHECK(verify_in_a_row({&plan, &apart}).proved());
  const Plan wider = example::direct(Collective::all_gather, 3, 64);
  report = verify_in_a_row({&plan, &wider});
  CHECK(rules(report) == std::vector<std::string>{"plan"});
}

TEST_CASE("flag: an engine's flags jump, and count on by Plan::counts") {
  Plan plan = gather();
  for (Lane& lane : plan.lanes)
    for (Op& each : lane.ops)
      if (each.flag.index < kEvents && each.kind == OpKind::signal) each.value = 3;
  plan.counts = {{kArrived, 3}, {kTaken, 3}};
  CHECK(verify(plan).proved());
  plan.counts[kArrived] = 2;  // this call would satisfy the next call's wait for 3
  expect(plan, "flag", 2, "raised to 2 at most, the count of a call, found 3");
  plan = gather();
  plan.counts[kArrived] = 0;
  expect(plan, "flag", 2, "raised to 0 at most, the count of a call, found 1");
  plan = gather();
  op(plan, 0, OpKind::signal, 1).value = 2;  // the third call would not wait for the second
  expect(plan, "flag", 1, "flag 1 of rank 1 by rank 0 raised to 1 at most, the count of a call");
  const Report row = verify_in_a_row({&plan, &plan, &plan});
  CHECK(rules(row) == std::vector<std::string>{"hazard"});
  plan = gather();
  op(plan, 0, OpKind::wait).before = 1;
  expect(plan, "flag", 1, "to look back at earlier calls, found 1 before 1");
  plan = gather();
  op(plan, 0, OpKind::signal).value = 0;
  expect(plan, "flag", 1, "wanted a value of at least 1");
}

TEST_CASE("flag: lanes that raise an engine's word in turn") {
  Plan plan = gather();
  plan.lanes[1].ops.push_back(raise(1, 0, kTaken, 2));  // after the caller's stream has raised it?
  plan.enqueued[0].push_back(1);
  plan.counts[kTaken] = 2;
  for (const int lane : {2, 3}) {  // rank 1 as well, so that counts are equal
    for (Op& each : plan.lanes[std::size_t(lane)].ops)
      if (each.kind == OpKind::signal && each.flag.index == kTaken) each.value = 2;
  }
  Report report = verify(plan);
  INFO(print(report));
  CHECK(report.findings.front().rule == "flag");
  CHECK(print(report).find("to be raised to 1 before 2, found no order between") !=
        std::string::npos);
  // In turn: the caller's stream records an event, and waits for an event in return.
  std::vector<Op>& home = plan.lanes[0].ops;
  home.push_back(raise(0, 0, kEvents + 2));
  home.push_back(await(0, 0, kEvents + 3));
  std::vector<Op>& push = plan.lanes[1].ops;
  push.insert(push.end() - 1, await(0, 0, kEvents + 2));
  push.push_back(raise(0, 0, kEvents + 3));
  plan.enqueued[0] = {0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0};
  report = verify(plan);
  INFO(print(report));
  CHECK(report.proved());
}

TEST_CASE("deadlock: in one hardware queue, but not with a queue for each stream") {
  Plan plan = gather();
  plan.enqueued[0] = {0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0};
  expect(plan, "deadlock", 2, "r0.home#1 blocks the queue at 0 (in one hardware queue)");
  plan.enqueued.clear();
  CHECK(verify(plan).proved());
}

TEST_CASE("deadlock: a wait for the call before the last, whose flag no call raises") {
  Plan plan = gather();
  Op& look = op(plan, 1, OpKind::wait, 1);
  look.flag.index = kTaken + 1;
  look.before = 1;
  plan.lanes[1].ops.insert(plan.lanes[1].ops.begin() + 1, await(0, 1, kTaken, 0));
  plan.enqueued[0].insert(plan.enqueued[0].begin() + 1, 1);
  CHECK(verify(plan).proved());  // no call counts the flag
  plan.counts[kTaken + 1] = 1;
  expect(plan, "deadlock", 1, "wanted a signal of flag 2 of rank 0 by rank 1 in each call");
  CHECK(verify_in_a_row({&plan, &plan}).proved());  // the third call waits for ever
  CHECK(rules(verify_in_a_row({&plan, &plan, &plan})) == std::vector<std::string>{"deadlock"});
}

TEST_CASE("deadlock: in a graph that lays streams in one branch") {
  Plan plan = gather();
  for (const int home : {0, 2})  // waits for the peer, then for the rank's own push
    std::swap(plan.lanes[std::size_t(home)].ops[1], plan.lanes[std::size_t(home)].ops[2]);
  CHECK(rules(verify(plan)) == std::vector<std::string>{});  // correct in enqueued order
  const Report report = verify_in_a_graph({&plan, &plan});
  INFO(print(report));
  CHECK(rules(report) == std::vector<std::string>{"deadlock"});
  CHECK(print(report).find("which may be enqueued behind it") != std::string::npos);
}

TEST_CASE("stream: lanes that the caller's stream does not fork or join") {
  Plan plan = gather();
  plan.lanes[1].ops.erase(plan.lanes[1].ops.begin());
  plan.enqueued[0].erase(plan.enqueued[0].begin() + 1);
  expect(plan, "stream", 1, "wanted r0.push#0 to begin after the caller's stream");
  plan = gather();
  plan.lanes[0].ops.erase(plan.lanes[0].ops.begin() + 1);
  plan.enqueued[0].pop_back();
  expect(plan, "stream", 1, "to end the call after r0.push#4");
}

TEST_CASE("lane: an order of ops that is not the plan's") {
  Plan plan = gather();
  plan.enqueued[0].pop_back();
  expect(plan, "lane", 1, "wanted all 6 ops of home enqueued, found 5");
  plan = gather();
  plan.enqueued[0][0] = 2;
  expect(plan, "lane", 1, "wanted rank 0 to enqueue on its lanes, found lane 2");
  plan = gather();
  plan.enqueued[0][0] = 99;
  expect(plan, "lane", 1, "found lane 99");
  plan = gather();
  plan.enqueued.resize(3);
  expect(plan, "lane", 1, "for each of 2 ranks, found 3");
}

TEST_CASE("an engine leaves out a copy of bytes onto themselves") {
  Plan plan = gather();
  std::vector<Op>& home = plan.lanes[0].ops;
  std::rotate(home.begin() + 1, home.begin() + 4,
              home.begin() + 5);  // the own copy, alongside the push
  CHECK(verify(plan).proved());   // in place no op writes the push's source
}

}  // namespace plait
