// striped: a message over every path at once, straight from input to output: the direct link, slots
// in host memory, and slots on a relay GPU. For buffers that all ranks can reach (one process with
// all GPUs). Shares make all paths end together, with the time to fill two-hop pipelines and the
// cost of each chunk. A path without gain is not used. Source: Micro 2021 (direct + host), WOTIR
// (relay GPUs).
#include <algorithm>
#include <limits>
#include <memory>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "planner/routes.hpp"
#include "planner/stripes.hpp"
#include "planner/transfer.hpp"
#include "topo/pair_paths.hpp"
#include "topo/parameters.hpp"

namespace plait {
namespace {

constexpr double kLeastGain = 0.02;  // share of the time; with less gain, direct only
constexpr double kForkNs = 8000.0;   // streams forked and joined (H200: 10 us on 32 MiB, 8 on 64)
// The gap between chunks is longer by this factor if the GPUs also receive (H200: 11.6 us instead
// of 9.5), with a margin: a share too large costs eight times as much as a share too small.
constexpr double kBothWays = 1.35;
constexpr std::uint64_t kMiB = 1 << 20;
// Rings of all pairs together: 32 MiB stay in the host's cache (H200 node: 441 GB/s one way with
// chunks of 8 MiB; both ways 429 with chunks of 4, 415 with 8).
constexpr std::uint64_t kMostRings = 32 * kMiB;
constexpr std::uint64_t kMostRelayChunk = 32 * kMiB;
constexpr std::uint64_t kSlots = 4;  // slots of a Mover
constexpr int kLanes = 1;            // more lanes did not help: the copy engine limits chunks

/// A path that every pair of the pattern has, and the bytes carried.
struct StripedPath {
  RouteShare route;
  double gb_per_s = 0.0;  ///< speed of each pair while all paths and pairs send at once
  int hops = 1;
  int lanes = 1;
  std::uint64_t chunk_bytes = 0;  ///< paths of two hops
  std::uint64_t bytes = 0;
};

/// Returns the path's bytes in whole quarters of a chunk.
std::uint64_t in_units(const StripedPath& stripe) {
  const std::uint64_t unit = std::max<std::uint64_t>(stripe.chunk_bytes / 4 / 128 * 128, 128);
  return stripe.bytes - stripe.bytes % unit;
}

class Cutter {
 public:
  Cutter(const Topology& topology, std::size_t pairs)
      : launch_ns_(parameter(topology, "copy_launch_ns")),
        event_ns_(parameter(topology, "event_signal_ns")),
        ring_chunk_ns_(parameter(topology, "ring_chunk_ns", launch_ns_ + event_ns_) *
                       (pairs > 1 ? kBothWays : 1.0)),
        relay_chunk_ns_(parameter(topology, "relay_chunk_ns", ring_chunk_ns_)) {}

  /// Time at which a path has delivered all bytes.
  double end_ns(const StripedPath& stripe) const {
    if (stripe.bytes == 0) return 0.0;
    return start_ns(stripe) + static_cast<double>(stripe.bytes) / rate(stripe);
  }
  double end_ns(const std::vector<StripedPath>& stripes) const {
    double end = 0.0;
    for (const StripedPath& stripe : stripes) end = std::max(end, end_ns(stripe));
    return end + (stripes.size() > 1 ? kForkNs : 0.0);
  }

  /// Sets bytes so that all paths end together, in quarters of chunks; path `rest` gets the
  /// remainder.
  void share_out(std::vector<StripedPath>& stripes, std::uint64_t bytes, std::size_t rest) const {
    std::vector<bool> used(stripes.size(), true);
    for (bool changed = true; changed;) {  // drops paths that would start after the rest ends
      changed = false;
      double weight = static_cast<double>(bytes), sum = 0.0;
      for (std::size_t i = 0; i < stripes.size(); ++i)
        if (used[i]) weight += rate(stripes[i]) * start_ns(stripes[i]), sum += rate(stripes[i]);
      for (std::size_t i = 0; i < stripes.size(); ++i) {
        const double wanted =
            used[i] ? rate(stripes[i]) * (weight / sum - start_ns(stripes[i])) : 0.0;
        if (i != rest && used[i] && wanted < static_cast<double>(stripes[i].chunk_bytes)) {
          used[i] = false;
          changed = true;
        }
        stripes[i].bytes = wanted <= 0.0 ? 0 : static_cast<std::uint64_t>(wanted);
      }
    }
    std::uint64_t left = bytes;
    for (std::size_t i = 0; i < stripes.size(); ++i) {
      if (i == rest) continue;
      stripes[i].bytes = std::min(in_units(stripes[i]), left);
      left -= stripes[i].bytes;
    }
    stripes[rest].bytes = left;
  }

