// Computes shares from concurrent bandwidths (see routes.hpp).
#include "planner/routes.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr double kLeastGain = 0.01;  // least gain of a further path

std::optional<Path> path_of(const Topology& topology, int src, int dst, const std::string& route,
                            int relay_device) {
  for (const Path& path : paths_between(topology, src, dst)) {
    if (route == "nvlink" && path.links.size() == 1) return path;
    if (route == "host" && path.kind == PathKind::host && path.links.size() == 2) return path;
    if (relay_device >= 0 && path.kind == PathKind::relay && path.links.size() == 2 &&
        path.devices[1] == relay_device)
      return path;
  }
  return std::nullopt;
}

// A route, and the load on every link and resource per unit of the common rate.
struct RouteLoad {
  RouteShare route;
  std::vector<double> load;  // links first, then resources
};

std::optional<RouteLoad> load_of(const Topology& topology, const Pairs& active,
                                 const RouteShare& route) {
  RouteLoad out{route, std::vector<double>(topology.links.size() + topology.resources.size(), 0.0)};
  for (const auto& [src, dst] : active) {
    const auto path = path_of(topology, src, dst, route.route, route.relay_device);
    if (!path) return std::nullopt;
    for (const int link : path->links) {
      out.load[static_cast<std::size_t>(link)] += 1.0;
      for (const int resource : topology.links[static_cast<std::size_t>(link)].resources)
        out.load[topology.links.size() + static_cast<std::size_t>(resource)] += 1.0;
    }
  }
  return out;
}

std::vector<double> capacities(const Topology& topology) {
  std::vector<double> limits;
  for (const Link& link : topology.links) limits.push_back(link.gb_per_s);
  for (const Resource& resource : topology.resources) limits.push_back(resource.gb_per_s);
  return limits;
}

// Routes that every active pair has. Ranks of the pattern are no relays, since their ports are as
// busy as the pairs' ports.
std::vector<RouteLoad> common_routes(const Topology& topology, const Pairs& active) {
  std::vector<RouteLoad> routes;
  const auto add = [&](const RouteShare& route) {
    if (const auto load = load_of(topology, active, route)) routes.push_back(*load);
  };
  add({"nvlink", 0.0, -1});
  add({"host", 0.0, -1});
  for (const int device : rank_devices(topology)) {
    const bool is_active = std::any_of(active.begin(), active.end(), [device](const auto& pair) {
      return pair.first == device || pair.second == device;
    });
    if (!is_active) add({"relay:" + device_label(topology, device), 0.0, device});
  }
  return routes;
}

std::vector<double> rates(const Topology& topology, const std::vector<RouteLoad>& routes) {
  const std::vector<double> limits = capacities(topology);
  std::vector<std::vector<double>> matrix;
  std::vector<double> used_limits;
  for (std::size_t row = 0; row < limits.size(); ++row) {
    std::vector<double> line;
    for (const RouteLoad& route : routes) line.push_back(route.load[row]);
    if (std::all_of(line.begin(), line.end(), [](double load) { return load == 0.0; })) continue;
    matrix.push_back(line);
    used_limits.push_back(limits[row]);
  }
  return largest_sum(matrix, used_limits);
}

double sum(const std::vector<double>& values) {
  double total = 0.0;
  for (const double value : values) total += value;
  return total;
}

// Drops routes one by one while the rate stays within kLeastGain of the best.
std::vector<RouteShare> fewest_routes(const Topology& topology, std::vector<RouteLoad> routes) {
  if (routes.empty()) return {};
  const double best = sum(rates(topology, routes));
  for (std::size_t last = routes.size(); last-- > 1;) {
    std::vector<RouteLoad> fewer = routes;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(last));
    if (sum(rates(topology, fewer)) * (1.0 + kLeastGain) >= best) routes = fewer;
  }
  const std::vector<double> rate = rates(topology, routes);
  std::vector<RouteShare> shares;
  for (std::size_t i = 0; i < routes.size(); ++i) {
    routes[i].route.fraction = rate[i] / sum(rate);
    if (rate[i] > 0.0) shares.push_back(routes[i].route);
  }
  return shares;
}

struct Pivot {
  std::size_t row = 0;
  std::size_t column = 0;
  bool found = false;
};

// Bland's rule: the first column that helps, and the tightest row. The rule also ends on degenerate
// programs.
Pivot next_pivot(const std::vector<std::vector<double>>& rows, std::size_t columns) {
  constexpr double kTiny = 1e-9;
  Pivot pivot;
  while (pivot.column < columns && rows.back()[pivot.column] >= -kTiny) ++pivot.column;
  if (pivot.column == columns) return pivot;
  double tightest = std::numeric_limits<double>::infinity();
  for (std::size_t row = 0; row + 1 < rows.size(); ++row) {
    if (rows[row][pivot.column] <= kTiny) continue;
    const double ratio = rows[row].back() / rows[row][pivot.column];
    if (ratio >= tightest) continue;
    tightest = ratio;
    pivot.row = row;
    pivot.found = true;
  }
  return pivot;
}

}  // namespace

