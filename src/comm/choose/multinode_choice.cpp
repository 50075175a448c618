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

/// Over sockets pieces of 8 MiB, as measured (E-0392). Over NICs the number grows with the square
/// root of the message: more pieces overlap more, and each costs the same latency.
std::int64_t pieces_of(std::uint64_t bytes, bool over_sockets) {
  constexpr double kMostPieces = 16, kPieceMib = 8;
  const double mib = static_cast<double>(bytes) / (1 << 20);
  const double wanted = over_sockets ? std::floor(mib / kPieceMib) : std::round(std::sqrt(mib));
  return static_cast<std::int64_t>(std::clamp(wanted, 1.0, kMostPieces));
}

}  // namespace

namespace {

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
  const std::uint64_t over_nics = nodes.count() > 2 ? kLeastRdmaBytesOfMany : kLeastRdmaBytes;
  const std::uint64_t least = nodes.network_gb_per_s > 0.0 ? over_nics : kLeastNodeBytes;
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
  options.params["pieces"] =
      pieces_of(request.count * bytes_of(request.type), nodes.network_gb_per_s == 0.0);
  return options;
}

CallOptions multinode_algo(const std::string& algo) {
  CallOptions named = parse_algo("PLAIT_ALGO", algo);
  for (const Strategy* one : own_strategies())
    if (one->uses_library && one->info.name == named.strategy) return named;
  return {};
}

}  // namespace plait
