// node_order: sums in rank order over nodes, with the same bits as on a single node. If a partial
// sum can be stored without loss (all types but floats of 8 and 16 bits), node 0 sums its ranks,
// node 1 continues that sum, and so on; the last node has the result and broadcasts it. Each rail
// then carries a shard in each direction, for any number of nodes. Else all ranks' data go to the
// summing rank, at the cost of as many shards as a node has ranks.
#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "planner/rails.hpp"
#include "planner/transfer.hpp"

namespace plait {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// Node k works on piece i while node k - 1 works on piece i + 1. A rank's calls begin in turn, so a
// send waits for an earlier receive. On even rails partial sums go forward before a result comes
// back, on odd rails after the result. A link that rails share then carries both directions at
// once.
void go_on_from_node_to_node(Builder& builder, Rails& rails, const Params& params) {
  const double staged = 2.0 / rails.shards();  // partial sums of two pieces in turn
  const std::vector<Portion> pieces =
      rails.pieces(params, builder.request().count, rails.shards(), rails.times_of_sums() + staged);
  const int nodes = static_cast<int>(rails.groups().size()),
            count = static_cast<int>(pieces.size());
  rails.stage(pieces);
  std::vector<std::vector<int>> in_flight(pieces.size());  // by piece: calls in flight
  const auto shard_of = [&](int index) -> Rails::Where {
    return [&rails, &piece = pieces[at(index)]](int rank, int rail) {
      return rails.out(rank, piece, rail);
    };
  };
  const auto so_far_of = [&](int index) -> Rails::Where {
    const std::uint64_t bytes = pieces[at(index)].each * bytes_of(builder.request().type);
    return [&rails, index, bytes](int rank, int) { return rails.staged(rank, at(index), bytes); };
  };
  const auto sum = [&](int node, int index) {
    const Portion& piece = pieces[at(index)];
    for (const int call : std::exchange(in_flight[at(index)], {})) rails.calls().await(call);
    rails.sum_in(
        rails.groups()[at(node)], piece,
        [&](int rank, int part) { return rails.in(rank, piece, part); }, shard_of(index),
        node + 1 == nodes, node == 0 ? Rails::Where{} : so_far_of(index));
  };
  const auto carry = [&](int node, int index, int first_rail) {
    const Portion& piece = pieces[at(index)];
    const Rails::Where shard = shard_of(index);
    for (int rail = first_rail; rail < piece.shards; rail += 2)
      in_flight[at(index)].push_back(
          node + 1 < nodes
              ? rails.across_pair_on(rail, piece, node, node + 1, shard, so_far_of(index))
              : rails.across_on(rail, Collective::broadcast, piece, node, shard, shard));
  };
  for (int step = 0; step < count + nodes; ++step) {
    std::vector<int> busy;  // nodes with a piece in this step
    for (int node = 0; node < nodes; ++node)
      if (step - node >= 0 && step - node < count) busy.push_back(node);
    for (const int node : busy) sum(node, step - node);
    for (const int node : busy) carry(node, step - node, 0);
    std::reverse(busy.begin(), busy.end());
    for (const int node : busy) carry(node, step - node, 1);
    if (step < nodes) continue;
    const Portion& piece = pieces[at(step - nodes)];
    const Rails::Where shard = shard_of(step - nodes);
    for (const int call : in_flight[at(step - nodes)]) rails.calls().await(call);
    for (const std::vector<int>& group : rails.groups())
      if (group.size() > 1) rails.spread_in(group, piece, shard, shard);
  }
}

/// All ranks exchange data: each summing rank gets a shard from all ranks, and the result goes to
/// all or to the root.
class ShardExchange {
 public:
  ShardExchange(Builder& builder, Rails& rails, const Params& params)
      : builder_(builder),
        rails_(rails),
        request_(builder.request()),
        is_scatter_(request_.collective == Collective::reduce_scatter) {
    if (is_scatter_)
      pieces_ = {{0, request_.count, request_.ranks}};
    else
      pieces_ = rails.pieces(params, request_.count, request_.ranks, 4);
    rails.stage(pieces_, request_.ranks + 1);  // received data, and the sum
  }