 private:
  double start_ns(const StripedPath& stripe) const {
    const double copy_ns = launch_ns_ + event_ns_;
    if (stripe.hops == 1) return copy_ns;
    return 2 * copy_ns + static_cast<double>(stripe.chunk_bytes) / stripe.gb_per_s;
  }
  // Consecutive chunks have a gap, on any number of lanes.
  double rate(const StripedPath& stripe) const {
    if (stripe.hops == 1) return stripe.gb_per_s;
    const auto chunk = static_cast<double>(stripe.chunk_bytes);
    const double apart_ns = stripe.route.relay_device >= 0 ? relay_chunk_ns_ : ring_chunk_ns_;
    return chunk / (chunk / stripe.gb_per_s + apart_ns);
  }
  double launch_ns_, event_ns_, ring_chunk_ns_, relay_chunk_ns_;
};

bool is_host(const RouteShare& route) { return route.route == "host"; }
bool is_relay(const RouteShare& route) { return route.relay_device >= 0; }

StripedPath stripe_over(const RouteShare& route, double gb_per_s, int lanes) {
  const bool is_direct = !is_host(route) && !is_relay(route);
  return {route, gb_per_s, is_direct ? 1 : 2, is_direct ? 1 : lanes, 0, 0};
}

/// Between two sockets the ring is in the sender's memory.
Path path_of(const Topology& topology, const RouteShare& route, int src, int dst) {
  if (is_relay(route)) return relay_path(topology, src, dst, route.relay_device);
  return is_host(route) ? any_host_path(topology, src, dst) : direct_path(topology, src, dst);
}

double alone_gb_per_s(const Topology& topology, const Pairs& pairs, const RouteShare& route) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [src, dst] : pairs)
    least = std::min(least, path_gb_per_s(topology, path_of(topology, route, src, dst)));
  return least;
}

/// Returns the routes of routes.cpp with rates; without a common route, the route through the host.
std::vector<StripedPath> stripes_of(const Topology& topology, const Request& request, int lanes) {
  const Pairs pairs = active_pairs(request);
  std::vector<RouteShare> shares = shares_of_collective(topology, request);
  if (shares.empty()) shares = {{"host", 1.0, -1}};
  double rate = common_gb_per_s(topology, pairs, shares);
  if (rate <= 0.0) rate = alone_gb_per_s(topology, pairs, shares.front());
  std::vector<StripedPath> stripes;
  for (const RouteShare& share : shares)
    stripes.push_back(stripe_over(share, rate * share.fraction, lanes));
  return stripes;
}

std::vector<std::uint64_t> chunks_of(const StripedPath& stripe, std::uint64_t bytes,
                                     std::size_t pairs) {
  if (stripe.hops == 1) return {0};
  const std::uint64_t ring = kMostRings / std::max<std::size_t>(pairs, 1);
  const std::uint64_t most =
      is_relay(stripe.route) ? kMostRelayChunk : std::max(ring / kSlots, kMiB);
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t chunk = kMiB; chunk <= most && chunk <= bytes; chunk *= 2)
    sizes.push_back(chunk);
  if (sizes.empty()) sizes.push_back(std::max<std::uint64_t>((bytes + 1023) / 1024 * 1024, 1024));
  return sizes;
}

