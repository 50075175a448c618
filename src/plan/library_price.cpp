// Prices every algorithm that a library has for a collective, by steps and bytes, and takes the
// fastest. A ring over nodes crosses at every member of a node: NCCL has a channel for each NIC.
#include "plan/library_price.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "plan/library_call.hpp"
#include "topo/link_index.hpp"
#include "topo/link_loads.hpp"
#include "topo/parameters.hpp"

namespace plait {
namespace {

constexpr double kUs = 1000.0;

/// NCCL's protocols, from tuning.cc: base latency, latency of a hop, and the share of a link's
/// bandwidth that payload reaches.
struct NcclProtocol {
  const char* name;
  double tree_base_ns, ring_base_ns;
  double tree_hop_ns, ring_hop_ns;  // in a node, over NVLink
  double tree_net_ns, ring_net_ns;  // between nodes
  double efficiency;
};
constexpr NcclProtocol kProtocols[] = {
    {"LL", 6.8 * kUs, 6.6 * kUs, 0.6 * kUs, 0.6 * kUs, 5.0 * kUs, 2.7 * kUs, 0.5},
    {"LL128", 14 * kUs, 14 * kUs, 1.25 * kUs, 1.9 * kUs, 8.5 * kUs, 4.0 * kUs, 0.92},
    {"Simple", 8.4 * kUs, 8.4 * kUs, 4.0 * kUs, 3.4 * kUs, 14 * kUs, 14 * kUs, 1.0},
};
constexpr double kTreeEfficiency = 0.92 * 0.85;
constexpr double kPatBaseNs = 8 * kUs, kPatHopNs = 14 * kUs, kPatEfficiency = 0.75;
constexpr double kSendBaseNs = 14 * kUs;  // grouped sends: a Simple hop

/// An algorithm of the library for a call.
struct LibraryAlgorithm {
  std::string name;
  double fixed_ns = 0.0;
  double bytes = 0.0;      // that each member sends, if all send the same
  double between = 1.0;    // share of `bytes` that a node sends to the next node
  bool both_ways = false;  // whether a member sends that much to each neighbour in the node
};

class Pricer {
 public:
  Pricer(const Plan& plan, const LibraryCall& call, const Topology& topology,
         const LinkIndex& index, LinkLoads& loads, const std::vector<int>& devices)
      : call_(call),
        request_(request_of(plan, call)),
        topology_(topology),
        index_(index),
        loads_(loads) {
    for (const int rank : call.ranks)
      devices_.push_back(devices.at(static_cast<std::size_t>(rank)));
    for (int member = 0; member < members(); ++member) nodes_[node_of(member)].push_back(member);
    size_ = static_cast<double>(request_.count * bytes_of(request_.type));
  }

  LibraryPrice price() const {
    LibraryPrice best;
    best.alone_ns = std::numeric_limits<double>::infinity();
    for (const LibraryAlgorithm& algorithm :
         call_.library == Library::nccl ? of_nccl() : of_mpi()) {
      LibraryPrice one{algorithm.name, algorithm.fixed_ns, sendings(algorithm), 0.0};
      one.alone_ns = one.fixed_ns + flow_ns(one.sendings);
      if (one.alone_ns < best.alone_ns) best = std::move(one);
    }
    return best;
  }

 private:
  int members() const { return static_cast<int>(devices_.size()); }
  int node_of(int member) const {
    return topology_.devices[static_cast<std::size_t>(device(member))].node;
  }
  int device(int member) const { return devices_[static_cast<std::size_t>(member)]; }
  double doublings() const { return std::ceil(std::log2(static_cast<double>(members()))); }

  bool is_rooted_star() const {
    return request_.collective == Collective::gather ||
           request_.collective == Collective::scatter || request_.collective == Collective::copy ||
           request_.collective == Collective::send_recv;
  }

  /// Bytes that each member sends in a ring.
  double ring_bytes() const {
    const double n = members();
    switch (request_.collective) {
      case Collective::all_reduce: return 2 * (n - 1) / n * size_;
      case Collective::reduce_scatter:
      case Collective::all_gather:
      case Collective::all_to_all: return (n - 1) * size_;
      default: return size_;
    }
  }

  std::vector<LibraryAlgorithm> of_nccl() const {
    const double n = members(), nodes = static_cast<double>(nodes_.size());
    const Collective what = request_.collective;
    if (is_rooted_star() || what == Collective::all_to_all)
      return {{"send Simple", kProtocols[2].ring_base_ns + kSendBaseNs, ring_bytes()}};
    const bool both = what == Collective::all_reduce;
    const double steps = both ? 2 * (n - 1) : n - 1;
    const double between = nodes > 1 ? (both ? 2 * (nodes - 1) : nodes - 1) : 0;
    std::vector<LibraryAlgorithm> algorithms;
    for (const NcclProtocol& p : kProtocols) {
      const double ring_ns =
          p.ring_base_ns + (steps - between) * p.ring_hop_ns + between * p.ring_net_ns;
      algorithms.push_back({std::string("ring ") + p.name, ring_ns, ring_bytes() / p.efficiency});
      if (!both) continue;
      const double tree_ns =
          p.tree_base_ns + 2 * ((n / nodes - 1) * p.tree_hop_ns + std::log2(nodes) * p.tree_net_ns);
      // Two trees of half the message each, chains in a node: a member sends both halves up to one
      // neighbour and down to the other. A node sends to a parent and two children; two nodes send
      // to each other.
      algorithms.push_back({std::string("tree ") + p.name, tree_ns,
                            size_ / (p.efficiency * kTreeEfficiency), nodes > 2 ? 2.0 : 1.0, true});
    }
    const bool has_pat =
        n == nodes && (what == Collective::all_gather || what == Collective::reduce_scatter);
    if (has_pat)
      algorithms.push_back(
          {"PAT Simple", kPatBaseNs + std::log2(nodes) * kPatHopNs, ring_bytes() / kPatEfficiency});
    return algorithms;
  }

