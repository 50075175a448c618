// The classic strategies (ring, doubling, halving, trees, Bruck, three stages) are correct for
// every rank count, root and odd size, out of place and in place, in any order of lanes, with
// bounded scratch.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plait/error.hpp"
#include "planner/strategy.hpp"
#include "unit/planner/classic_run.hpp"
#include "unit/scale.hpp"

namespace {

using classic::Collective;
using classic::Plan;
using classic::Topology;
using plait::Params;
using plait::Strategy;

plait::Request request_of(Collective collective, int ranks, std::uint64_t count, int root,
                          const Topology& topology) {
  plait::Request request;
  request.collective = collective;
  request.ranks = ranks;
  request.count = count;
  request.root = root;
  request.type = plait::DataType::int32;
  return plait::checked(request, topology);
}

std::vector<int> roots(Collective collective, int ranks) {
  const bool rooted = collective == Collective::broadcast || collective == Collective::reduce ||
                      collective == Collective::gather || collective == Collective::scatter;
  return rooted && ranks > 1 ? std::vector<int>{0, ranks / 2, ranks - 1} : std::vector<int>{0};
}

// Runs every collective of the strategy on a machine; returns the number of plans.
int run_all(const Strategy& strategy, const Topology& topology, int ranks,
            const std::vector<Params>& params) {
  int plans = 0;
  for (const Collective collective : strategy.info.collectives)
    for (const std::uint64_t count : {0U, 1U, 5U, 127U, 1009U})
      for (const int root : roots(collective, ranks))
        for (const Params& chosen : params) {
          if (!plait_test::sampled(static_cast<std::uint64_t>(plans++))) continue;
          const plait::Request request = request_of(collective, ranks, count, root, topology);
          const Plan plan = strategy.build(topology, request, chosen);
          const auto seed = static_cast<std::uint32_t>(plans);
          CAPTURE(plait::label(plan));
          CAPTURE(std::string(plait::name_of(collective)));
          CAPTURE(ranks);
          CAPTURE(count);
          CAPTURE(root);
          CHECK(classic::wrong_words(plan, false, seed) == 0);
          CHECK(classic::wrong_words(plan, true, seed) == 0);
        }
  return plans;
}

const std::vector<Params> kChunks{{}, {{"chunks", 3}, {"lanes", 2}}, {{"chunks", 9}, {"lanes", 1}}};
const std::vector<Params> kSegments{
    {}, {{"segments", 3}, {"lanes", 2}}, {{"segments", 9}, {"lanes", 1}}};

}  // namespace

TEST_CASE("ring: right on every rank count") {
  int plans = 0;
  for (const int ranks : {1, 2, 3, 4, 5, 8, 16})
    plans += run_all(plait::ring_strategy(), classic::all_to_all_machine(ranks), ranks, kSegments);
  plans += run_all(plait::ring_strategy(), classic::socket_machine(2, 2), 4, kSegments);
  MESSAGE(plans, " plans");
}

TEST_CASE("fold: right on every even rank count") {
  int plans = 0;
  for (const int ranks : {1, 2, 4, 6, 8, 16})
    plans += run_all(plait::fold_strategy(), classic::all_to_all_machine(ranks), ranks, kChunks);
  plans += run_all(plait::fold_strategy(), classic::socket_machine(2, 2), 4, kChunks);
  MESSAGE(plans, " plans");
}

TEST_CASE("phases: right on every rank count") {
  int plans = 0;
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 16})
    plans += run_all(plait::phases_strategy(), classic::all_to_all_machine(ranks), ranks,
                     {{}, {{"slabs", 3}}, {{"slabs", 9}}});
  plans += run_all(plait::phases_strategy(), classic::socket_machine(2, 2), 4, {{}});
  MESSAGE(plans, " plans");
}

TEST_CASE("ring: neighbours follow the links") {
  const Topology topology = classic::socket_machine(2, 4);
  const plait::Request request = request_of(Collective::all_gather, 8, 1 << 20, 0, topology);
  const Plan plan = plait::ring_strategy().build(topology, request, {});
  int across = 0;
  for (const plait::Path& path : plan.paths) across += path.kind == plait::PathKind::host ? 1 : 0;
  CHECK(plan.paths.size() == 8);
  CHECK(across == 2);
}