/// Tries every chunk size, and several paths if they gain time.
std::vector<StripedPath> quickest(const Cutter& cutter, std::vector<StripedPath> stripes,
                                  std::uint64_t bytes, std::uint64_t chunk, std::size_t pairs) {
  std::size_t rest = 0;  // the fastest path, which takes the remainder
  for (std::size_t i = 0; i < stripes.size(); ++i)
    if (stripes[i].gb_per_s > stripes[rest].gb_per_s) rest = i;
  std::vector<StripedPath> best;
  double best_ns = std::numeric_limits<double>::infinity();
  const auto consider = [&](std::vector<StripedPath> tried, std::size_t remainder) {
    cutter.share_out(tried, bytes, remainder);
    const double ns = cutter.end_ns(tried);
    if (ns >= best_ns * (tried.size() > best.size() ? 1.0 - kLeastGain : 1.0)) return;
    best_ns = ns;
    std::erase_if(tried, [](const StripedPath& stripe) { return stripe.bytes == 0; });
    best = std::move(tried);
  };
  const auto sizes_of = [&](const StripedPath& stripe) {
    return stripe.hops > 1 && chunk != 0 ? std::vector<std::uint64_t>{chunk}
                                         : chunks_of(stripe, bytes, pairs);
  };
  for (StripedPath& stripe : stripes)
    for (const std::uint64_t size : sizes_of(stripe)) {
      stripe.chunk_bytes = size;
      consider({stripe}, 0);
    }
  if (stripes.size() < 2) return best;
  // A single chunk size for all relays, since relays may be many.
  const StripedPath host = stripe_over({"host", 0.0, -1}, 0.0, 1),
                    relay = stripe_over({"relay", 0.0, 0}, 0.0, 1);
  for (const std::uint64_t of_host : sizes_of(host))
    for (const std::uint64_t of_relay : sizes_of(relay)) {
      for (StripedPath& stripe : stripes)
        stripe.chunk_bytes = stripe.hops == 1 ? 0 : is_host(stripe.route) ? of_host : of_relay;
      consider(stripes, rest);
    }
  return best;
}

/// Uses the caller's shares in thousandths; the rest goes over the direct links.
std::vector<StripedPath> by_given_shares(Params params, const std::vector<StripedPath>& found,
                                         const Topology& topology, const Request& request,
                                         std::uint64_t chunk, int lanes) {
  for (const StripedPath& stripe : found)
    if (is_relay(stripe.route)) params.try_emplace("relay", stripe.route.relay_device);
  const Shares shares = shares_from(params, topology, request);
  const std::uint64_t bytes = whole_range(request).bytes;
  std::vector<StripedPath> stripes;
  const auto add = [&](const RouteShare& route, int permille) {
    if (permille <= 0) return;
    StripedPath stripe = stripe_over(route, 0.0, lanes);
    stripe.chunk_bytes = stripe.hops == 1 ? 0
                         : chunk != 0
                             ? chunk
                             : chunks_of(stripe, bytes, active_pairs(request).size()).back();
    stripe.bytes = bytes / 1000 * static_cast<std::uint64_t>(permille);
    stripe.bytes = in_units(stripe);
    stripes.push_back(stripe);
  };
  add({"nvlink", 0.0, -1}, 1000 - shares.other_permille());
  add({"host", 0.0, -1}, shares.host_permille);
  if (shares.relay_permille > 0)
    add({text("relay:{}", device_label(topology, shares.relay_device)), 0.0, shares.relay_device},
        shares.relay_permille);
  std::uint64_t given = 0;
  for (const StripedPath& stripe : stripes) given += stripe.bytes;
  stripes.front().bytes += bytes - given;
  std::erase_if(stripes, [](const StripedPath& stripe) { return stripe.bytes == 0; });
  return stripes;
}

/// Writes a path's part of every pair's message, on the path's lanes.
class StripeWriter {
 public:
  StripeWriter(Builder& builder, const std::vector<std::pair<int, int>>& pairs)
      : builder_(builder), pairs_(pairs) {}

  void write(const StripedPath& stripe, Range range) {
    int number = 0;
    for (const Range& part :
         partition(range, stripe.lanes, std::max<std::uint64_t>(stripe.chunk_bytes, 128)))
      if (part.bytes != 0) write_lane(stripe, part, text("{}.{}.", stripe.route.route, number++));
    builder_.stripe(stripe.route.route, range);
  }
  /// A rank ends when its receives are complete and no peer uses its memory any more.
  void finish() {
    for (const auto& [to, arrived] : arrived_) builder_.wait(home(to), arrived);
    for (const auto& mover : movers_) mover->close([this](int rank) { return home(rank); });
  }

 private:
  int home(int rank) { return builder_.lane(rank, LaneKind::copy_engine, "home"); }

