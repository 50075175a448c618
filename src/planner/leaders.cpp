// leaders: each socket reduces to its leader, the leaders of a node reduce-scatter, each leader
// all-reduces its shard with its counterparts on other nodes, leaders all-gather, and each
// broadcasts in its socket; in pieces. Source: the multi-node all-reduce of Micro 2021 (in one
// piece), after DPML (SC'17).
#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "planner/rails.hpp"

namespace plait {
namespace {

/// Ranks by socket of a node; the first rank of a socket is the leader.
using Sockets = std::vector<std::vector<int>>;

Sockets sockets_of(const Builder& builder, const std::vector<int>& node) {
  std::map<int, std::vector<int>> ranks;
  for (const int rank : node)
    ranks[builder.topology().devices[static_cast<std::size_t>(builder.device(rank))].numa]
        .push_back(rank);
  Sockets sockets;
  for (auto& [numa, members] : ranks) sockets.push_back(std::move(members));
  std::sort(sockets.begin(), sockets.end());
  return sockets;
}

void write(Builder& builder, const Params& params) {
  builder.sum_order(SumOrder::algorithm_order);
  Groups leaders;
  Sockets all;
  bool has_sockets = false;
  for (const std::vector<int>& node : ranks_of_nodes(builder)) {
    leaders.emplace_back();
    for (const std::vector<int>& socket : sockets_of(builder, node)) {
      leaders.back().push_back(socket.front());
      all.push_back(socket);
    }
    has_sockets |= leaders.back().size() > 1;
  }
  if (!has_sockets || all.size() == static_cast<std::size_t>(builder.ranks()))
    throw Error(ErrorCode::unsupported,
                "wanted a node with ranks on two NUMA nodes, and a NUMA node with two ranks");
  Rails rails(builder, params, leaders);
  const auto in_sockets = [&](const Portion& piece, bool sums) {
    const std::uint64_t count = piece.each * static_cast<std::uint64_t>(piece.shards);
    for (const std::vector<int>& socket : all) {
      if (socket.size() == 1 && !sums) continue;
      std::vector<Part> parts;
      for (const int rank : socket) {
        const bool leads = rank == socket.front();
        Part part{rank, rails.in(rank, piece), leads ? rails.out(rank, piece) : Region{}};
        if (!sums) part = {rank, leads ? rails.out(rank, piece) : Region{}, rails.out(rank, piece)};
        parts.push_back(part);
      }
      rails.calls().inside(sums ? Collective::reduce : Collective::broadcast, count, 0, parts);
    }
  };
  rails.all_reduce(
      params, true, [&](const Portion& piece) { in_sockets(piece, true); },
      [&](const Portion& piece) { in_sockets(piece, false); });
  rails.calls().write();
}

}  // namespace

const Strategy& leaders_strategy() {
  static const Strategy strategy{{"leaders",
                                  "sockets reduce to leaders, leaders all-reduce between nodes by "
                                  "a library, and broadcast",
                                  "Micro 2021, in pieces; DPML",
                                  {Collective::all_reduce}},
                                 piece_candidates,
                                 write,
                                 {"pieces", "mpi"},
                                 true};
  return strategy;
}

}  // namespace plait
