// Predicts the time of a kernel's call. The request gives the work of the busiest rank, the launch
// gives the split over threads. Each family of kernels has a function.
#include "sim/kernel_price.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plan/former_names.hpp"
#include "topo/parameters.hpp"

namespace plait::sim {
namespace {

// Parameters of the topology; machines without measurements have an HGX H200's
// (topo/parameters.def).
struct KernelCosts {
  double graph_ns, eager_ns;
  double to_one, to_three, to_seven, both_ways;
  double line_hop_ns, line_hop_host_ns, line_host_share, line_peer_ns, line_escape_ns,
      line_one_way_ns;
  double short_hop_ns, short_peer_ns, two_shot_hops;
  double chain_hop_ns, chain_sum_ns, chain_sum_gb_per_s;
  double one_shot_step_ns, two_shot_step_ns, hop_peer_ns, hop_round_ns, line_norm;
  double chunk_host_share, chunk_one_way_share, chunk_both_ns;
  double tile_hop_ns, tile_hop_host_ns, tile_host_share, tile_both_ns, tile_relay_ns, tile_ranks_ns,
      tile_blocks_ns;
  double tile_sum_gb_per_s, tile_step_ns, tile_fill_ns, tile_norm;
  double message_lines_ns, message_tiles_ns, message_both_ns;
  double message_blocks_ns;
  double gather_gb_per_s, gather_all_gb_per_s, gather_ns, gather_chunk_ns, exchange_gb_per_s;
  double in_step_to_three, in_step_to_seven;
  double drift_bytes, piece_ns, shift_share;
  double ring_ns, ring_step_ns, ring_take_gb_per_s;
};

KernelCosts costs_of(const Topology& topology) {
  KernelCosts costs{};
  const auto get = [&](const char* key, double& value) { value = parameter(topology, key); };
  get("kernel_graph_ns", costs.graph_ns);
  get("kernel_eager_ns", costs.eager_ns);
  get("stores_to_one_share", costs.to_one);
  get("stores_to_three_share", costs.to_three);
  get("stores_to_seven_share", costs.to_seven);
  get("stores_both_ways_share", costs.both_ways);
  get("line_hop_ns", costs.line_hop_ns);
  get("line_hop_host_ns", costs.line_hop_host_ns);
  get("line_host_share", costs.line_host_share);
  get("tile_hop_host_ns", costs.tile_hop_host_ns);
  get("chunk_host_share", costs.chunk_host_share);
  get("chunk_one_way_share", costs.chunk_one_way_share);
  get("chunk_both_ns", costs.chunk_both_ns);
  get("tile_host_share", costs.tile_host_share);
  get("line_peer_ns", costs.line_peer_ns);
  get("short_hop_ns", costs.short_hop_ns);
  get("short_peer_ns", costs.short_peer_ns);
  get("two_shot_hops", costs.two_shot_hops);
  get("line_escape_ns", costs.line_escape_ns);
  get("line_one_way_ns", costs.line_one_way_ns);
  get("chain_hop_ns", costs.chain_hop_ns);
  get("chain_sum_ns", costs.chain_sum_ns);
  get("chain_sum_gb_per_s", costs.chain_sum_gb_per_s);
  get("one_shot_step_ns", costs.one_shot_step_ns);
  get("two_shot_step_ns", costs.two_shot_step_ns);
  get("hop_peer_ns", costs.hop_peer_ns);
  get("hop_round_ns", costs.hop_round_ns);
  get("line_norm", costs.line_norm);
  get("tile_hop_ns", costs.tile_hop_ns);
  get("tile_both_ns", costs.tile_both_ns);
  get("tile_relay_ns", costs.tile_relay_ns);
  get("tile_ranks_ns", costs.tile_ranks_ns);
  get("tile_blocks_ns", costs.tile_blocks_ns);
  get("tile_sum_gb_per_s", costs.tile_sum_gb_per_s);
  get("tile_step_ns", costs.tile_step_ns);
  get("tile_fill_ns", costs.tile_fill_ns);
  get("tile_norm", costs.tile_norm);
  get("message_lines_ns", costs.message_lines_ns);
  get("message_tiles_ns", costs.message_tiles_ns);
  get("message_both_ns", costs.message_both_ns);
  get("message_blocks_ns", costs.message_blocks_ns);
  get("host_gather_gb_per_s", costs.gather_gb_per_s);
  get("host_gather_all_gb_per_s", costs.gather_all_gb_per_s);
  get("host_gather_ns", costs.gather_ns);
  get("host_gather_chunk_ns", costs.gather_chunk_ns);
  get("host_exchange_gb_per_s", costs.exchange_gb_per_s);
  get("in_step_to_three_share", costs.in_step_to_three);
  get("in_step_to_seven_share", costs.in_step_to_seven);
  get("tile_drift_bytes", costs.drift_bytes);
  get("tile_piece_ns", costs.piece_ns);
  get("tile_shift_share", costs.shift_share);
  get("scatter_ring_ns", costs.ring_ns);
  get("scatter_ring_step_ns", costs.ring_step_ns);
  get("scatter_ring_take_gb_per_s", costs.ring_take_gb_per_s);
  return costs;
}

// Time of overlapping terms: their p-norm with p = `norm`.
double overlapped(double norm, std::initializer_list<double> times_ns) {
  double sum = 0.0;
  for (const double ns : times_ns) sum += std::pow(std::max(ns, 0.0), norm);
  return std::pow(sum, 1.0 / norm);
}

/// Parts that the busiest rank sends to and gets from peers.
struct PeerParts {
  double bytes = 0.0;              ///< size of a part
  double sent = 0.0, taken = 0.0;  ///< number of parts
  bool both_ways = true;           ///< every rank both sends and waits for parts
  bool keeps = false;              ///< a rank copies a part to its own output
};

PeerParts parts_of(const Request& request) {
  const double others = request.ranks - 1;
  PeerParts parts{static_cast<double>(request.count * bytes_of(request.type)), others, others};
  switch (request.collective) {
    case Collective::all_gather:
    case Collective::all_to_all: parts.keeps = true; break;
    case Collective::send_recv: parts.sent = parts.taken = 1; break;
    case Collective::gather: parts = {parts.bytes, 1, others, false, true}; break;
    case Collective::reduce: parts = {parts.bytes, 1, others, false, false}; break;
    case Collective::broadcast:
    case Collective::scatter: parts = {parts.bytes, others, 1, false, true}; break;
    case Collective::copy: parts = {parts.bytes, 1, 1, false, false}; break;
    default: break;
  }
  return parts;
}

double units(double bytes) { return std::ceil(bytes / 16.0); }

/// A resource that pairs of ranks share: a switch port, a bus, or the link of a pair.
struct SharedResource {
  double gb_per_s = 0.0;
  double pairs = 1.0;  ///< directed pairs of ranks with a link over the resource
  double fan = 1.0;    ///< most of these pairs that begin, or end, at a single rank
};

/// Returns the links of a pair: the direct link, or the links through host memory. None = no path.
std::vector<int> links_between(const Topology& topology, int from, int to, bool through_host) {
  if (!through_host) {
    const int found = find_link(topology, from, to);
    return found < 0 ? std::vector<int>{} : std::vector<int>{found};
  }
  for (const Path& path : paths_between(topology, from, to))
    if (path.kind == PathKind::host) return path.links;
  return {};
}

/// Returns the slowest link between two of the devices, then every resource of these links.
std::vector<SharedResource> shared_by(const Topology& topology, const std::vector<int>& devices,
                                      const std::string& plan_label, bool through_host) {
  SharedResource slowest{std::numeric_limits<double>::infinity(), 1.0, 1.0};
  struct ResourceEnds {
    double pairs = 0.0;
    std::map<int, double> begin, end;  // by device
  };
  std::map<int, ResourceEnds> drawn;  // by resource
  for (const int from : devices)
    for (const int to : devices) {
      if (from == to) continue;
      const std::vector<int> links = links_between(topology, from, to, through_host);
      if (links.empty())
        throw Error(ErrorCode::unsupported,
                    text("cannot predict {} on {}: no {} from {} to {}", plan_label, topology.name,
                         through_host ? "way through host memory" : "link",
                         device_label(topology, from), device_label(topology, to)));
      for (const int one : links) {
        const Link& link = topology.links[static_cast<std::size_t>(one)];
        slowest.gb_per_s = std::min(slowest.gb_per_s, link.gb_per_s);
        for (const int resource : std::set<int>(link.resources.begin(), link.resources.end())) {
          ResourceEnds& ends = drawn[resource];
          ++ends.pairs, ++ends.begin[from], ++ends.end[to];
        }
      }
    }
  std::vector<SharedResource> shared{slowest};
  for (const auto& [resource, ends] : drawn) {
    double fan = 0.0;
    for (const auto* const side : {&ends.begin, &ends.end})
      for (const auto& [device, links] : *side) fan = std::max(fan, links);
    shared.push_back(
        {topology.resources[static_cast<std::size_t>(resource)].gb_per_s, ends.pairs, fan});
  }
  return shared;
}

class Price {
 public:
  Price(const Plan& plan, const Topology& topology)
      : plan_(plan), costs_(costs_of(topology)), parts_(parts_of(plan.request)) {
    std::vector<int> devices = plan.request.devices;
    if (devices.empty()) devices = checked(plan.request, topology).devices;
    shared_ = shared_by(topology, devices, label(plan), has("through_host") != 0);
    if (has("through_host") != 0) go_through_host();
  }

