// rerouted: the direct schedule for machines with pairs that have no link. Messages of unlinked
// pairs go through a relay GPU inside or outside the job, chosen pair by pair so that no link is
// loaded twice while another idles. Messages too small to gain take the shorter path through the
// host. Source: WOTIR (relay GPUs, adaptive by message size).
#include <algorithm>
#include <limits>
#include <map>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "planner/stripes.hpp"
#include "planner/transfer.hpp"
#include "topo/parameters.hpp"

namespace plait {
namespace {

using PathOfPair = std::map<std::pair<int, int>, Path>;

bool is_usable(const Path& path) {
  return path.links.size() == 1 ||
         (path.links.size() == 2 && (path.kind == PathKind::relay || path.kind == PathKind::host));
}

// Returns the path on which `bytes` arrive first; transfers already assigned to a link slow the
// link down.
const Path* quickest(const Topology& topology, const std::vector<Path>& paths,
                     const std::map<int, int>& load, double bytes) {
  const Path* best = nullptr;
  double best_ns = std::numeric_limits<double>::infinity();
  for (const Path& path : paths) {
    if (!is_usable(path)) continue;
    double ns = path_latency_ns(topology, path);
    // Each hop is a launch; small messages save launches on the shorter path.
    ns += parameter(topology, "copy_launch_ns") * static_cast<double>(path.links.size());
    double slowest = 0.0;
    for (const int link : path.links) {
      const auto found = load.find(link);
      const double sharers = 1.0 + (found == load.end() ? 0 : found->second);
      slowest = std::max(slowest,
                         sharers * bytes / topology.links[static_cast<std::size_t>(link)].gb_per_s);
    }
    ns += std::max(slowest, bytes / path_gb_per_s(topology, path));
    if (ns >= best_ns) continue;
    best_ns = ns;
    best = &path;
  }
  return best;
}

PathOfPair route(const Builder& builder, double bytes) {
  const Topology& topology = builder.topology();
  PathOfPair chosen;
  std::map<int, int> load;
  std::vector<std::pair<int, int>> apart;
  for (int from = 0; from < builder.ranks(); ++from)
    for (int to = 0; to < builder.ranks(); ++to) {
      if (from == to) continue;
      const std::vector<Path> paths =
          paths_between(topology, builder.device(from), builder.device(to));
      const auto direct = std::find_if(paths.begin(), paths.end(),
                                       [](const Path& path) { return path.links.size() == 1; });
      if (direct == paths.end()) {
        apart.emplace_back(from, to);
        continue;
      }
      ++load[direct->links[0]];
      chosen[{from, to}] = *direct;
    }
  if (apart.empty())
    throw Error(
        ErrorCode::unsupported,
        text("every pair of the {} ranks has a direct link in topology {}; nothing to reroute",
             builder.ranks(), topology.name));
  for (const auto& [from, to] : apart) {
    const std::vector<Path> paths =
        paths_between(topology, builder.device(from), builder.device(to));
    const Path* best = quickest(topology, paths, load, bytes);
    if (best == nullptr)
      throw Error(ErrorCode::unsupported,
                  text("no path of two hops joins ranks {} and {} in topology {}", from, to,
                       topology.name));
    for (const int link : best->links) ++load[link];
    chosen[{from, to}] = *best;
  }
  return chosen;
}

std::vector<Params> candidates(const Topology&, const Request& request) {
  std::vector<Params> sets{{{"pieces", 1}}};
  if (whole_range(request).bytes > (1 << 20)) {
    sets.push_back({{"pieces", 4}});
    sets.push_back({{"pieces", 4}, {"throttle", 3}});
  }
  return sets;
}

void write(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  ExchangeOptions exchange;
  exchange.range = whole_range(request);
  exchange.pieces = param_in(params, "pieces", 1, 1, 2048);
  exchange.throttle = param_in(params, "throttle", 1, 1, kMaxRanks);
  builder.param("pieces", exchange.pieces);
  builder.param("throttle", exchange.throttle);
  const PathOfPair chosen =
      route(builder, static_cast<double>(exchange.range.bytes) / request.ranks / exchange.pieces);
  if (exchange.range.bytes == 0) return;
  exchange.scratch_bytes = scratch_limit(builder.topology());
  exchange.ring_bytes = ring_limit(builder.topology());
  exchange.path = [&chosen](int from, int to) { return chosen.at({from, to}); };
  write_exchange(builder, exchange);
}

}  // namespace

const Strategy& rerouted_strategy() {
  static const Strategy strategy{{"rerouted", "direct; pairs without a link go through relay GPUs",
                                  "WOTIR", direct_strategy().info.collectives},
                                 candidates,
                                 write,
                                 {"pieces", "throttle"},
                                 false,
                                 true};
  return strategy;
}

}  // namespace plait
