// Plans of collectives by messages, proved alone and over as many calls as slots take to wrap
// around.
#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "conformance/executors.hpp"
#include "gpu/p2p/message_plan.hpp"
#include "plait/error.hpp"
#include "plait/report.hpp"
#include "plait/timeline.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

constexpr Collective kMoves[] = {
    Collective::all_gather, Collective::all_to_all, Collective::gather, Collective::scatter,
    Collective::broadcast,  Collective::send_recv,  Collective::copy};

bool is_one_way(Collective collective) {
  return collective != Collective::all_gather && collective != Collective::all_to_all &&
         collective != Collective::send_recv;
}

Request request_of(const Topology& topology, Collective collective, int ranks,
                   std::uint64_t count) {
  Request request;
  request.collective = collective;
  request.count = count;
  request.ranks = ranks;
  request.root = ranks - 1;
  request.peer = 0;
  return checked(request, topology);
}

std::vector<Plan> plans_of(const Topology& topology, const Request& request,
                           const MessageLaunchConfig& config) {
  std::vector<Plan> plans;
  for (std::uint32_t call = 0; call <= kMessageSlots; ++call)
    plans.push_back(message_plan(topology, request, config, call));
  return plans;
}

Report report_of(const std::vector<Plan>& plans) {
  std::vector<const Plan*> calls;
  for (const Plan& plan : plans) calls.push_back(&plan);
  return verify_in_a_row(calls);
}

/// Returns true if all findings are about calls in a row: the plan is right alone, and only the
/// next call finds other slots free.
bool is_right_alone(const Plan& plan) {
  const Report report = verify(plan);
  return std::all_of(report.findings.begin(), report.findings.end(), [](const Finding& finding) {
    return finding.sentence.find("in calls in a row") != std::string::npos;
  });
}

}  // namespace

TEST_CASE("messages as plans: proved if slots wrap around within a call") {
  const Topology topology = load_topology("hgx-h200");
  for (const Collective collective : kMoves)
    for (const int ranks : {2, 3, 5})
      for (const std::uint64_t turns : {1u, 3u}) {
        const MessageLaunchConfig config{2, {0, 32}};
        const std::uint64_t count = turns * 2 * kMessageSlots * 32 * 4;
        const Plan plan =
            message_plan(topology, request_of(topology, collective, ranks, count), config);
        CAPTURE(text("{} of {}, {}", name_of(collective), ranks, turns));
        const Report report = verify(plan);
        INFO(print(report).substr(0, 1000));
        CHECK(report.proved());
        CHECK(plan_from_json(to_json(plan)) == plan);
      }
}

TEST_CASE("messages as plans: proved in a row, of any size, by tiles and by LL packets") {
  const Topology topology = load_topology("hgx-h200");
  for (const Collective collective : kMoves)
    for (const int ranks : {2, 4})
      for (const std::uint64_t count : {1u, 5u, 700u, 9001u})
        for (const MessageLaunchConfig& config :
             {MessageLaunchConfig{2, {0, 32}}, MessageLaunchConfig{4, {}}}) {
          const Request request = request_of(topology, collective, ranks, count);
          std::vector<Plan> plans = plans_of(topology, request, config);
          CAPTURE(text("{} of {}, {}", name_of(collective), ranks, count));
          const Report row = report_of(plans);
          INFO(print(row).substr(0, 1000));
          CHECK(row.proved());
          CHECK(is_right_alone(plans.front()));
          // If nothing comes back but reports of what has been taken, the waits for earlier calls
          // alone protect a slot.
          if (!is_one_way(collective)) continue;
          for (Plan& plan : plans)
            for (Lane& lane : plan.lanes)
              std::erase_if(lane.ops,
                            [](const Op& op) { return op.kind == OpKind::wait && op.value == 0; });
          CHECK(!report_of(plans).proved());
        }
}