  using KernelPrice = double (Price::*)() const;
  /// Null = no price. A kernel of its own takes a row.
  static KernelPrice price_of(const std::string& kernel) {
    static const std::map<std::string, KernelPrice> kPrices{
        {"one_shot", &Price::lines_ns},    {"two_shot", &Price::lines_ns},
        {"direct_ll", &Price::lines_ns},   {"ll_chain", &Price::ll_chain_ns},
        {"tiled", &Price::tiles_ns},       {"scatter_ring", &Price::scatter_ring_ns},
        {"messages", &Price::messages_ns}, {"direct_chunks", &Price::chunks_ns},
    };
    const auto found = kPrices.find(name_now(kernel));
    return found == kPrices.end() ? nullptr : found->second;
  }

  double ns(Launch launch) const {
    return costs_.graph_ns + (launch == Launch::eager ? costs_.eager_ns : 0.0) +
           (this->*price_of(plan_.kernel))();
  }

 private:
  /// Copy engines reach the full speed of the path through host memory, kernels a share of the
  /// speed. In one direction packets and tiles lose half as much.
  void go_through_host() {
    costs_.line_hop_ns = costs_.line_hop_host_ns;
    costs_.tile_hop_ns = costs_.tile_hop_host_ns;
    const bool has_chunks = plan_.kernel == "direct_chunks";
    const double share = has_chunks                          ? costs_.chunk_host_share
                         : name_now(plan_.kernel) == "tiled" ? costs_.tile_host_share
                                                             : costs_.line_host_share;
    const double one_way = has_chunks ? costs_.chunk_one_way_share : (1 + share) / 2;
    for (SharedResource& one : shared_) one.gb_per_s *= parts_.both_ways ? share : one_way;
  }
  double param(const char* key, double least) const {
    const auto found = plan_.params.find(key);
    const double value = found == plan_.params.end() ? 0.0 : static_cast<double>(found->second);
    if (value >= least) return value;
    throw Error(
        ErrorCode::invalid_argument,
        text("cannot predict {}: wanted {} from {} on, found {}", label(plan_), key, least, value));
  }

