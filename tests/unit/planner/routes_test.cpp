// Compares shares with brute force: no cut of the message in thousandths is faster by more than a
// grain.
#include "planner/routes.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "unit/scale.hpp"

namespace plait {
namespace {

Request all_reduce(const Topology& topology, int ranks) {
  Request request;
  request.ranks = ranks;
  request.count = 1 << 20;
  return checked(request, topology);
}

double fraction_of(const std::vector<RouteShare>& shares, const std::string& route) {
  for (const RouteShare& share : shares)
    if (share.route == route) return share.fraction;
  return 0.0;
}

TEST_CASE("shares of nvlink and host match a scan") {
  for (const char* name : {"hgx-h200", "dgx1v", "narval", "mist-4"}) {
    const Topology topology = load_topology(name);
    const int most = static_cast<int>(rank_devices(topology).size());
    for (int ranks = 2; ranks <= most; ++ranks) {
      CAPTURE(name);
      CAPTURE(ranks);
      const Pairs active = active_pairs(all_reduce(topology, ranks));
      const std::vector<RouteShare> shares =
          shares_of_collective(topology, all_reduce(topology, ranks));
      double total = 0.0;
      for (const RouteShare& share : shares) total += share.fraction;
      if (shares.empty()) continue;
      CHECK(total == doctest::Approx(1.0));
      double best = 0.0;
      for (int permille = 0; permille <= 1000; permille += plait_test::kIsSanitized ? 10 : 1)
        best = std::max(best, common_gb_per_s(topology, active,
                                              {{"nvlink", 1.0 - permille / 1000.0, -1},
                                               {"host", permille / 1000.0, -1}}));
      CHECK(common_gb_per_s(topology, active, shares) >= best * 0.985);
    }
  }
}

TEST_CASE("two H200 send 8-12 % by the host, eight at most 7 %") {
  const Topology topology = load_topology("hgx-h200");
  const double two = fraction_of(shares_of_collective(topology, all_reduce(topology, 2)), "host");
  const double eight = fraction_of(shares_of_collective(topology, all_reduce(topology, 8)), "host");
  MESSAGE("host share of 2: ", two, ", of 8: ", eight);
  CHECK(two >= 0.08);
  CHECK(two <= 0.125);
  CHECK(eight <= 0.07);
}

TEST_CASE("a path with a gain under one per cent gets no share") {
  Topology topology = load_topology("hgx-h200");
  for (Resource& resource : topology.resources)
    if (resource.name == "numa0.dram") resource.gb_per_s = 8.0;
  const std::vector<RouteShare> shares = shares_of_collective(topology, all_reduce(topology, 2));
  REQUIRE(shares.size() == 1);
  CHECK(shares[0].route == "nvlink");
  CHECK(shares[0].fraction == doctest::Approx(1.0));
}

TEST_CASE("a pair's shares name its own paths") {
  const Topology topology = load_topology("dgx1v");
  const std::vector<int> gpus = rank_devices(topology);
  const Pairs active{{gpus[0], gpus[1]}};
  double total = 0.0;
  for (const Share& share : shares_of_pair(topology, gpus[0], gpus[1], active)) {
    CHECK(share.path.devices.front() == gpus[0]);
    CHECK(share.path.devices.back() == gpus[1]);
    total += share.fraction;
  }
  CHECK(total == doctest::Approx(1.0));
}

TEST_CASE("the simplex finds corners, also degenerate ones") {
  const std::vector<double> x = largest_sum({{1, 0}, {0, 1}, {1, 1}}, {4, 3, 5});
  CHECK(x[0] + x[1] == doctest::Approx(5.0));
  const std::vector<double> none = largest_sum({{1, 1}, {2, 1}}, {0, 0});
  CHECK(none[0] + none[1] == doctest::Approx(0.0));
}

}  // namespace
}  // namespace plait
