// The choice depends on the request and the nodes alone, so that all ranks choose alike.
#include "comm/choose/multinode_choice.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "comm/choose/choose.hpp"
#include "planner/strategy.hpp"

namespace plait {
namespace {

/// A piece's latency is small compared with the transfer.
constexpr std::uint64_t kPieceBytes = 8ull << 20;
constexpr std::uint64_t kMostPieces = 16;

}  // namespace

bool serves_node_order(const Nodes& nodes, const Request& request) {
  int next = 0;
  for (const std::vector<int>& members : nodes.members)
    for (const int rank : members)
      if (rank != next++) return false;
  return nodes.count() == 2 && nodes.members[0].size() == nodes.members[1].size() &&
         request.collective == Collective::all_reduce && is_float(request.type) &&
         bytes_of(request.type) >= 4 &&
         (request.op == ReduceOp::sum || request.op == ReduceOp::prod);
}

int rails_of(const Nodes& nodes) {
  std::size_t least = nodes.members.front().size();
  for (const std::vector<int>& members : nodes.members) least = std::min(least, members.size());
  return static_cast<int>(least);
}

// An average of averages would be rounded twice, and only NCCL applies premul_sum's scalars. Other
// collectives cross nodes as often with NCCL's own algorithms; no gain was measured.
std::string why_library(const Nodes& nodes, const Request& request, bool bitwise) {
  if (bitwise && serves_node_order(nodes, request)) return {};
  if (request.collective != Collective::all_reduce)
    return "over nodes only all_reduces were measured to be faster";
  if (request.op == ReduceOp::avg || request.op == ReduceOp::premul_sum)
    return "over nodes NCCL does averages and scaled sums";
  const int rails = rails_of(nodes);
  if (rails == 1) return "a node has one rank";
  if (request.count < static_cast<std::uint64_t>(rails)) return "fewer elements than rails";
  if (!bitwise && request.count * bytes_of(request.type) < kLeastNodeBytes)
    return text("over nodes NCCL is faster below {} KiB", kLeastNodeBytes >> 10);
  return {};
}

CallOptions multinode_options(const Nodes& nodes, const Request& request, bool bitwise) {
  CallOptions options;
  options.strategy = "library";
  if (!why_library(nodes, request, bitwise).empty()) return options;
  options.strategy = "node_order";
  if (bitwise && serves_node_order(nodes, request)) return options;
  const std::uint64_t bytes = request.count * bytes_of(request.type);
  options.strategy = "multi_node";
  options.params["pieces"] =
      static_cast<std::int64_t>(std::clamp<std::uint64_t>(bytes / kPieceBytes, 1, kMostPieces));
  return options;
}

CallOptions multinode_algo(const std::string& algo) {
  CallOptions named = parse_algo("PLAIT_ALGO", algo);
  for (const Strategy* one : own_strategies())
    if (one->uses_library && one->info.name == named.strategy) return named;
  return {};
}

}  // namespace plait