  double has(const char* key) const {
    const auto found = plan_.params.find(key);
    return found == plan_.params.end() ? 0.0 : static_cast<double>(found->second);
  }

  // Share of link speed that stores to several peers at once reach, between measured shares for 1,
  // 3 and 7 peers.
  static double to_peers(double peers, double one, double three, double seven) {
    const double at = std::log2(std::max(peers, 1.0));
    const double at_three = std::log2(3.0), at_seven = std::log2(7.0);
    if (at <= at_three) return one + (three - one) * at / at_three;
    return three + (seven - three) * std::min(1.0, (at - at_three) / (at_seven - at_three));
  }
  double share(double peers) const {
    return to_peers(peers, costs_.to_one, costs_.to_three, costs_.to_seven);
  }
  // Time of a rank's bytes to, or from, `spread` peers in equal parts. A sender stores to `peers`
  // peers at once; reached(peers) is the share of a resource's speed that these stores reach.
  // Behind a switch all bytes use a single port; with a link per pair each part uses a separate
  // link. Peers use the same resources only if all ranks send.
  template <class Reached>
  double link_ns(double bytes, double spread, double peers, const Reached& reached) const {
    double most_ns = 0.0;
    for (const SharedResource& shared : shared_) {
      const double others = parts_.both_ways ? shared.pairs / shared.fan : 1.0;
      const double drawn = bytes / spread * others * std::min(shared.fan, spread);
      const double at_once = std::min(shared.fan, peers);
      most_ns = std::max(most_ns, drawn / (shared.gb_per_s * reached(at_once)));
    }
    return most_ns;
  }
  double link_ns(double bytes, double spread, double peers) const {
    return link_ns(bytes, spread, peers, [this](double at_once) { return share(at_once); });
  }
  // Time of the parts of the collective: with many senders and a single receiver, each sender
  // stores to a single peer.
  double link_ns(double bytes) const {
    return link_ns(bytes, std::max(parts_.sent, parts_.taken), parts_.sent);
  }
  // Share of link speed of escaped LL packets and messages if data flows in both directions.
  double both_ways_share() const { return parts_.both_ways ? costs_.both_ways : 1.0; }