std::vector<double> largest_sum(const std::vector<std::vector<double>>& matrix,
                                const std::vector<double>& limits) {
  const std::size_t constraints = matrix.size();
  const std::size_t variables = constraints == 0 ? 0 : matrix[0].size();
  const std::size_t width = variables + constraints + 1;
  std::vector<std::vector<double>> rows(constraints + 1, std::vector<double>(width, 0.0));
  std::vector<std::size_t> basis;
  for (std::size_t row = 0; row < constraints; ++row) {
    std::copy(matrix[row].begin(), matrix[row].end(), rows[row].begin());
    rows[row][variables + row] = 1.0;
    rows[row].back() = limits[row];
    basis.push_back(variables + row);
  }
  std::fill_n(rows.back().begin(), variables, -1.0);
  for (Pivot pivot = next_pivot(rows, width - 1); pivot.found;
       pivot = next_pivot(rows, width - 1)) {
    const double by = rows[pivot.row][pivot.column];
    for (double& value : rows[pivot.row]) value /= by;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const double factor = rows[row][pivot.column];
      if (row == pivot.row || factor == 0.0) continue;
      for (std::size_t i = 0; i < width; ++i) rows[row][i] -= factor * rows[pivot.row][i];
    }
    basis[pivot.row] = pivot.column;
  }
  std::vector<double> x(variables, 0.0);
  for (std::size_t row = 0; row < constraints; ++row)
    if (basis[row] < variables) x[basis[row]] = rows[row].back();
  return x;
}

std::vector<Share> shares_of_pair(const Topology& topology, int src_device, int dst_device,
                                  const Pairs& active) {
  std::vector<Share> shares;
  for (const RouteShare& route : fewest_routes(topology, common_routes(topology, active)))
    if (auto path = path_of(topology, src_device, dst_device, route.route, route.relay_device))
      shares.push_back({*path, route.fraction});
  if (!shares.empty()) return shares;
  // Without a common route the pair's own best path carries all bytes.
  const std::vector<Path> paths = paths_between(topology, src_device, dst_device);
  if (!paths.empty()) shares.push_back({paths.front(), 1.0});
  return shares;
}

Pairs active_pairs(const Request& request) {
  Pairs pairs;
  const int n = request.ranks;
  const auto device = [&](int rank) { return request.devices.at(static_cast<std::size_t>(rank)); };
  const Collective c = request.collective;
  if (c == Collective::copy) return {{device(request.root), device(request.peer)}};
  for (int rank = 0; rank < n; ++rank) {
    if (c == Collective::gather && rank != request.root)
      pairs.emplace_back(device(rank), device(request.root));
    else if (c == Collective::scatter && rank != request.root)
      pairs.emplace_back(device(request.root), device(rank));
    else if (c != Collective::gather && c != Collective::scatter && n > 1)
      pairs.emplace_back(device(rank), device((rank + 1) % n));
  }
  return pairs;
}

std::vector<RouteShare> shares_of_collective(const Topology& topology, const Request& request) {
  const Pairs active = active_pairs(request);
  for (const auto& [src, dst] : active)
    if (src == dst) return {};
  return fewest_routes(topology, common_routes(topology, active));
}

double common_gb_per_s(const Topology& topology, const Pairs& active,
                       const std::vector<RouteShare>& shares) {
  const std::vector<double> limits = capacities(topology);
  std::vector<double> load(limits.size(), 0.0);
  for (const RouteShare& share : shares) {
    const auto one = load_of(topology, active, share);
    if (!one && share.fraction > 0.0) return 0.0;
    for (std::size_t i = 0; i < load.size() && one; ++i) load[i] += share.fraction * one->load[i];
  }
  double rate = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < load.size(); ++i)
    if (load[i] > 0.0) rate = std::min(rate, limits[i] / load[i]);
  return rate;
}

Path relay_path(const Topology& topology, int src_device, int dst_device, int relay_device) {
  if (const auto path = path_of(topology, src_device, dst_device, "", relay_device)) return *path;
  throw Error(ErrorCode::unsupported,
              text("wanted links from {} over device {} to {}, topology {} lacks one",
                   device_label(topology, src_device), relay_device,
                   device_label(topology, dst_device), topology.name));
}

}  // namespace plait