  void write() {
    if (request_.count == 0) return;
    rails_.run(
        pieces_, [](const Portion&, std::size_t) {},
        [&](const Portion& piece, std::size_t index) { return collect(piece, index); },
        [&](const Portion& piece, std::size_t index) { sum(piece, index); });
  }

 private:
  std::uint64_t bytes(const Portion& piece) const { return piece.each * bytes_of(request_.type); }
  Region slot(int rank, std::size_t index, const Portion& piece, int slots, int first) const {
    const Region all =
        rails_.staged(rank, index, bytes(piece) * static_cast<std::uint64_t>(first + slots));
    return slice(all, {bytes(piece) * static_cast<std::uint64_t>(first),
                       bytes(piece) * static_cast<std::uint64_t>(slots)});
  }
  /// Whether a rank sums a piece of a single shard: the root, or all ranks of an all_reduce.
  bool sums(int rank) const {
    return request_.collective == Collective::all_reduce || rank == request_.root;
  }

  std::vector<int> collect(const Portion& piece, std::size_t index) {
    const bool shared = piece.shards > 1;
    const Collective how = shared                                      ? Collective::all_to_all
                           : request_.collective == Collective::reduce ? Collective::gather
                                                                       : Collective::all_gather;
    std::vector<Part> parts;
    for (int rank = 0; rank < request_.ranks; ++rank)
      parts.push_back(
          {rank, rails_.in(rank, piece),
           shared || sums(rank) ? slot(rank, index, piece, request_.ranks, 0) : Region{}});
    return {rails_.calls().across(how, piece.each, request_.root, parts)};
  }

  void sum(const Portion& piece, std::size_t index) {
    const bool shared = piece.shards > 1;
    std::vector<Part> parts;
    for (int rank = 0; rank < request_.ranks; ++rank) {
      if (!shared && !sums(rank)) continue;
      std::vector<Region> srcs;
      for (int from = 0; from < request_.ranks; ++from)
        srcs.push_back(slot(rank, index, piece, 1, from));
      const bool is_result = is_scatter_ || !shared;
      const Region dst = is_scatter_ ? builder_.output(rank, {0, bytes(piece)})
                         : shared    ? slot(rank, index, piece, 1, request_.ranks)
                                     : rails_.out(rank, piece);
      rails_.calls().sum(dst, srcs, true);
      if (is_result) continue;
      parts.push_back({rank, dst, sums(rank) ? rails_.out(rank, piece) : Region{}});
    }
    if (parts.empty()) return;
    const bool to_all = request_.collective == Collective::all_reduce;
    rails_.calls().await(rails_.calls().across(to_all ? Collective::all_gather : Collective::gather,
                                               piece.each, request_.root, parts));
  }

  Builder& builder_;
  Rails& rails_;
  const Request& request_;
  bool is_scatter_;
  std::vector<Portion> pieces_;
};

void write(Builder& builder, const Params& params) {
  const Request& request = builder.request();
  Rails rails(builder, params, ranks_of_nodes(builder));
  const bool is_widened = is_float(request.type) && bytes_of(request.type) < 4;
  const bool goes_on =
      request.collective == Collective::all_reduce && !is_widened && are_alike(rails.groups());
  const std::uint64_t room = scratch_limit(builder.topology());
  if (request.collective == Collective::reduce_scatter && message_bytes(request) > room / 3)
    throw Error(ErrorCode::unsupported,
                text("wanted at most {} bytes, found {}", room / 3, message_bytes(request)));
  if (goes_on)
    go_on_from_node_to_node(builder, rails, params);
  else
    ShardExchange(builder, rails, params).write();
  rails.calls().write();
}

}  // namespace

const Strategy& node_order_strategy() {
  static const Strategy strategy{
      {"node_order",
       "sums continue from node to node in rank order; if that rounds twice, all exchange",
       "plait's numerics contract over nodes",
       {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce}},
      piece_candidates,
      write,
      {"pieces", "mpi"},
      true};
  return strategy;
}

}  // namespace plait
