// Lowers one_shot, two_shot and chain calls to pushes, signals, waits and reductions. Pushes go in
// rotation (rank + 1, rank + 2, ...), so that no receiver is every sender's first; then each rank
// reads its inbox. In a chain each rank forwards in turn.
#include "plan/shots.hpp"

#include <deque>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "plait/plan.hpp"
#include "plan/blocks.hpp"

namespace plait {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

class Shooter {
 public:
  Shooter(Builder& builder, const Shot& shot) : b_(builder), shot_(shot), n_(builder.ranks()) {}

  int lane(int rank) { return b_.lane(rank, LaneKind::kernel, shot_.lane); }
  int peer(int rank, int step) const { return (rank + step) % n_; }
  /// The slot in `owner`'s inbox for data of `from`; results lie behind all parts.
  Region slot(int owner, int from, std::uint64_t bytes, bool is_result = false) const {
    if (is_result) return result_slot(shot_, owner, from, n_, bytes);
    const auto place = index(place_among_others(owner, from));
    return {Space::inbox, owner, shot_.slots_at + place * shot_.slot_bytes, bytes};
  }
  void push(const Region& dst, const Region& src) {
    b_.copy(lane(src.rank), dst, src);
    signal(src.rank, dst.rank);
  }
  void signal(int from, int owner, std::size_t piece = 0) {
    arrived_[{owner, from, piece}] = b_.signal(lane(from), owner);
  }
  void await(int owner, int from, std::size_t piece = 0) {
    b_.wait(lane(owner), arrived_.at({owner, from, piece}));
  }

  /// Waits for all parts, then reduces in rank order, together with the owner's own part.
  void reduce(const Region& dst, const Region& own) {
    const int owner = own.rank;
    std::vector<Region> srcs;
    for (int rank = 0; rank < n_; ++rank)
      srcs.push_back(rank == owner ? own : slot(owner, rank, own.bytes));
    for (int step = 1; step < n_; ++step) await(owner, peer(owner, n_ - step));
    b_.reduce(lane(owner), dst, srcs, true);
  }

 private:
  Builder& b_;
  const Shot& shot_;
  int n_;
  std::map<std::tuple<int, int, std::size_t>, Event> arrived_;  // by owner, sender and piece
};

}  // namespace

void write_one_shot(Builder& builder, const Shot& shot, Range part) {
  Shooter shooter(builder, shot);
  const Request& request = builder.request();
  const int n = builder.ranks();
  std::vector<DirectShape> shapes;
  for (int rank = 0; rank < n; ++rank) shapes.push_back(direct_shape(request, rank));
  const DirectShape& shape = shapes[0];
  const auto sent = [&](int from, int to) { return part_of(sent_block(request, from, to), part); };
  const auto received = [&](int from, int to) {
    return part_of(received_block(request, from, to), part);
  };
  const auto has_data = [&](int from, int to) {
    return sends(shape, n, from, to) && sent(from, to).bytes != 0;
  };
  for (const bool with_data : {false, true})
    for (int step = 1; step < n; ++step)
      for (int rank = 0; rank < n; ++rank) {
        const int owner = shooter.peer(rank, step);
        if (has_data(rank, owner) != with_data) continue;
        const Range block = sent(rank, owner);
        if (with_data)
          shooter.push(shooter.slot(owner, rank, block.bytes), builder.input(rank, block));
        else
          shooter.signal(rank, owner);
      }
  for (int rank = 0; rank < n; ++rank) {
    if (shapes[index(rank)].own_bytes != 0)
      builder.copy(shooter.lane(rank), builder.output(rank, received(rank, rank)),
                   builder.input(rank, sent(rank, rank)));
    const bool owns = (shape.owners >> rank & 1) != 0 && sent(rank, rank).bytes != 0;
    if (owns && shape.handling == kReduceParts)
      shooter.reduce(builder.output(rank, received(rank, rank)),
                     builder.input(rank, sent(rank, rank)));
    for (const bool with_data : {true, false})
      for (int step = 1; step < n; ++step) {
        const int from = shooter.peer(rank, step);
        if (has_data(from, rank) != with_data) continue;
        if (with_data && shape.handling == kReduceParts) continue;
        shooter.await(rank, from);
        if (with_data)
          builder.copy(shooter.lane(rank), builder.output(rank, received(from, rank)),
                       shooter.slot(rank, from, sent(from, rank).bytes));
      }
  }
}

namespace {

/// Writes a message along a chain, piece by piece, with a Shot per piece.
class Chain {
 public:
  using Piece = std::pair<Shot, Range>;

  Chain(Builder& builder, const std::vector<Piece>& pieces)
      : b_(builder),
        pieces_(pieces),
        shooter_(builder, pieces[0].first),
        n_(builder.ranks()),
        shape_(chain_shape(builder.request())),
        room_(index(n_), std::vector<Event>(pieces.size())),
        nearly_done_(index(n_), std::vector<Event>(index(n_))) {}

