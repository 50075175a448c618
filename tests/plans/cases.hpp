// All combinations of strategy, topology, collective, ranks and root, for tests that prove and run
// all plans. Sizes are odd on purpose: none, fewer than ranks, primes, just past a power of two.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "planner/strategy.hpp"
#include "unit/scale.hpp"

namespace cases {

inline const std::vector<int> kRanks{1, 2, 3, 4, 5, 7, 8, 16};

struct PlanCase {
  const plait::Strategy& strategy;
  const plait::Topology& topology;
  plait::Request request;  ///< count and type still to be set
};

inline bool rooted(plait::Collective collective) {
  using plait::Collective;
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::gather || collective == Collective::scatter ||
         collective == Collective::copy;
}

inline std::vector<int> roots(plait::Collective collective, int ranks) {
  if (!rooted(collective) || ranks == 1) return {0};
  return {0, ranks - 1};
}

inline void for_each_root(const plait::Strategy& strategy, const plait::Topology& topology,
                          plait::Request request,
                          const std::function<void(const PlanCase&)>& body) {
  for (const int root : roots(request.collective, request.ranks)) {
    request.root = root;
    request.peer = (root + 1) % request.ranks;
    static plait_test::Sample is_next_taken;
    if (is_next_taken()) body({strategy, topology, request});
  }
}

/// Calls body for every case on a single topology, with up to as many ranks as the machine has;
/// with a small PLAIT_TEST_SCALE for a sample.
inline void for_each_case(const plait::Topology& topology,
                          const std::function<void(const PlanCase&)>& body) {
  const auto devices = static_cast<int>(plait::rank_devices(topology).size());
  for (const int ranks : kRanks) {
    if (ranks > devices) continue;
    for (const plait::Strategy* strategy : plait::all_strategies())
      for (const plait::Collective collective : strategy->info.collectives) {
        plait::Request request;
        request.collective = collective;
        request.ranks = ranks;
        for_each_root(*strategy, topology, request, body);
      }
  }
}

/// A machine with enough ranks for every count above: fully connected GPUs and a single host.
inline plait::Topology wide_machine() {
  plait::Topology topology;
  topology.name = "wide";
  constexpr int kGpus = 16;
  for (int i = 0; i < kGpus; ++i) {
    plait::Device gpu;
    gpu.index = i;
    gpu.numa = i / 8;
    topology.devices.push_back(gpu);
  }
  for (int i = 0; i < 2; ++i) {
    plait::Device host;
    host.kind = plait::DeviceKind::host;
    host.index = i;
    host.numa = i;
    topology.devices.push_back(host);
  }
  const auto both_ways = [&](plait::LinkKind kind, int a, int b, double gb_per_s) {
    topology.links.push_back({kind, a, b, 1, gb_per_s, 1000.0, {}});
    topology.links.push_back({kind, b, a, 1, gb_per_s, 1000.0, {}});
  };
  for (int i = 0; i < kGpus; ++i) {
    both_ways(plait::LinkKind::pcie, i, kGpus + i / 8, 50.0);
    for (int j = 0; j < i; ++j) both_ways(plait::LinkKind::nvlink, i, j, 400.0);
  }
  both_ways(plait::LinkKind::bus, kGpus, kGpus + 1, 60.0);
  return topology;
}

inline std::vector<plait::Topology> machines() {
  std::vector<plait::Topology> all{wide_machine()};
  for (const std::string& name : plait::shipped_topologies())
    all.push_back(plait::load_topology(name));
  return all;
}

}  // namespace cases
