// Topology and the pairs that send at once -> the paths of a pair and the share of bytes for each.
// Shares come from concurrent bandwidths: the rate common to all pairs is made as large as the
// links and the resources they share allow (a linear program, solved by the simplex method), and a
// path that would not raise the total by 1 % gets none: the floor is direct-only.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

/// A path of one pair, and the fraction of the pair's bytes that it should carry.
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

/// Largest x_0 + x_1 + ... with matrix * x <= limits, x >= 0 (limits >= 0).
std::vector<double> largest_sum(const std::vector<std::vector<double>>& matrix,
                                const std::vector<double>& limits);

/// How src -> dst should be cut while `active` pairs (this one among them) all send alike.
std::vector<Share> shares_of_pair(const Topology& topology, int src_device, int dst_device,
                                  const Pairs& active);
/// Routes and shares that hold for every pair of a collective's pattern.
std::vector<RouteShare> shares_of_collective(const Topology& topology, const Request& request);
/// The pairs of a collective's busiest step: a rotation step, or both ways between two ranks.
Pairs active_pairs(const Request& request);

/// Whose rate is the sum over routes: GB/s of each pair when all of `active` send in these shares.
double common_gb_per_s(const Topology& topology, const Pairs& active,
                       const std::vector<RouteShare>& shares);

/// src -> relay -> dst; Error(unsupported) where a hop is missing.
Path relay_path(const Topology& topology, int src_device, int dst_device, int relay_device);

}  // namespace plait