  /// A rank that gets no data from a peer gets a flag from that peer: every pair synchronises.
  void write_one() {
    for_all_pairs([&](int from, int to) {
      if (greets(shape_, n_, from, to)) shooter_.signal(from, to);
    });
    for (int rank = 0; rank < n_; ++rank) pass(at_place(rank), 0);
    if (returns(shape_)) take_returned(0);
    for_all_pairs([&](int rank, int from) {
      if (greets(shape_, n_, from, rank)) shooter_.await(rank, from);
    });
  }
  /// Pieces alternate between two slots. A reader signals its sender on entering the call, and
  /// again for each free slot. A rank that has finished all pieces but the last signals all ranks,
  /// and each rank leaves the call only after the signals of all ranks. Then the next call may use
  /// every slot except that of the last piece.
  void write_all() {
    for (int rank = 0; rank < n_; ++rank)
      if (receiver_of(shape_, n_, rank) >= 0) signal_room(rank, 1);
    for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
      for (int place = 0; place < n_; ++place) {
        const int rank = at_place(place);
        if (piece > 0 && receiver_of(shape_, n_, rank) >= 0)
          b_.wait(shooter_.lane(rank), room_[index(rank)][piece]);
        pass(rank, piece);
        if (!awaits_return(rank)) after(rank, piece);
      }
      if (returns(shape_) && piece > 0) take_and_signal(piece - 1);
    }
    if (returns(shape_)) take_and_signal(pieces_.size() - 1);
    for_all_pairs([&](int rank, int from) {
      b_.wait(shooter_.lane(rank), nearly_done_[index(from)][index(rank)]);
    });
  }

 private:
  int at_place(int place) const { return (shape_.first + place) % n_; }
  bool awaits_return(int rank) const { return returns(shape_) && rank == shape_.root; }
  template <class Body>
  void for_all_pairs(Body body) const {
    for (int step = 1; step < n_; ++step)
      for (int rank = 0; rank < n_; ++rank) body(rank, shooter_.peer(rank, step));
  }
  Region slot(int owner, std::size_t piece) const {
    const auto& [shot, part] = pieces_[piece];
    return {Space::inbox, owner, shot.slots_at, part.bytes};
  }
  /// The reader of `sender`'s data signals that a slot is free for `piece`.
  void signal_room(int sender, std::size_t piece) {
    if (piece >= pieces_.size()) return;
    const int reader = receiver_of(shape_, n_, sender);
    room_[index(sender)][piece] = b_.signal(shooter_.lane(reader), sender);
  }
  /// Signals that `rank` has finished a piece.
  void after(int rank, std::size_t piece) {
    for (int sender = 0; sender < n_; ++sender)
      if (receiver_of(shape_, n_, sender) == rank) signal_room(sender, piece + 2);
    if (piece + 2 != pieces_.size()) return;
    for (int step = 1; step < n_; ++step) {
      const int to = shooter_.peer(rank, step);
      nearly_done_[index(rank)][index(to)] = b_.signal(shooter_.lane(rank), to);
    }
  }
  void take_and_signal(std::size_t piece) {
    take_returned(piece);
    after(shape_.root, piece);
  }
  void take_returned(std::size_t piece) {
    const int root = shape_.root;
    shooter_.await(root, shape_.last, piece);
    b_.copy(shooter_.lane(root), b_.output(root, pieces_[piece].second), slot(root, piece));
  }
  void pass(int rank, std::size_t piece) {
    const Range part = pieces_[piece].second;
    const int next = next_in(shape_, n_, rank), before = before_in(shape_, n_, rank);
    const Region own = b_.input(rank, part), out = b_.output(rank, part);
    const Region here = before < 0 ? own : slot(rank, piece);
    if (before >= 0) shooter_.await(rank, before, piece);
    const auto put = [&](const Region& dst) {
      if (shape_.sums == 0 || before < 0) return b_.copy(shooter_.lane(rank), dst, here);
      std::vector<Region> in_rank_order{here, own};
      if (rank < before) std::swap(in_rank_order[0], in_rank_order[1]);
      b_.reduce(shooter_.lane(rank), dst, std::move(in_rank_order), next < 0);
    };
    const bool keep = keeps(shape_, rank);
    if (keep) put(out);
    const int to = receiver_of(shape_, n_, rank);
    if (to < 0) return;
    if (keep)
      b_.copy(shooter_.lane(rank), slot(to, piece), out);
    else
      put(slot(to, piece));
    shooter_.signal(rank, to, piece);
  }

  Builder& b_;
  const std::vector<Piece>& pieces_;
  Shooter shooter_;
  const int n_;
  const ChainShape shape_;
  std::vector<std::vector<Event>> room_;         // [sender][piece]
  std::vector<std::vector<Event>> nearly_done_;  // [from][to]
};

}  // namespace

void write_chain(Builder& builder, const std::vector<std::pair<Shot, Range>>& pieces) {
  if (pieces.empty()) return;
  Chain chain(builder, pieces);
  if (pieces.size() == 1)
    chain.write_one();
  else
    chain.write_all();
}

namespace {

/// Operations on the shards of a two_shot, or on a step's parts of the shards.
class Shards {
 public:
  Shards(Builder& builder, const Shot& shot, const std::vector<Range>& shards)
      : b_(builder), parts_(builder, shot), results_(builder, shot), shards_(shards) {}