/// The number of tiles through host channels is known only during a call; any number must be
/// correct.
TEST_CASE("shared messages as plans: proved alone and in a row, whatever host channels take") {
  const Topology topology = load_topology("hgx-h200");
  const MessageLaunchConfig config{2, {0, 32, 1}, kMessageHostChannels};
  constexpr std::uint64_t kTiles = 40;
  for (const Collective collective : kMoves)
    for (const std::uint32_t host_tiles : {0u, 1u, 7u, 30u, 40u}) {
      CAPTURE(text("{}, by host {}", name_of(collective), host_tiles));
      const Request request = request_of(topology, collective, 2, kTiles * 32 * 4 - 3);
      std::vector<Plan> plans;
      for (std::uint32_t call = 0; call <= kMessageSlots; ++call)
        plans.push_back(message_plan(topology, request, config, call, host_tiles));
      const Report row = report_of(plans);
      INFO(print(row).substr(0, 1000));
      CHECK(row.proved());
      CHECK(is_right_alone(plans.front()));
      const auto& ring = plans.front().ring_bytes;
      CHECK(std::count_if(ring.begin(), ring.end(),
                          [](std::uint64_t bytes) { return bytes != 0; }) == 2);
      // Mistakes of a host channel's receiver.
      if (collective != Collective::copy || host_tiles != 7) continue;
      for (const auto& [what, kind] :
           {std::pair("a tile", OpKind::copy), std::pair("a wait for a tile", OpKind::wait),
            std::pair("all words", OpKind::signal)}) {
        CAPTURE(what);
        std::vector<Plan> wrong = plans;
        for (Plan& plan : wrong) {
          std::vector<Op>& ops = plan.lanes.back().ops;
          const auto is_left_out = [kind = kind](const Op& op) { return op.kind == kind; };
          const auto first = std::find_if(ops.begin(), ops.end(), is_left_out);
          REQUIRE(first != ops.end());
          if (kind == OpKind::signal)  // a later signal says the same and more
            std::erase_if(ops, is_left_out);
          else
            ops.erase(first);
        }
        CHECK_FALSE((report_of(wrong).proved() && is_right_alone(wrong.front())));
      }
    }
}

TEST_CASE("messages as plans give the right results, and refuse reductions") {
  const Topology topology = load_topology("hgx-h200");
  const Request request = request_of(topology, Collective::all_to_all, 3, 5000);
  const auto inputs = plait_test::random_inputs(request, 1);
  const auto outputs =
      plait_test::ReferenceExecutor(message_plan(topology, request, {2, {0, 32}})).run(inputs);
  for (std::size_t to = 0; to < 3; ++to)
    for (std::size_t from = 0; from < 3; ++from)
      CHECK(std::equal(outputs[to].begin() + static_cast<long>(from * 20000),
                       outputs[to].begin() + static_cast<long>(from * 20000 + 20000),
                       inputs.bytes[from].begin() + static_cast<long>(to * 20000)));
  CHECK_THROWS_AS(
      message_plan(topology, request_of(topology, Collective::all_reduce, 2, 8), {2, {}}), Error);
}

TEST_CASE("messages as plans: predicted near what was recorded on two GPUs") {
  // bench/results/gpu_messages_h200x2.csv, in graphs.
  struct {
    Collective collective;
    std::uint64_t bytes;
    double us;
  } const recorded[] = {{Collective::copy, 1 << 10, 1.813},
                        {Collective::send_recv, 64 << 10, 3.979},
                        {Collective::copy, 1 << 20, 6.990},
                        {Collective::send_recv, 16 << 20, 61.056},
                        {Collective::copy, 16 << 20, 50.342}};
  const Topology topology = load_topology("hgx-h200");
  const MessageLaunchConfig config{message_channels(2, 0), {}};
  for (const auto& one : recorded) {
    CAPTURE(one.bytes);
    const Request request = request_of(topology, one.collective, 2, one.bytes / 4);
    const Plan plan = message_plan(topology, request, config);
    CHECK(predicted_ns(plan, topology) / 1e3 == doctest::Approx(one.us).epsilon(0.1));
  }
}
