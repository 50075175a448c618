// Calls by copy engines in which a rank comes after the peers' deadline, or a program aborts: every
// call that ends on a rank without a failed stream has the reference's outputs on that rank,
// whatever was queued or in flight.
#include <doctest/doctest.h>

#include "conformance/engine_calls.hpp"
#include "unit/scale.hpp"

using namespace plait_test;
using namespace plait_test::engine_calls;

namespace {

struct Counts {
  int right = 0, failed = 0;
};

void check_calls(const Topology& topology, int ranks, unsigned seed, bool as_one_queue,
                 bool is_aborted, Counts& counts) {
  const auto some = static_cast<unsigned>(ranks);
  FakeEngines engines;
  engines.trouble.deadlines = true;
  Ranks all(engines, tiny_group(ranks));
  std::vector<CopyCall> calls = calls_of(topology, tiny_group(ranks), seed, true);
  const int late = static_cast<int>(seed % some), aborted = static_cast<int>(seed / some % some);
  if (is_aborted) engines.trouble.aborted = aborted;
  std::vector<std::vector<bool>> ended(some, std::vector<bool>(calls.size()));
  for (int rank = 0; rank < ranks; ++rank)
    for (std::size_t at = 0; at < calls.size(); ++at) {
      if (rank == late && at == seed / 7 % calls.size()) all.come_late(rank);
      all.enqueue(calls[at], rank);
      all.note(rank, [&ended, rank, at] { ended[static_cast<std::size_t>(rank)][at] = true; });
    }
  if (as_one_queue)
    engines.run_as_one_queue(seed);
  else
    engines.run_by_chance(seed);
  CAPTURE(ranks);
  CAPTURE(seed);
  CAPTURE(as_one_queue);
  CAPTURE(late);
  CAPTURE(is_aborted ? aborted : -1);
  for (std::size_t at = 0; at < calls.size(); ++at)
    for (std::size_t rank = 0; rank < some; ++rank) {
      CAPTURE(calls[at].label);
      CAPTURE(at);
      CAPTURE(rank);
      const bool is_expected = !engines.is_aborted(static_cast<int>(rank)) && ended[rank][at];
      ++(is_expected ? counts.right : counts.failed);
      if (is_expected) CHECK(calls[at].outputs[rank] == calls[at].expected[rank]);
      if (!ended[rank][at]) CHECK(engines.has_failed(static_cast<int>(rank)));
    }
}

}  // namespace

TEST_CASE("copy engines: a late or aborted rank leaves no rank with a wrong result") {
  const Topology topology = load_topology("hgx-h200");
  for (const bool is_aborted : {false, true}) {
    Counts counts;
    for (const int ranks : {2, 3, 4, 8})
      for (int seed = 1; seed <= rounds(ranks == 2 ? 120 : ranks <= 4 ? 60 : 8); ++seed)
        for (const bool as_one_queue : {false, true})
          if (ranks <= 4 || as_one_queue || !plait_test::takes_few())
            check_calls(topology, ranks, static_cast<unsigned>(seed), as_one_queue, is_aborted,
                        counts);
    CHECK(plait_test::seen(counts.right));
    CHECK(plait_test::seen(counts.failed));
  }
}