  void push(int rank, int step) {
    const int owner = parts_.peer(rank, step);
    const Range& shard = shards_[index(owner)];
    if (shard.bytes != 0) parts_.push(parts_.slot(owner, rank, shard.bytes), b_.input(rank, shard));
  }
  void reduce(int owner, const Region& sum) {
    const Range& shard = shards_[index(owner)];
    if (shard.bytes != 0) parts_.reduce(sum, b_.input(owner, shard));
  }
  void push_result(int owner, int step) {
    const Range& shard = shards_[index(owner)];
    if (shard.bytes != 0)
      results_.push(results_.slot(results_.peer(owner, step), owner, shard.bytes, true),
                    b_.output(owner, shard));
  }
  void take_result(int rank, int step) {
    const int owner = results_.peer(rank, step);
    const Range& shard = shards_[index(owner)];
    if (shard.bytes == 0) return;
    results_.await(rank, owner);
    b_.copy(results_.lane(rank), b_.output(rank, shard),
            results_.slot(rank, owner, shard.bytes, true));
  }

 private:
  Builder& b_;
  Shooter parts_, results_;
  const std::vector<Range>& shards_;
};

}  // namespace

void write_shards(Builder& builder, const Shot& shot, const std::vector<Range>& shards,
                  const std::vector<Region>& sums) {
  Shards made(builder, shot, shards);
  const int n = builder.ranks();
  for (int step = 1; step < n; ++step)
    for (int rank = 0; rank < n; ++rank) made.push(rank, step);
  for (int owner = 0; owner < n; ++owner) made.reduce(owner, sums[index(owner)]);
}

void write_results(Builder& builder, const Shot& shot, const std::vector<Range>& shards) {
  Shards made(builder, shot, shards);
  const int n = builder.ranks();
  for (int step = 1; step < n; ++step)
    for (int owner = 0; owner < n; ++owner) made.push_result(owner, step);
  for (int rank = 0; rank < n; ++rank)
    for (int step = 1; step < n; ++step) made.take_result(rank, step);
}

void write_long_two_shot(Builder& builder, const Shot& shot,
                         const std::vector<std::vector<Range>>& parts, const ShotSteps& steps) {
  const int n = builder.ranks(), count = static_cast<int>(parts.size());
  std::vector<Shot> shots;
  for (int s = 0; s < count; ++s)
    shots.push_back(
        {shot.lane, shot.slots_at + index(s % steps.places) * steps.place_bytes, shot.slot_bytes});
  std::deque<Shards> made;  // refer to shots[s] and parts[s]
  for (int s = 0; s < count; ++s) made.emplace_back(builder, shots[index(s)], parts[index(s)]);
  Shooter shooter(builder, shot);
  std::map<std::tuple<int, int, int>, Event> free;  // by receiver, sender and step
  const auto await_room = [&](int rank, int s) {
    for (int step = 1; step < n; ++step)
      builder.wait(shooter.lane(rank), free.at({rank, shooter.peer(rank, step), s}));
  };
  const auto signal_room = [&](int rank, int s) {
    for (int step = 1; step < n; ++step) {
      const int to = shooter.peer(rank, step);
      free[{to, rank, s}] = builder.signal(shooter.lane(rank), to);
    }
  };
  for (int s = -2 * steps.ahead; s < count; ++s) {
    const int pushed = s + 2 * steps.ahead, reduced = s + steps.ahead;
    for (int rank = 0; rank < n && pushed < count; ++rank) {
      if (pushed >= steps.places) await_room(rank, pushed - steps.places);
      for (int step = 1; step < n; ++step) made[index(pushed)].push(rank, step);
    }
    for (int owner = 0; owner < n && reduced >= 0 && reduced < count; ++owner) {
      made[index(reduced)].reduce(owner,
                                  builder.output(owner, parts[index(reduced)][index(owner)]));
      for (int step = 1; step < n; ++step) made[index(reduced)].push_result(owner, step);
    }
    for (int rank = 0; rank < n && s >= 0; ++rank) {
      for (int step = 1; step < n; ++step) made[index(s)].take_result(rank, step);
      if (s + steps.places < count) signal_room(rank, s);
    }
  }
}

Region result_slot(const Shot& shot, int reader, int owner, int ranks, std::uint64_t bytes) {
  const auto place = index(place_among_others(reader, owner) + ranks - 1);
  return {Space::inbox, reader, shot.slots_at + place * shot.slot_bytes, bytes};
}

void write_results_at_root(Builder& builder, const Shot& shot, const std::vector<Range>& shards) {
  Shooter shooter(builder, shot);
  const int root = builder.request().root;
  for (int step = 1; step < builder.ranks(); ++step) {
    const int owner = shooter.peer(root, step);
    const Range& shard = shards[index(owner)];
    if (shard.bytes == 0) continue;
    shooter.signal(owner, root);
    shooter.await(root, owner);
    builder.copy(shooter.lane(root), builder.output(root, shard),
                 shooter.slot(root, owner, shard.bytes, true));
  }
}

}  // namespace plait
