// multi_node: the ranks of a node reduce-scatter or scatter a message among themselves, each rail
// carries a shard between nodes by the library, and nodes gather the shards; in pieces, so that a
// piece is between nodes while the next is inside nodes. blocks.cpp does collectives of blocks.
// Source: UCC's split-rail all-reduce and Träff's full-lane collectives, with the pipelining
// between and in nodes that Micro 2021 left out.
#include "planner/rails.hpp"

namespace plait {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// The root's node scatters shards, each rail broadcasts a shard, nodes gather.
void broadcast(Builder& builder, Rails& rails, const Params& params) {
  const GroupPosition root = group_position_of(rails.groups(), builder.request().root);
  const std::vector<int>& home = rails.groups()[at(root.group)];
  rails.run(
      rails.pieces(params, builder.request().count, rails.shards(), 2),
      [&](const Portion& piece, std::size_t) {
        rails.deal_in(
            home, root.place, piece,
            [&](int rank, int shard) { return rails.in(rank, piece, shard); },
            [&](int rank, int shard) { return rails.out(rank, piece, shard); }, false);
      },
      [&](const Portion& piece, std::size_t) {
        const Rails::Where shard = [&](int rank, int rail) { return rails.out(rank, piece, rail); };
        return rails.across(Collective::broadcast, piece, root.group, shard, shard);
      },
      [&](const Portion& piece, std::size_t) {
        const Rails::Where shard = [&](int rank, int place) {
          return rails.out(rank, piece, place);
        };
        for (const std::vector<int>& group : rails.groups())
          if (group.size() > 1) rails.spread_in(group, piece, shard, shard);
      });
}

/// Nodes sum, each rail reduces to the root's node, and that node's carriers send shards to the
/// root.
void reduce(Builder& builder, Rails& rails, const Params& params) {
  const GroupPosition root = group_position_of(rails.groups(), builder.request().root);
  const std::vector<int>& home = rails.groups()[at(root.group)];
  const std::vector<Portion> pieces =
      rails.pieces(params, builder.request().count, rails.shards(), 4);
  rails.stage(pieces);
  const auto staged = [&](const Portion& piece, std::size_t index) -> Rails::Where {
    const std::uint64_t bytes = piece.each * bytes_of(builder.request().type);
    return [&rails, index, bytes](int rank, int) { return rails.staged(rank, index, bytes); };
  };
  rails.run(
      pieces,
      [&](const Portion& piece, std::size_t index) {
        for (const std::vector<int>& group : rails.groups())
          rails.sum_in(
              group, piece, [&](int rank, int shard) { return rails.in(rank, piece, shard); },
              staged(piece, index));
      },
      [&](const Portion& piece, std::size_t index) {
        return rails.across(Collective::reduce, piece, root.group, staged(piece, index),
                            staged(piece, index), !rails.averages());
      },
      [&](const Portion& piece, std::size_t index) {
        for (int rail = 0; rails.averages() && rail < piece.shards; ++rail)
          rails.divide(staged(piece, index)(home[at(rail)], rail));
        rails.deal_in(
            home, root.place, piece, staged(piece, index),
            [&](int rank, int shard) { return rails.out(rank, piece, shard); }, true);
      });
}

/// Copies a message between two ranks: in a node directly, between nodes on all rails at once.
void copy(Builder& builder, Rails& rails, const Params& params) {
  const Request& request = builder.request();
  const GroupPosition root = group_position_of(rails.groups(), request.root);
  const GroupPosition peer = group_position_of(rails.groups(), request.peer);
  const std::vector<Portion> pieces = rails.pieces(params, request.count, rails.shards(), 4);
  const std::vector<int>& home = rails.groups()[at(root.group)];
  const std::vector<int>& there = rails.groups()[at(peer.group)];
  const Region all = builder.input(request.root, whole_range(request));
  const Region dst = builder.output(request.peer, whole_range(request));
  if (request.root == request.peer)
    return rails.calls().inside(Collective::copy, request.count, 0, {{request.root, all, dst}});
  if (root.group == peer.group)
    return rails.calls().inside(Collective::copy, request.count, 0,
                                {{request.root, all}, {request.peer, {}, dst}}, false, 1);
  rails.stage(pieces);
  const auto staged = [&](const Portion& piece, std::size_t index) -> Rails::Where {
    const std::uint64_t bytes = piece.each * bytes_of(request.type);
    return [&rails, index, bytes](int rank, int) { return rails.staged(rank, index, bytes); };
  };
  rails.run(
      pieces,
      [&](const Portion& piece, std::size_t index) {
        rails.deal_in(
            home, root.place, piece,
            [&](int rank, int shard) { return rails.in(rank, piece, shard); }, staged(piece, index),
            false);
      },
      [&](const Portion& piece, std::size_t index) {
        return rails.across_pair(piece, root.group, peer.group, staged(piece, index),
                                 staged(piece, index));
      },
      [&](const Portion& piece, std::size_t index) {
        rails.deal_in(
            there, peer.place, piece, staged(piece, index),
            [&](int rank, int shard) { return rails.out(rank, piece, shard); }, true);
      });
}

void write(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  if (reduces(request.collective)) builder.sum_order(SumOrder::algorithm_order);
  Rails rails(builder, params, ranks_of_nodes(builder));
  const auto nothing = [](const Portion&) {};
  switch (request.collective) {
    case Collective::all_reduce: rails.all_reduce(params, false, nothing, nothing); break;
    case Collective::broadcast: broadcast(builder, rails, params); break;
    case Collective::reduce: reduce(builder, rails, params); break;
    case Collective::copy: copy(builder, rails, params); break;
    default: write_blocks(builder, rails, params);
  }
  rails.calls().write();
}

}  // namespace

const Strategy& multi_node_strategy() {
  static const Strategy strategy{
      {"multi_node",
       "nodes reduce or scatter, rails carry shards between nodes by a library",
       "UCC's split rail, full-lane collectives; Micro 2021 for the pieces",
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
        Collective::broadcast, Collective::reduce, Collective::all_to_all, Collective::gather,
        Collective::scatter, Collective::send_recv, Collective::copy}},
      piece_candidates,
      write,
      {"pieces", "rails", "mpi"},
      true};
  return strategy;
}

}  // namespace plait
