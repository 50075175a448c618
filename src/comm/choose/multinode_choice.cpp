// The choice depends on the request and the nodes alone, so that all ranks choose alike.
#include "comm/choose/multinode_choice.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/text.hpp"
#include "comm/choose/choose.hpp"
#include "planner/strategy.hpp"

namespace plait {
namespace {

/// Returns the speed of a node's NICs, in NICs of 100 Gb/s.
double nics_of(const Nodes& nodes) { return nodes.network_gb_per_s / 12.5; }

/// Over sockets pieces of 8 MiB, as measured (E-0392). Over NICs the number grows with the root of
/// the time between nodes: more pieces overlap more, and each costs two calls of engines and one of
/// NCCL (E-0490).
std::int64_t pieces_of(std::uint64_t bytes, const Nodes& nodes) {
  constexpr double kMostPieces = 16, kPieceMib = 8;
  const double mib = static_cast<double>(bytes) / (1 << 20);
  const double wanted = nodes.network_gb_per_s == 0.0
                            ? std::floor(mib / kPieceMib)
                            : std::round(std::sqrt(mib / std::max(nics_of(nodes), 1.0)));
  return static_cast<std::int64_t>(std::clamp(wanted, 1.0, kMostPieces));
}

/// Returns the least message of plait over NICs, in bytes. Faster NICs leave NCCL's one kernel
/// ahead of steps in turn up to larger messages; between more than two nodes NCCL's trees send
/// twice.
std::uint64_t least_rdma_bytes(const Nodes& nodes) {
  const double nics = nics_of(nodes);
  const double mib = nodes.count() == 2 ? 2 * nics * nics : nics > 8 ? nics * nics : 2 * nics;
  return std::max(nodes.count() > 2 ? kLeastRdmaBytesOfMany : kLeastRdmaBytes,
                  static_cast<std::uint64_t>(mib * (1 << 20)));
}

bool are_numbered_in_turn(const Nodes& nodes) {
  int next = 0;
  for (const std::vector<int>& members : nodes.members)
    for (const int rank : members)
      if (rank != next++) return false;
  return true;
}

}  // namespace

bool serves_node_order(const Nodes& nodes, const Request& request) {
  if (!are_numbered_in_turn(nodes)) return false;
  return nodes.count() == 2 && nodes.members[0].size() == nodes.members[1].size() &&
         request.collective == Collective::all_reduce && is_float(request.type) &&
         bytes_of(request.type) >= 4 &&
         (request.op == ReduceOp::sum || request.op == ReduceOp::prod);
}

bool serves_node_tree(const Nodes& nodes, const Request& request, SumOrder order) {
  const bool holds_sums = order == SumOrder::tree_rounded || !is_widened(request.type);
  return is_tree(order) && are_numbered_in_turn(nodes) && nodes.count() == 2 &&
         nodes.members[0].size() == nodes.members[1].size() && nodes.members[0].size() > 1 &&
         std::has_single_bit(nodes.members[0].size()) &&
         request.collective == Collective::all_reduce && is_float(request.type) &&
         bytes_of(request.type) >= 2 && holds_sums &&
         (request.op == ReduceOp::sum || request.op == ReduceOp::prod);
}

int rails_of(const Nodes& nodes) {
  std::size_t least = nodes.members.front().size();
  for (const std::vector<int>& members : nodes.members) least = std::min(least, members.size());
  return static_cast<int>(least);
}

// An average of averages would be rounded twice, and only NCCL applies premul_sum's scalars. Other
// collectives cross nodes as often with NCCL's own algorithms; no gain was measured.
std::string why_library(const Nodes& nodes, const Request& request, bool bitwise, SumOrder order) {
  if (serves_node_tree(nodes, request, order)) return {};
  if (bitwise && !is_tree(order) && serves_node_order(nodes, request)) return {};
  if (request.collective != Collective::all_reduce)
    return "over nodes only all_reduces were measured to be faster";
  if (request.op == ReduceOp::avg || request.op == ReduceOp::premul_sum)
    return "over nodes NCCL does averages and scaled sums";
  const int rails = rails_of(nodes);
  if (rails == 1) return "a node has one rank";
  if (request.count < static_cast<std::uint64_t>(rails)) return "fewer elements than rails";
  if (bitwise) return {};
  if (nodes.network_gb_per_s > kMostNetworkGbPerS)
    return text("NCCL is predicted to be faster over NICs of {} GB/s a node",
                nodes.network_gb_per_s);
  const std::uint64_t least =
      nodes.network_gb_per_s > 0.0 ? least_rdma_bytes(nodes) : kLeastNodeBytes;
  if (request.count * bytes_of(request.type) < least)
    return text("over nodes NCCL is faster below {} KiB", least >> 10);
  return {};
}

CallOptions multinode_options(const Nodes& nodes, const Request& request, bool bitwise,
                              SumOrder order) {
  CallOptions options;
  options.strategy = "library";
  if (!why_library(nodes, request, bitwise, order).empty()) return options;
  options.strategy = "node_order";
  if (bitwise && !is_tree(order) && serves_node_order(nodes, request)) return options;
  options.strategy = "multi_node";
  options.params["pieces"] = pieces_of(request.count * bytes_of(request.type), nodes);
  return options;
}

CallOptions multinode_algo(const std::string& algo) {
  CallOptions named = parse_algo("PLAIT_ALGO", algo);
  for (const Strategy* one : own_strategies())
    if (one->uses_library && one->info.name == named.strategy) return named;
  return {};
}

}  // namespace plait