  void write_lane(const StripedPath& stripe, Range part, const std::string& name) {
    MoverOptions options;
    options.name = name;
    // A Mover cuts a large message in two, and a small message not at all.
    options.most_bytes = std::min(2 * stripe.chunk_bytes, part.bytes);
    options.ring_bytes = options.relay_bytes =
        kSlots * std::max<std::uint64_t>(stripe.chunk_bytes, 1);
    const Topology& topology = builder_.topology();
    options.path = [this, &topology, route = stripe.route](int from, int to) {
      Path path = path_of(topology, route, builder_.device(from), builder_.device(to));
      return path;
    };
    Mover& mover = *movers_.emplace_back(std::make_unique<Mover>(builder_, options));
    for (const auto& [from, to] : pairs_) mover.open(from, to, [this](int r) { return home(r); });
    for (const auto& [from, to] : pairs_) {
      const Carried carried =
          mover.carry(from, to, builder_.output(to, part), builder_.input(from, part), {}, 0, true);
      arrived_.emplace_back(to, carried.arrived);
    }
  }

  Builder& builder_;
  const std::vector<std::pair<int, int>>& pairs_;
  std::vector<std::unique_ptr<Mover>> movers_;
  std::vector<std::pair<int, Event>> arrived_;
};

std::vector<std::pair<int, int>> rank_pairs(const Request& request) {
  if (request.collective == Collective::copy) return {{request.root, request.peer}};
  std::vector<std::pair<int, int>> pairs;
  for (int rank = 0; rank < request.ranks; ++rank)
    pairs.emplace_back(rank, (rank + 1) % request.ranks);
  return pairs;
}

std::vector<Params> candidates(const Topology&, const Request&) { return {{}}; }

void write(Builder& builder, const Params& params) {
  const Topology& topology = builder.topology();
  const Request& request = builder.request();
  for (const int device : request.devices)
    if (topology.devices[static_cast<std::size_t>(device)].kind != DeviceKind::gpu)
      throw Error(ErrorCode::unsupported, "needs GPUs, whose memory one process reaches");
  builder.symmetric(true);
  const Range whole = whole_range(request);
  const std::vector<std::pair<int, int>> pairs = rank_pairs(request);
  if (whole.bytes == 0) return;
  if (pairs[0].first == pairs[0].second) {
    const int rank = pairs[0].first;
    builder.copy(builder.lane(rank, LaneKind::copy_engine, "home"), builder.output(rank, whole),
                 builder.input(rank, whole));
    return;
  }
  const std::uint64_t chunk =
      static_cast<std::uint64_t>(param_in(params, "chunk_kib", 0, 0, 64 << 10)) << 10;
  const int lanes = param_in(params, "lanes", kLanes, 1, 8);
  std::vector<StripedPath> stripes = stripes_of(topology, request, lanes);
  const bool has_shares = params.contains("host_permille") || params.contains("relay_permille");
  stripes = has_shares ? by_given_shares(params, stripes, topology, request, chunk, lanes)
                       : quickest(Cutter(topology, pairs.size()), stripes, whole.bytes, chunk,
                                  pairs.size());
  if (param_in(params, "batch", 0, 0, 1) == 1) builder.param("batch", 1);
  StripeWriter writer(builder, pairs);
  std::uint64_t at = whole.offset;
  for (const StripedPath& stripe : stripes) {
    writer.write(stripe, {at, stripe.bytes});
    at += stripe.bytes;
    const auto permille = static_cast<std::int64_t>(stripe.bytes * 1000 / whole.bytes);
    if (is_host(stripe.route)) builder.param("host_permille", permille);
    if (!is_relay(stripe.route)) continue;
    builder.param("relay_permille", permille);
    builder.param("relay", stripe.route.relay_device);
  }
  writer.finish();
}

}  // namespace

const Strategy& striped_strategy() {
  static const Strategy strategy{
      {"striped",
       "one message over direct link, host memory and relay GPU at once, input to output",
       "Micro 2021 (direct + host), WOTIR (relay GPUs)",
       {Collective::copy, Collective::send_recv}},
      candidates,
      write,
      {"host_permille", "relay_permille", "relay", "chunk_kib", "lanes", "batch"}};
  return strategy;
}

}  // namespace plait
