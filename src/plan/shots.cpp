// A launch at a time: what is pushed, in the rotation, so that no rank is everybody's first; then
// what every rank makes of its inbox.
#include "plan/shots.hpp"

#include <memory>

#include "plait/plan.hpp"
#include "plan/blocks.hpp"

namespace plait {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

class Shooter {
 public:
  Shooter(Builder& builder, const Shot& shot)
      : b_(builder),
        shot_(shot),
        n_(builder.ranks()),
        arrived_(index(n_), std::vector<Event>(index(n_))) {}

  int lane(int rank) { return b_.lane(rank, LaneKind::kernel, shot_.lane); }
  int peer(int rank, int step) const { return (rank + step) % n_; }
  /// What `from` sends to `owner`; results lie behind all parts.
  Region slot(int owner, int from, std::uint64_t bytes, bool is_result = false) const {
    const int place = place_among_others(owner, from) + (is_result ? n_ - 1 : 0);
    return {Space::inbox, owner, shot_.slots_at + index(place) * shot_.slot_bytes, bytes};
  }
  void push(const Region& dst, const Region& src) {
    b_.copy(lane(src.rank), dst, src);
    tell(src.rank, dst.rank);
  }
  void tell(int from, int owner) {
    arrived_[index(owner)][index(from)] = b_.signal(lane(from), owner);
  }
  void await(int owner, int from) { b_.wait(lane(owner), arrived_[index(owner)][index(from)]); }

  /// What came, in rank order, with the owner's own.
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
  std::vector<std::vector<Event>> arrived_;  // [owner][from]
};

}  // namespace

void write_one_shot(Builder& builder, const Shot& shot, Range part) {
  Shooter shooter(builder, shot);
  const Request& request = builder.request();
  const int n = builder.ranks();
  std::vector<HopShape> shapes;
  for (int rank = 0; rank < n; ++rank) shapes.push_back(hop_shape(request, rank));
  const HopShape& shape = shapes[0];
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
          shooter.tell(rank, owner);
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

/// One piece along a chain.
class ChainShot {
 public:
  ChainShot(Builder& builder, const Shot& shot, Range part)
      : b_(builder),
        shooter_(builder, shot),
        shot_(shot),
        part_(part),
        n_(builder.ranks()),
        shape_(chain_piece(chain_shape(builder.request()), part.offset, part.bytes)) {}

  bool is_deferred() const { return shape_.deferred != 0; }
  void greet() {
    for (int step = 1; step < n_; ++step)
      for (int rank = 0; rank < n_; ++rank) {
        const int to = shooter_.peer(rank, step);
        if (greets(shape_, n_, rank, to)) shooter_.tell(rank, to);
      }
  }
  void pass() {
    for (int place = 0; place < n_; ++place) pass((shape_.first + place) % n_);
  }
  void take_returned() {
    if (!returns(shape_)) return;
    shooter_.await(shape_.root, shape_.last);
    b_.copy(shooter_.lane(shape_.root), b_.output(shape_.root, part_), slot(shape_.root));
  }
  void await_greetings() {
    for (int rank = 0; rank < n_; ++rank)
      for (int step = 1; step < n_; ++step) {
        const int from = shooter_.peer(rank, step);
        if (greets(shape_, n_, from, rank)) shooter_.await(rank, from);
      }
  }

 private:
  Region slot(int owner) const { return {Space::inbox, owner, shot_.slots_at, part_.bytes}; }
  void pass(int rank) {
    const int next = next_in(shape_, n_, rank), before = before_in(shape_, n_, rank);
    const Region own = b_.input(rank, part_), out = b_.output(rank, part_);
    const Region here = before < 0 ? own : slot(rank);
    if (before >= 0) shooter_.await(rank, before);
    const auto put = [&](const Region& dst) {
      if (shape_.sums != 0 && before >= 0)
        b_.reduce(shooter_.lane(rank), dst, {here, own}, next < 0);
      else
        b_.copy(shooter_.lane(rank), dst, here);
    };
    const bool keep = keeps(shape_, rank);
    if (keep) put(out);
    const int to = next >= 0 ? next : returns(shape_) ? shape_.root : -1;
    if (to < 0) return;
    if (keep)
      b_.copy(shooter_.lane(rank), slot(to), out);
    else
      put(slot(to));
    shooter_.tell(rank, to);
  }

  Builder& b_;
  Shooter shooter_;
  const Shot shot_;
  const Range part_;
  const int n_;
  const ChainShape shape_;
};

}  // namespace

void write_chain(Builder& builder, const std::vector<std::pair<Shot, Range>>& pieces) {
  std::unique_ptr<ChainShot> before;  // whose sums have not been taken back
  for (const auto& [shot, part] : pieces) {
    auto piece = std::make_unique<ChainShot>(builder, shot, part);
    piece->greet();
    piece->pass();
    if (before != nullptr) before->take_returned();
    before.reset();
    if (!piece->is_deferred()) piece->take_returned();
    piece->await_greetings();
    if (piece->is_deferred()) before = std::move(piece);
  }
}

void write_shards(Builder& builder, const Shot& shot, const std::vector<Range>& shards,
                  const std::vector<Region>& sums) {
  Shooter shooter(builder, shot);
  const int n = builder.ranks();
  for (int step = 1; step < n; ++step)
    for (int rank = 0; rank < n; ++rank) {
      const int owner = shooter.peer(rank, step);
      const Range& shard = shards[index(owner)];
      if (shard.bytes != 0)
        shooter.push(shooter.slot(owner, rank, shard.bytes), builder.input(rank, shard));
    }
  for (int owner = 0; owner < n; ++owner)
    if (shards[index(owner)].bytes != 0)
      shooter.reduce(sums[index(owner)], builder.input(owner, shards[index(owner)]));
}

void write_results(Builder& builder, const Shot& shot, const std::vector<Range>& shards) {
  Shooter shooter(builder, shot);
  const int n = builder.ranks();
  for (int step = 1; step < n; ++step)
    for (int owner = 0; owner < n; ++owner) {
      const Range& shard = shards[index(owner)];
      if (shard.bytes != 0)
        shooter.push(shooter.slot(shooter.peer(owner, step), owner, shard.bytes, true),
                     builder.output(owner, shard));
    }
  for (int rank = 0; rank < n; ++rank)
    for (int step = 1; step < n; ++step) {
      const int owner = shooter.peer(rank, step);
      const Range& shard = shards[index(owner)];
      if (shard.bytes == 0) continue;
      shooter.await(rank, owner);
      builder.copy(shooter.lane(rank), builder.output(rank, shard),
                   shooter.slot(rank, owner, shard.bytes, true));
    }
}

}  // namespace plait