  // LL kernels. A rank that only sends runs a call ahead of its receivers: in a sequence of calls
  // the first wait and the launch overlap as well.
  double lines_ns() const {
    const double ranks = plan_.request.ranks, line_bytes = param("line_bytes", 16);
    const bool one_shot = plan_.kernel == "one_shot", two_shot = plan_.kernel == "two_shot";
    const double all = units(parts_.bytes), work = two_shot ? std::ceil(all / ranks) : all;
    // The root of a reduce takes as much as each rank of an all_reduce.
    const double parts = std::max(parts_.sent, parts_.taken) * (two_shot ? 2 : 1);
    const double more_peers = std::max({parts_.sent, parts_.taken, 1.0}) - 1;
    double link = link_ns(parts * work * line_bytes);
    double first = costs_.line_hop_ns + more_peers * costs_.line_peer_ns;
    double step = one_shot ? costs_.one_shot_step_ns : (ranks - 1) * costs_.two_shot_step_ns;
    if (two_shot) first *= costs_.two_shot_hops;
    if (!one_shot && !two_shot) {
      first = costs_.line_hop_ns + hop_more_ns(more_peers);
      step = hop_step_ns();
      link /= hop_link_share();
    }
    // The launch hides the first half of the first step.
    const double at_once = param("blocks", 1) * param("threads", 1) * param("together", 1);
    const double turns = std::max(work / at_once - 0.5, 0.0) * step;
    if (parts_.both_ways) return first + overlapped(costs_.line_norm, {link, turns});
    return overlapped(costs_.line_norm,
                      {costs_.graph_ns + first - costs_.line_one_way_ns, link, turns}) -
           costs_.graph_ns;
  }

