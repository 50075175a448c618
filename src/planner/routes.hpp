// Chooses the paths of each pair, and the share of bytes for each path, for pairs that send at the
// same time. A linear program (solved by the simplex method) maximises the rate common to all pairs
// under the capacities of links and shared resources. A path that would not raise the total by 1 %
// gets no share. The result is at least as fast as direct links alone.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// A path of a pair, and the fraction of the pair's bytes assigned to the path.
struct Share {
  Path path;
  double fraction = 0.0;
};

/// A route that all pairs of a pattern can take: "nvlink", "relay:2", "host".
struct RouteShare {
  std::string route;
  double fraction = 0.0;
  int relay_device = -1;
};

/// Pairs of devices (source, destination) that send at the same time.
using Pairs = std::vector<std::pair<int, int>>;

/// Returns the x that maximises x_0 + x_1 + ... with matrix * x <= limits, x >= 0 (limits >= 0).
std::vector<double> largest_sum(const std::vector<std::vector<double>>& matrix,
                                const std::vector<double>& limits);

/// Returns paths and shares for src -> dst while all `active` pairs (with this one) send equally.
std::vector<Share> shares_of_pair(const Topology& topology, int src_device, int dst_device,
                                  const Pairs& active);
/// Returns routes and shares that every pair of the collective's pattern has.
std::vector<RouteShare> shares_of_collective(const Topology& topology, const Request& request);
/// Returns the pairs of a collective's busiest step: a rotation step, or both directions of two
/// ranks.
Pairs active_pairs(const Request& request);

/// Returns GB/s of each pair, summed over routes, when all of `active` send in the given shares.
double common_gb_per_s(const Topology& topology, const Pairs& active,
                       const std::vector<RouteShare>& shares);

/// Returns the path src -> relay -> dst; Error(unsupported) if a hop has no link.
Path relay_path(const Topology& topology, int src_device, int dst_device, int relay_device);

}  // namespace plait
