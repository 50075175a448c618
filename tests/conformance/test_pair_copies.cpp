// Copies between two GPUs of a fake machine with another job on the host path: the share of the
// host path adapts, nothing waits, and shares set by the caller stay.
#include <doctest/doctest.h>

#include "comm/gpu/pair_copies.hpp"
#include "fake_cuda/fake_driver.hpp"
#include "plait/error.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait_test;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;

/// Two GPUs of hgx-h200, with buffers that are not read, since only times matter.
struct PairBench {
  explicit PairBench(bool both_ways) : pair{1, 0, both_ways} {
    FakeMachine::now().reset();
    FakeMachine::now().moves_bytes = false;
    api = fake_api();
    Topology topology = load_topology("hgx-h200");
    std::vector<int> devices = rank_devices(topology);
    copies = std::make_unique<PairCopies>(std::move(topology), std::move(devices), api);
    for (const std::uintptr_t rank : {0, 1}) {
      auto* const stream =
          FakeMachine::now().stream_of(reinterpret_cast<cuda::Context>(0x100 + rank));
      ranks.push_back({reinterpret_cast<void*>((8 + rank) << 40),
                       reinterpret_cast<void*>((16 + rank) << 40), stream});
    }
  }
  void put(std::uint64_t bytes, const PairCopies::Params& params = {}) {
    copies->run(pair, bytes, params, ranks);
  }
  /// Runs a copy with a wait of the caller; returns the time.
  double ns(std::uint64_t bytes, const PairCopies::Params& params = {}) {
    const double before = FakeMachine::now().latest_ns();
    put(bytes, params);
    FakeMachine::now().run_in_order();
    return FakeMachine::now().latest_ns() - before;
  }
  double mean_ns(std::uint64_t bytes, int calls) {
    double sum = 0.0;
    for (int i = 0; i < calls; ++i) sum += ns(bytes);
    return sum / calls;
  }
  double share(std::uint64_t bytes) {
    std::uint64_t by_host = 0;
    const Plan plan = copies->plan_for(pair, bytes, {});
    for (const Stripe& stripe : plan.stripes)
      if (stripe.route == "host") by_host += stripe.bytes;
    return static_cast<double>(by_host) / static_cast<double>(bytes);
  }
  cuda::Api api;
  PairCopies::OrdinalPair pair;
  std::unique_ptr<PairCopies> copies;
  std::vector<cuda::CopyBuffers> ranks;
};

std::size_t timed_events() { return FakeMachine::now().timing.size(); }

}  // namespace

TEST_CASE("pair copies: the host share goes down under load and comes back" *
          doctest::skip(kLooksForRaces)) {
  for (const bool both_ways : {false, true})
    for (const std::uint64_t bytes : {256 * kMiB, 1024 * kMiB}) {
      CAPTURE(both_ways);
      CAPTURE(bytes);
      PairBench bench(both_ways);
      const double whole = bench.share(bytes), alone_ns = bench.ns(bytes, {{"host_permille", 0}});
      CHECK(whole > 0.07);
      const double free_ns = bench.mean_ns(bytes, 50);
      CHECK(free_ns < 0.95 * alone_ns);
      for (const double slower : {2.0, 4.0, 10.0}) {
        CAPTURE(slower);
        FakeMachine::now().host_gb_per_s = 55.0 / slower;
        CHECK(bench.mean_ns(bytes, 1200) < 1.03 * alone_ns);
        CHECK(bench.share(bytes) < 1.25 * whole / slower);
        FakeMachine::now().host_gb_per_s = 55.0;
        bench.mean_ns(bytes, 100);
        CHECK(bench.mean_ns(bytes, 100) < 1.02 * free_ns);
        CHECK(bench.share(bytes) > 0.8 * whole);
      }
      CHECK(FakeMachine::now().faults == std::vector<std::string>{});
    }
}

TEST_CASE(
    "pair copies: nothing is corrected if no path could be left out, or if the share is set") {
  PairBench bench(false);
  const double small_ns = bench.ns(kMiB);
  CHECK(small_ns > 0.0);
  CHECK(timed_events() == 0);
  FakeMachine::now().host_gb_per_s = 5.5;
  const PairCopies::Params by_hand{{"host_permille", 100}};
  const double asked_ns = bench.ns(256 * kMiB, by_hand);
  for (int i = 0; i < 20; ++i) CHECK(bench.ns(256 * kMiB, by_hand) == doctest::Approx(asked_ns));
  CHECK(bench.share(256 * kMiB) > 0.09);  // no time has been learned
}

TEST_CASE(
    "pair copies: copies enqueued ahead run with the known share, and report their times later") {
  PairBench bench(false);
  const std::uint64_t bytes = 1024 * kMiB;
  FakeMachine::now().host_gb_per_s = 55.0 / 4;
  for (int i = 0; i < 6; ++i) bench.put(bytes);
  CHECK(bench.share(bytes) > 0.1);
  FakeMachine::now().run_in_order();
  bench.put(bytes);
  CHECK(bench.share(bytes) < 0.05);
  FakeMachine::now().run_by_chance(1);
  CHECK(FakeMachine::now().faults == std::vector<std::string>{});
  FakeMachine::now().capturing = true;
  CHECK_THROWS_AS(bench.put(bytes), Error);
  FakeMachine::now().capturing = false;
  CHECK(bench.ns(bytes) > 0.0);
}