  // Time that direct_ll adds to the first LL packet, also for each further peer. In a short call
  // the cost grows as (peers - 1)^1.5; half of it counts if only the root has several peers.
  double hop_more_ns(double more_peers) const {
    if (has("short") == 0)
      return costs_.line_escape_ns + (parts_.both_ways ? more_peers * costs_.hop_peer_ns : 0.0);
    const double shown = parts_.both_ways ? 1.0 : 0.5;
    return costs_.short_hop_ns + shown * std::pow(more_peers, 1.5) * costs_.short_peer_ns;
  }
  // A thread's round: a load for each part sent and a wait for each part taken. A part that stays
  // takes a load and a store; a rank that only sends or only takes waits once.
  double hop_step_ns() const {
    const double ends =
        parts_.both_ways ? parts_.sent + parts_.taken : std::max(parts_.sent, parts_.taken);
    const double stays = !parts_.keeps ? 0.0 : parts_.both_ways ? 2.0 : 1.0;
    return costs_.hop_round_ns * (ends + stays);
  }
  // A root that sends and copies its own part slows down as if receiving as much.
  double hop_link_share() const {
    if (parts_.both_ways) return costs_.both_ways;
    const bool copies = parts_.keeps && parts_.sent >= parts_.taken;
    return copies ? 1.0 - (1.0 - costs_.both_ways) / parts_.sent : 1.0;
  }

  // Each rank forwards all received data; the last rank returns the sum if the root is the first
  // rank. The time of additions beyond the link's counts for the first piece only.
  double ll_chain_ns() const {
    const Request& request = plan_.request;
    const double all = units(parts_.bytes), line_bytes = param("line_bytes", 16);
    const bool sums = reduces(request.collective);
    const int hops = request.ranks - (sums && request.root == 0 ? 0 : 1);
    const double first = hops * (costs_.chain_hop_ns + (sums ? costs_.chain_sum_ns : 0.0));
    const double piece = has("piece_bytes") > 0 ? has("piece_bytes") : parts_.bytes;
    const double sum_gb_per_s = costs_.chain_sum_gb_per_s * param("blocks", 1);
    const double added = sums ? std::min(piece, parts_.bytes) / sum_gb_per_s : 0.0;
    return first + added + link_ns(all * line_bytes, 1.0, 1.0);
  }

  // A tiled call: bytes of an owner's part, bytes out of and into a rank, hops in sequence, and
  // turns: hops that a rank takes part in.
  struct Tiles {
    double part = 0.0, out = 0.0, in = 0.0;
    int hops = 1, turns = 1;
    bool sums = false, both_ways = true;
  };
  static Tiles tiles_of(Collective collective, const PeerParts& parts, double ranks) {
    const double others = ranks - 1;
    const auto shared = [&](double owners) {
      return 16.0 * std::ceil(units(parts.bytes) / owners);
    };
    Tiles made{.part = parts.bytes,
               .out = parts.sent * parts.bytes,
               .in = parts.taken * parts.bytes,
               .sums = reduces(collective),
               .both_ways = parts.both_ways};
    if (collective == Collective::broadcast) {
      made.part = shared(std::max(others, 1.0));
      made.out = made.in = others * made.part;
      made.hops = made.turns = ranks > 2 ? 2 : 1;
    } else if (collective == Collective::reduce ||
               (collective == Collective::all_reduce && ranks > 2)) {
      made.part = shared(ranks);
      made.out = (collective == Collective::reduce ? ranks : 2 * others) * made.part;
      made.in = 2 * others * made.part;
      made.hops = made.turns = 2;
    }
    return made;
  }