  std::vector<LibraryAlgorithm> of_mpi() const {
    const double n = members();
    const double call_ns = parameter(topology_, "mpi_call_ns");
    const double hop_ns =
        parameter(topology_, "net_latency_ns") + parameter(topology_, "net_post_ns") + call_ns;
    const bool sums = reduces(request_.collective);
    const double launch_ns = parameter(topology_, "kernel_launch_ns");
    const double summed_ns = 3 * size_ / parameter(topology_, "gpu_reduce_gb_per_s");
    if (is_rooted_star()) return {{"send", call_ns + hop_ns, size_}};
    if (request_.collective == Collective::all_to_all)
      return {{"pairwise", call_ns + (n - 1) * hop_ns, ring_bytes()}};
    if (request_.collective != Collective::all_reduce) {
      const double add_ns = sums ? doublings() * launch_ns + (n - 1) / n * summed_ns : 0.0;
      return {{"halving", call_ns + doublings() * hop_ns + add_ns, ring_bytes()}};
    }
    const double step_ns = hop_ns + launch_ns;
    return {
        {"recursive doubling", call_ns + doublings() * (step_ns + summed_ns), doublings() * size_},
        {"reduce-scatter and all-gather",
         call_ns + doublings() * (step_ns + hop_ns) + (n - 1) / n * summed_ns, ring_bytes()}};
  }

  std::vector<Sending> sendings(const LibraryAlgorithm& algorithm) const {
    const double bytes = algorithm.bytes;
    std::vector<Sending> made;
    const int n = members(), root = request_.root;
    const Collective what = request_.collective;
    for (int member = 0; member < n; ++member) {
      if (what == Collective::copy && member == root) made.push_back({root, request_.peer, bytes});
      if (what == Collective::send_recv) made.push_back({member, (member + 1) % n, bytes});
      if (what == Collective::gather && member != root) made.push_back({member, root, bytes});
      if (what == Collective::scatter && member != root) made.push_back({root, member, bytes});
      if (what == Collective::all_to_all)
        for (int other = 0; other < n; ++other)
          if (other != member) made.push_back({member, other, size_ * bytes / ring_bytes()});
      if (!is_rooted_star() && what != Collective::all_to_all) go_round(made, member, algorithm);
    }
    return made;
  }

  /// Adds a member's sends to the next member of the node, and to the counterpart in the next node.
  void go_round(std::vector<Sending>& made, int member, const LibraryAlgorithm& algorithm) const {
    const double bytes = algorithm.bytes;
    auto here = nodes_.find(node_of(member));
    const std::vector<int>& mine = here->second;
    const auto place =
        static_cast<std::size_t>(std::find(mine.begin(), mine.end(), member) - mine.begin());
    if (mine.size() > 1) made.push_back({member, mine[(place + 1) % mine.size()], bytes});
    if (mine.size() > 2 && algorithm.both_ways)
      made.push_back({member, mine[(place + mine.size() - 1) % mine.size()], bytes});
    if (nodes_.size() < 2) return;
    const std::vector<int>& others = (++here == nodes_.end() ? nodes_.begin() : here)->second;
    // A broadcast's bytes do not come back to the root's node, and a reduction's do not leave it.
    const int home = node_of(request_.root);
    const Collective what = request_.collective;
    if (what == Collective::broadcast && node_of(others.front()) == home) return;
    if (what == Collective::reduce && node_of(member) == home) return;
    made.push_back({member, others[place % others.size()],
                    algorithm.between * bytes / static_cast<double>(mine.size())});
  }

  double flow_ns(const std::vector<Sending>& sendings) const {
    for (const Sending& one : sendings)
      if (const int link = index_.between(device(one.from), device(one.to)); link >= 0)
        loads_.add(link, one.bytes);
      else
        for (const int hop : links_between(topology_, device(one.from), device(one.to)))
          loads_.add(hop, one.bytes);
    const double ns = loads_.most_ns();
    loads_.clear();
    return ns;
  }

  const LibraryCall& call_;
  Request request_;
  const Topology& topology_;
  const LinkIndex& index_;
  LinkLoads& loads_;
  std::vector<int> devices_;               // by member
  std::map<int, std::vector<int>> nodes_;  // members of each
  double size_ = 0.0;
};

}  // namespace

std::vector<int> links_between(const Topology& topology, int src_device, int dst_device) {
  if (src_device == dst_device) return {};
  const std::vector<Path> paths = paths_between(topology, src_device, dst_device);
  return paths.empty() ? std::vector<int>{} : paths.front().links;
}

LibraryPrices prices_of(const Plan& plan, const Topology& topology,
                        const std::vector<int>& devices) {
  LibraryPrices prices;
  if (plan.calls.empty()) return prices;
  prices.reserve(plan.calls.size());
  const LinkIndex index(topology);
  LinkLoads loads(topology);
  std::map<LibraryCall, std::shared_ptr<const LibraryPrice>>
      cache;  // pieces of equal size are equal calls
  for (const LibraryCall& call : plan.calls) {
    std::shared_ptr<const LibraryPrice>& price = cache[call];
    if (!price)
      price = std::make_shared<LibraryPrice>(
          Pricer(plan, call, topology, index, loads, devices).price());
    prices.push_back(price);
  }
  return prices;
}

}  // namespace plait
