// Calls by copy engines on engines emulated in host memory: calls of every kind in a row, with
// streams in any order, and with a single hardware queue per rank. Outputs match the reference, no
// rank stands still, and the steps of a call do not mix with the steps of the next call.
#include <doctest/doctest.h>

#include <algorithm>

#include "conformance/engine_calls.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "unit/scale.hpp"

using namespace plait_test;
using namespace plait_test::engine_calls;

namespace {

/// Runs random calls in a row, without waits between, and checks the outputs. Returns the number of
/// calls by `engine`.
int check_calls(const Topology& topology, Group group, unsigned seed, QueueOrder order,
                const Engine* engine = nullptr) {
  const int ranks = group.ranks;
  FakeEngines engines;
  group.overlap_compute = seed % 2 == 0;            // engines also copy within a GPU
  if (seed % 5 == 4) group.sizes[kTileMemory] = 0;  // nothing to borrow
  Ranks all(engines, group);
  const bool with_shares = order != QueueOrder::one_branch && !group.through_host;
  std::vector<CopyCall> calls = calls_of(topology, group, seed, with_shares);
  for (int rank = 0; rank < ranks; ++rank)
    for (CopyCall& call : calls) all.enqueue(call, rank);
  engines.run(order, seed);
  CAPTURE(ranks);
  CAPTURE(seed);
  CAPTURE(static_cast<int>(order));
  CHECK(engines.faults == std::vector<std::string>{});
  for (const CopyCall& call : calls) {
    CAPTURE(call.label);
    for (std::size_t rank = 0; rank < call.outputs.size(); ++rank) {
      CAPTURE(rank);
      CHECK(call.outputs[rank] == call.expected[rank]);
    }
  }
  return static_cast<int>(std::count_if(
      calls.begin(), calls.end(), [&](const CopyCall& call) { return call.engine == engine; }));
}

/// Returns the ranks that push into each rank's memory in a call, in order.
std::vector<std::vector<int>> pushers(const Topology& topology, Collective what, int ranks,
                                      unsigned seed) {
  Request request;
  request.collective = what;
  request.ranks = ranks;
  request.count = what == Collective::all_gather ? 400000 : 40000;
  FakeEngines engines;
  Ranks all(engines, tiny_group(ranks));
  request = checked(request, topology);
  CopyCall call = call_of(topology, *engine_named("rotation", request), request, {}, 2);
  for (int rank = 0; rank < ranks; ++rank) all.enqueue(call, rank);
  engines.run_by_chance(seed);
  CHECK(engines.faults == std::vector<std::string>{});
  std::vector<std::vector<int>> pushed(static_cast<std::size_t>(ranks));
  for (const FakeEngines::Copy& copy : engines.copies) {
    const int to = all.owner_of(copy.dst);
    if (to >= 0 && to != copy.rank) pushed[static_cast<std::size_t>(to)].push_back(copy.rank);
  }
  return pushed;
}

}  // namespace

/// The call before, the call before that, and so on.
TEST_CASE("a rank pushes to another one after the rank before has signalled that it has finished") {
  const Topology topology = load_topology("hgx-h200");
  for (const int ranks : {3, 4})
    for (const Collective what :
         {Collective::all_reduce, Collective::reduce_scatter, Collective::all_to_all})
      for (int seed = 1; seed <= rounds(20); ++seed) {
        CAPTURE(text("{} of {} ranks, seed {}", name_of(what), ranks, seed));
        const auto pushed = pushers(topology, what, ranks, static_cast<unsigned>(seed));
        for (int to = 0; to < ranks; ++to) {
          const std::vector<int>& by = pushed[static_cast<std::size_t>(to)];
          std::vector<int> in_turn;
          for (std::size_t i = 0; i < by.size(); ++i) {
            const int step = 1 + static_cast<int>(i) % (ranks - 1);
            in_turn.push_back((to - step + ranks) % ranks);
          }
          CHECK(by.size() > 20);
          CHECK(by == in_turn);
        }
      }
}

TEST_CASE("in a ring a rank pushes to the next rank only") {
  const Topology topology = load_topology("hgx-h200");
  for (const int ranks : {3, 4, 8}) {
    const auto pushed = pushers(topology, Collective::all_gather, ranks, 1);
    for (int to = 0; to < ranks; ++to) {
      const std::vector<int>& by = pushed[static_cast<std::size_t>(to)];
      CHECK(by.size() > 20);
      CHECK(by == std::vector<int>(by.size(), (to - 1 + ranks) % ranks));
    }
  }
}

TEST_CASE("calls by copy engines in a row, in any order of streams") {
  const Topology topology = load_topology("hgx-h200");
  for (const int ranks : {2, 3, 4, 5, 8})
    for (int seed = 1; seed <= rounds(ranks == 2 ? 50 : ranks <= 4 ? 20 : 5); ++seed)
      for (const QueueOrder order :
           {QueueOrder::by_chance, QueueOrder::one_queue, QueueOrder::one_branch})
        if (ranks <= 4 || order == QueueOrder::by_chance || !plait_test::takes_few())
          check_calls(topology, tiny_group(ranks), static_cast<unsigned>(seed), order);
}

TEST_CASE("exchanges in the long inbox and in slots follow each other in any order of streams") {
  const Topology topology = load_topology("hgx-h200");
  Group group = tiny_group(2);
  group.sizes[kLongInbox] = 32 << 10;  // for calls from 128 KiB on
  int exchanges = 0;
  for (int seed = 1; seed <= rounds(50); ++seed)
    for (const QueueOrder order :
         {QueueOrder::by_chance, QueueOrder::one_queue, QueueOrder::one_branch})
      exchanges +=
          check_calls(topology, group, static_cast<unsigned>(seed), order, &copy_exchange_engine());
  CHECK(exchanges > 5);
}

TEST_CASE("calls through host memory in a row, sums by CPU cores among them") {
  const Topology topology = load_topology("hgx-h200");
  int by_cores = 0;
  for (const int ranks : {2, 3, 4, 8})
    for (int seed = 1; seed <= rounds(ranks <= 4 ? 20 : 5); ++seed)
      for (const QueueOrder order :
           {QueueOrder::by_chance, QueueOrder::one_queue, QueueOrder::one_branch})
        by_cores += check_calls(topology, host_group(ranks), static_cast<unsigned>(seed), order,
                                &host_cores_engine());
  CHECK(by_cores > 5);
}