  // How far ranks drift apart, 0..1, so that several meet at a receiver. Fewer bytes in flight
  // reduce the drift (`in_flight` 0 = as many as the slots hold). Ranks that send at a bounded pace
  // do not drift.
  double drift(double in_flight) const {
    if (has("send_gb_per_s") > 0) return 0.0;
    const double bounded = in_flight > 0.0 ? std::min(1.0, in_flight / costs_.drift_bytes) : 1.0;
    return bounded * (has("shift") > 0 ? costs_.shift_share : 1.0);
  }
  double share_in_step(double peers) const {
    return to_peers(peers, costs_.to_one, costs_.in_step_to_three, costs_.in_step_to_seven);
  }
  double pushed_ns(double bytes, double spread, double peers, double in_flight) const {
    const double lost = drift(in_flight);
    const double by_link = link_ns(bytes, spread, peers, [&](double at_once) {
      const double by_themselves = share(at_once), in_step = share_in_step(at_once);
      return lost == 1.0 ? by_themselves : in_step + (by_themselves - in_step) * lost;
    });
    return in_flight > 0.0 ? std::max(by_link, bytes / in_flight * costs_.piece_ns) : by_link;
  }
  // In calls of several hops half of the bytes are parts, which senders push by bulk copies. The
  // second half are results, which owners store.
  double tile_link_ns(const Tiles& made, double bytes, double spread, double peers) const {
    const double results = made.hops > 1 ? bytes / 2 : 0.0, parts = bytes - results;
    const double parts_ns = pushed_ns(parts, spread, peers, has("in_flight_bytes"));
    const double results_ns = pushed_ns(results, spread, peers, 0.0);
    const double pace = has("send_gb_per_s");
    return std::max(parts_ns + results_ns, pace > 0 ? bytes / pace : 0.0);
  }

  double tiles_ns() const {
    if (plan_.params.contains("host_permille"))
      return plan_.request.ranks == 2 ? with_exchanged_part_ns() : with_host_part_ns();
    return tiles_ns_of(plan_.request.collective, parts_);
  }
  double tiles_ns_of(Collective collective, const PeerParts& parts) const {
    constexpr double kLeastUnits = 256.0;   // least units for a block
    constexpr double kFillBytes = 32768.0;  // a larger tile overlaps its own transfer
    const double ranks = plan_.request.ranks;
    const Tiles made = tiles_of(collective, parts, ranks);
    const double blocks =
        std::min(param("blocks", 1), std::max(1.0, std::ceil(units(made.part) / kLeastUnits)));
    const double share = std::ceil(units(made.part) / blocks);
    const double steps = std::ceil(share / param("tile_units", 1)), tile = share / steps;
    const double relayed = made.hops > 1 ? std::log2(ranks / 2) : 0.0;
    const double first = made.hops * costs_.tile_hop_ns +
                         std::log2(blocks) * costs_.tile_blocks_ns +
                         (made.both_ways ? costs_.tile_both_ns : 0.0) +
                         std::log2(ranks) * costs_.tile_ranks_ns + relayed * costs_.tile_relay_ns +
                         std::min(1.0, 16.0 * tile / kFillBytes) * costs_.tile_fill_ns;
    const double sums = made.sums ? made.in / (blocks * costs_.tile_sum_gb_per_s) : 0.0;
    const double spread = std::max(parts.sent, parts.taken);
    // The root's receives bound a reduce; each rank sends to the root alone.
    const double peers = collective == Collective::reduce ? 1.0 : spread;
    const double link = tile_link_ns(made, std::max(made.out, made.in), spread, peers);
    return first +
           overlapped(costs_.tile_norm, {link, sums, steps * made.turns * costs_.tile_step_ns});
  }

  // A call of two ranks whose end goes through host memory, chunk by chunk: nothing comes up while
  // the first chunk goes down.
  double with_exchanged_part_ns() const {
    const double part = parts_.bytes * param("host_permille", 0) / 1000.0;
    PeerParts rest = parts_;
    rest.bytes -= part;
    const double launch_ns = costs_.graph_ns + costs_.eager_ns;
    const double host_ns = (part + param("chunk_bytes", 1)) / costs_.exchange_gb_per_s;
    return launch_ns + std::max(tiles_ns_of(plan_.request.collective, rest), host_ns);
  }