TEST_CASE("recursive doubling and Rabenseifner: right on every rank count") {
  for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 16}) {
    const Topology topology = classic::all_to_all_machine(ranks);
    run_all(plait::rabenseifner_strategy(), topology, ranks, kChunks);
    if ((ranks & (ranks - 1)) == 0) {
      run_all(plait::recursive_doubling_strategy(), topology, ranks, kChunks);
      continue;
    }
    const plait::Request request = request_of(Collective::all_reduce, ranks, 1009, 0, topology);
    for (const Params& params : kChunks) {
      const Plan plan = plait::recursive_doubling_strategy().build(topology, request, params);
      CHECK(classic::wrong_words(plan, false, 1) == 0);
      CHECK(classic::wrong_words(plan, true, 2) == 0);
    }
    CHECK_THROWS_AS(plait::recursive_doubling_strategy().build(
                        topology, request_of(Collective::all_gather, ranks, 8, 0, topology), {}),
                    plait::Error);
  }
  run_all(plait::recursive_doubling_strategy(), classic::socket_machine(2, 2), 4, kChunks);
  run_all(plait::rabenseifner_strategy(), classic::socket_machine(2, 2), 4, kChunks);
}

TEST_CASE("tree and Bruck: right on every rank count and root") {
  for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 16}) {
    const Topology topology = classic::all_to_all_machine(ranks);
    run_all(plait::tree_strategy(), topology, ranks, kChunks);
    run_all(plait::bruck_strategy(), topology, ranks, kChunks);
  }
  run_all(plait::tree_strategy(), classic::socket_machine(2, 3), 6, kChunks);
  run_all(plait::bruck_strategy(), classic::socket_machine(2, 3), 6, kChunks);
}

TEST_CASE("hierarchical: right with two and more groups, equal and unequal") {
  const std::vector<Params> params{{},
                                   {{"chunks", 3}, {"lanes", 2}},
                                   {{"chunks", 2}, {"host_permille", 250}},
                                   {{"chunks", 9}, {"lanes", 1}, {"host_permille", 500}}};
  run_all(plait::hierarchical_strategy(), classic::socket_machine(2, 2), 4, params);
  run_all(plait::hierarchical_strategy(), classic::socket_machine(2, 2), 3, params);
  run_all(plait::hierarchical_strategy(), classic::socket_machine(2, 4), 8, params);
  run_all(plait::hierarchical_strategy(), classic::socket_machine(3, 2), 6, params);
  run_all(plait::hierarchical_strategy(), classic::socket_machine(3, 3), 7, params);
}

TEST_CASE("hierarchical: refuses one socket, and sockets of one rank each") {
  const Topology topology = classic::all_to_all_machine(4);
  CHECK_THROWS_AS(plait::hierarchical_strategy().build(
                      topology, request_of(Collective::all_reduce, 4, 8, 0, topology), {}),
                  plait::Error);
  const Topology two = classic::socket_machine(2, 2);
  CHECK_THROWS_AS(plait::hierarchical_strategy().build(
                      two, request_of(Collective::all_reduce, 2, 8, 0, two), {}),
                  plait::Error);
}

TEST_CASE("classic strategies: scratch and host ring stay bounded at 4 GiB") {
  const Topology topology = classic::socket_machine(2, 4);
  for (const Strategy* strategy : {&plait::ring_strategy(), &plait::recursive_doubling_strategy(),
                                   &plait::rabenseifner_strategy(), &plait::hierarchical_strategy(),
                                   &plait::tree_strategy(), &plait::bruck_strategy()})
    for (const Collective collective : strategy->info.collectives) {
      const plait::Request request = request_of(collective, 8, 1ULL << 27, 0, topology);
      const std::vector<Params> sets = strategy->candidates(topology, request);
      CHECK(!sets.empty());
      CHECK(sets.size() <= 4);
      for (const Params& params : sets) {
        const Plan plan = strategy->build(topology, request, params);
        CAPTURE(plait::label(plan));
        CAPTURE(std::string(plait::name_of(collective)));
        CHECK(*std::max_element(plan.scratch_bytes.begin(), plan.scratch_bytes.end()) <= 256ULL
                                                                                             << 20);
        CHECK(*std::max_element(plan.ring_bytes.begin(), plan.ring_bytes.end()) <= 8ULL << 20);
      }
    }
}

TEST_CASE("classic strategies: parameters out of range are refused") {
  const Topology topology = classic::all_to_all_machine(4);
  const plait::Request request = request_of(Collective::all_reduce, 4, 8, 0, topology);
  CHECK_THROWS_AS(plait::ring_strategy().build(topology, request, {{"segments", 0}}), plait::Error);
  CHECK_THROWS_AS(plait::rabenseifner_strategy().build(topology, request, {{"lanes", 99}}),
                  plait::Error);
}