  // An all_reduce with a part of its results through host memory: reduce_scatters of that part, an
  // eighth of that part first, then the rest over links while each rank's results go to the host
  // and back.
  double with_host_part_ns() const {
    const double ranks = plan_.request.ranks, bytes = parts_.bytes, chunk = param("chunk_bytes", 1);
    const double part = bytes * param("host_permille", 0) / 1000.0 / ranks, first = part / 8;
    const auto scatter_ns = [&](double own) {
      return tiles_ns_of(Collective::reduce_scatter, {own, ranks - 1, ranks - 1});
    };
    const double first_ns = scatter_ns(first), launch_ns = costs_.graph_ns + costs_.eager_ns;
    const double links_ns =
        first_ns + scatter_ns(part - first) + 2 * launch_ns +
        tiles_ns_of(Collective::all_reduce, {bytes - part * ranks, ranks - 1, ranks - 1});
    const double up_gb_per_s = std::min(costs_.gather_gb_per_s, costs_.gather_all_gb_per_s / ranks);
    const double host_ns = first_ns + costs_.gather_ns + part / chunk * costs_.gather_chunk_ns +
                           ((ranks - 1) * part + chunk) / up_gb_per_s;
    return std::max(links_ns, host_ns);
  }

  // A tiled reduce_scatter, then each piece of the parts takes a step round the ring, and the last
  // piece is copied out.
  double scatter_ring_ns() const {
    const double others = plan_.request.ranks - 1, part = parts_.bytes / (others + 1);
    return tiles_ns_of(Collective::reduce_scatter, {part, others, others}) + costs_.ring_ns +
           param("ring_steps", 1) * costs_.ring_step_ns +
           link_ns(others * part, 1.0, 1.0, [](double) { return 1.0; }) +
           param("piece_bytes", 1) / costs_.ring_take_gb_per_s;
  }

  // A piece waits for its first flag, behind half a chunk of all blocks; while a chunk is read, the
  // next is written. Stores of both directions delay the fences before flags.
  double chunks_ns() const {
    const double bytes = std::max(parts_.sent, parts_.taken) * parts_.bytes;
    const double pieces = std::max(1.0, has("pieces"));
    const double chunk = 16.0 * param("blocks", 1) * param("chunk_units", 1);
    const double first = costs_.line_hop_ns + (parts_.both_ways ? costs_.chunk_both_ns : 0.0) +
                         link_ns(std::min(chunk, bytes / pieces)) / 2;
    return pieces * first + link_ns(bytes);
  }

  double messages_ns() const {
    const bool by_packets = param("line_bytes", 0) > 0;
    const double bytes = std::max(parts_.sent, parts_.taken) * parts_.bytes * (by_packets ? 2 : 1);
    const double both = parts_.both_ways ? 1.0 : 0.0;
    const double blocks_ns = std::log2(param("blocks", 1)) * costs_.message_blocks_ns;
    return (by_packets ? both : 1.0) * blocks_ns +
           (by_packets ? both * costs_.message_lines_ns
                       : costs_.message_tiles_ns + both * costs_.message_both_ns) +
           link_ns(bytes) / both_ways_share();
  }

  const Plan& plan_;
  KernelCosts costs_;
  const PeerParts parts_;
  std::vector<SharedResource> shared_;
};

}  // namespace

bool is_kernel_call(const Plan& plan) {
  return Price::price_of(plan.kernel) != nullptr && plan.params.contains("blocks") &&
         plan.request.ranks > 1;
}

double kernel_call_ns(const Plan& plan, const Topology& topology, Launch launch) {
  return Price(plan, topology).ns(launch);
}

}  // namespace plait::sim
