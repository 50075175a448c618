// Lowers exchanges to lanes (see exchange.hpp). Reductions: ranks push contributions to a shard's
// owner, the owner reduces, ranks pull the result. Broadcasts: the root pushes shards to owners,
// ranks pull shards from the owners. No rank accesses a peer's input or output.
#include "planner/exchange.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "plan/blocks.hpp"
#include "planner/transfer.hpp"

namespace plait {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

// The shard of the message that a rank owns: pieces, slots of pieces, and readers.
struct Shard {
  std::vector<Range> pieces;
  std::vector<std::vector<Region>> inbound;     // [sender][slot]
  std::vector<Region> result;                   // [slot]; empty if no peer reads the shard
  std::vector<std::vector<Event>> result_read;  // [slot]: events after which the slot may be filled
  std::vector<int> readers;                     // ranks that read the shard, in rotation
};

class ExchangeWriter {
 public:
  ExchangeWriter(Builder& builder, const ExchangeOptions& exchange)
      : b_(builder), x_(exchange), n_(builder.ranks()), c_(builder.request().collective) {}
  void write() {
    if (x_.range.bytes == 0) return;
    if (reduces(c_)) return write_reduction();
    write_broadcast();
  }

 private:
  int home(int rank) {
    return b_.lane(rank, reduces(c_) ? LaneKind::kernel : LaneKind::copy_engine,
                   x_.name + (reduces(c_) ? "reduce" : "home"));
  }
  MoverOptions options(const char* part, bool pull, std::uint64_t most_bytes) {
    return {x_.name + part,
            pull,
            x_.throttle,
            most_bytes,
            x_.ring_bytes / 2,
            x_.scratch_bytes / 16 / static_cast<std::uint64_t>(n_),
            x_.path};
  }
  std::function<int(int)> home_of() {
    return [this](int rank) { return home(rank); };
  }

  bool wants(int rank, int owner) const {
    if (rank == owner || c_ == Collective::reduce_scatter) return false;
    if (c_ == Collective::all_reduce) return true;
    if (c_ == Collective::reduce) return rank == b_.request().root;
    return rank != b_.request().root;  // broadcast: the root has the message
  }
  bool contributes(int rank, int owner) const {
    if (rank == owner) return false;
    return c_ != Collective::broadcast || rank == b_.request().root;
  }

  void make_shards() {
    const std::vector<Range> cut = shards_of(b_, x_.range);
    const int contributors = c_ == Collective::broadcast ? 1 : n_ - 1;
    const std::uint64_t slots = static_cast<std::uint64_t>(x_.slots) * (index(contributors) + 1);
    const int pieces = pieces_fitting(largest(cut) * slots, x_.pieces, x_.scratch_bytes / 8 * 7,
                                      slots * 2 * b_.granule());
    for (int owner = 0; owner < n_; ++owner) {
      Shard& shard = shards_.emplace_back();
      shard.pieces = pieces_of(cut, owner, pieces);
      for (int step = 1; step < n_; ++step)
        if (wants((owner + step) % n_, owner)) shard.readers.push_back((owner + step) % n_);
      const std::uint64_t bytes = largest(shard.pieces);
      shard.inbound.resize(index(n_));
      shard.result_read.resize(index(x_.slots));
      if (bytes == 0) continue;
      const int in_use = std::min(x_.slots, pieces);
      for (int rank = 0; rank < n_; ++rank)
        for (int slot = 0; slot < in_use && contributes(rank, owner); ++slot)
          shard.inbound[index(rank)].push_back(b_.alloc(Space::scratch, owner, bytes));
      const bool is_direct = c_ == Collective::broadcast && owner != b_.request().root;
      for (int slot = 0; slot < in_use && !shard.readers.empty() && !is_direct; ++slot)
        shard.result.push_back(b_.alloc(Space::scratch, owner, bytes));
    }
  }

  std::vector<Range> pieces_of(const std::vector<Range>& cut, int owner, int pieces) const {
    if (!x_.is_chunked || c_ == Collective::reduce_scatter)
      return partition(cut[index(owner)], pieces, b_.granule());
    std::vector<Range> out;
    for (const Range& chunk : partition(x_.range, pieces, b_.granule()))
      out.push_back(partition(chunk, n_, b_.granule())[index(owner)]);
    return out;
  }

  std::uint64_t most_bytes() const {
    std::uint64_t most = 0;
    for (const Shard& shard : shards_) most = std::max(most, largest(shard.pieces));
    return most;
  }
  Range source(int owner, Range piece) const {
    return c_ == Collective::reduce_scatter ? in_block(b_.request(), owner, piece) : piece;
  }

  void open_all(Mover& contributions, Mover& results) {
    for_each_pair([&](int rank, int owner) { contributions.open(rank, owner, home_of()); },
                  [&](int rank, int owner) { results.open(owner, rank, home_of()); });
  }

  template <class Contribution, class Result>
  void for_each_pair(Contribution contribution, Result result) {
    for (int owner = 0; owner < n_; ++owner) {
      if (largest(shards_[index(owner)].pieces) == 0) continue;
      for (int step = 1; step < n_; ++step) {
        const int rank = (owner + step) % n_;
        if (contributes(rank, owner)) contribution(rank, owner);
        if (wants(rank, owner)) result(rank, owner);
      }
    }
  }

  // Signals each rank once, even if listed repeatedly.
  std::map<int, Event> signal_each(int lane, const std::vector<int>& ranks) {
    std::map<int, Event> events;
    for (const int rank : ranks)
      if (!events.contains(rank)) events[rank] = b_.signal(lane, rank);
    return events;
  }

  void write_reduction();
  void push_contributions(Mover& mover, int piece, std::vector<std::vector<Event>>& arrived);
  void reduce_piece(int owner, int piece, const std::vector<Event>& arrived);
  void signal_reduced(Mover& contributions, Mover& results, int owner, int piece);
  void pull_results(Mover& mover, int piece);
  void end_results();
  void write_broadcast();
  void own_piece(Mover& results, int owner, int piece, const Event& arrived);

  Builder& b_;
  const ExchangeOptions& x_;
  int n_;
  Collective c_;
  std::vector<Shard> shards_;
  std::map<std::tuple<int, int, int>, Event> consumed_;  // (sender, owner, slot) -> may be refilled
  std::vector<std::map<int, Event>> ready_;              // [owner]: result of this piece, by rank
};

void ExchangeWriter::push_contributions(Mover& mover, int piece,
                                        std::vector<std::vector<Event>>& arrived) {
  const int slot = piece % x_.slots;
  for (int step = 1; step < n_; ++step)
    for (int rank = 0; rank < n_; ++rank) {
      const int owner = (rank + step) % n_;
      const Range range = shards_[index(owner)].pieces[index(piece)];
      if (range.bytes == 0 || !contributes(rank, owner)) continue;
      std::vector<Event> after;
      const auto consumed = consumed_.find({rank, owner, slot});
      if (consumed != consumed_.end()) after.push_back(consumed->second);
      const Region dst =
          slice(shards_[index(owner)].inbound[index(rank)][index(slot)], {0, range.bytes});
      arrived[index(owner)].push_back(
          mover.carry(rank, owner, dst, b_.input(rank, source(owner, range)), after, step).arrived);
    }
}

void ExchangeWriter::reduce_piece(int owner, int piece, const std::vector<Event>& arrived) {
  Shard& shard = shards_[index(owner)];
  const Range range = shard.pieces[index(piece)];
  const std::size_t slot = index(piece % x_.slots);
  const int lane = home(owner);
  const Region out = b_.output(owner, range);
  const Region dst = shard.result.empty() ? out : slice(shard.result[slot], {0, range.bytes});
  for (const Event& event : shard.result_read[slot]) b_.wait(lane, event);
  shard.result_read[slot].clear();
  const Region own = b_.input(owner, source(owner, range));
  const auto inbound = [&](int rank) {
    return slice(shard.inbound[index(rank)][slot], {0, range.bytes});
  };
  if (x_.fuse) {
    std::vector<Region> srcs;
    for (const Event& event : arrived) b_.wait(lane, event);
    for (int rank = 0; rank < n_; ++rank) srcs.push_back(rank == owner ? own : inbound(rank));
    b_.reduce(lane, dst, srcs, true);
  } else {
    for (int step = 1; step < n_; ++step) {  // in order of arrival: rank owner - 1 first
      b_.wait(lane, arrived[index(step - 1)]);
      b_.reduce(lane, dst, {step == 1 ? own : dst, inbound((owner - step + n_) % n_)},
                step == n_ - 1);
    }
  }
}

void ExchangeWriter::signal_reduced(Mover& contributions, Mover& results, int owner, int piece) {
  Shard& shard = shards_[index(owner)];
  const int slot = piece % x_.slots;
  const bool is_refilled = piece + x_.slots < static_cast<int>(shard.pieces.size()) &&
                           shard.pieces[index(piece + x_.slots)].bytes != 0;
  std::vector<int> ranks;
  for (const int rank : shard.readers) ranks.push_back(results.reader(owner, rank));
  for (int step = 1; step < n_ && is_refilled; ++step)
    ranks.push_back(contributions.filler((owner - step + n_) % n_, owner));
  ready_[index(owner)] = signal_each(home(owner), ranks);
  for (int rank = 0; rank < n_ && is_refilled; ++rank)
    if (rank != owner)
      consumed_[{rank, owner, slot}] = ready_[index(owner)].at(contributions.filler(rank, owner));
  const Range range = shard.pieces[index(piece)];
  const bool is_wanted = c_ != Collective::reduce || owner == b_.request().root;
  if (!shard.result.empty() && is_wanted)
    b_.copy(home(owner), b_.output(owner, range),
            slice(shard.result[index(slot)], {0, range.bytes}));
}

void ExchangeWriter::pull_results(Mover& mover, int piece) {
  const std::size_t slot = index(piece % x_.slots);
  for (int step = 1; step < n_; ++step)
    for (int owner = 0; owner < n_; ++owner) {
      const int rank = (owner + step) % n_;
      Shard& shard = shards_[index(owner)];
      const Range range = shard.pieces[index(piece)];
      if (range.bytes == 0 || !wants(rank, owner)) continue;
      const Region& held =
          shard.result.empty() ? shard.inbound[index(b_.request().root)][slot] : shard.result[slot];
      const Event ready = ready_[index(owner)].at(mover.reader(owner, rank));
      shard.result_read[slot].push_back(mover
                                            .carry(owner, rank, b_.output(rank, range),
                                                   slice(held, {0, range.bytes}), {ready}, step,
                                                   false)
                                            .emptied);
    }
}

void ExchangeWriter::end_results() {
  for (int owner = 0; owner < n_; ++owner)
    for (const std::vector<Event>& events : shards_[index(owner)].result_read)
      for (const Event& event : events) b_.wait(home(owner), event);
}

void ExchangeWriter::write_reduction() {
  make_shards();
  b_.sum_order(x_.fuse || n_ == 1 ? SumOrder::rank_order : SumOrder::algorithm_order);
  Mover contributions(b_, options("", false, most_bytes()));
  Mover results(b_, options("result.", true, most_bytes()));
  open_all(contributions, results);
  ready_.resize(index(n_));
  const int pieces = static_cast<int>(shards_[0].pieces.size());
  for (int piece = 0; piece < pieces; ++piece) {
    std::vector<std::vector<Event>> arrived(index(n_));
    push_contributions(contributions, piece, arrived);
    for (int owner = 0; owner < n_; ++owner) {
      if (shards_[index(owner)].pieces[index(piece)].bytes == 0) continue;
      reduce_piece(owner, piece, arrived[index(owner)]);
      signal_reduced(contributions, results, owner, piece);
    }
    pull_results(results, piece);
  }
  end_results();
  contributions.close(home_of());
  results.close(home_of());
}

// The owner's side of a broadcast piece: waits for the piece (staged by the root) and signals the
// readers.
void ExchangeWriter::own_piece(Mover& results, int owner, int piece, const Event& arrived) {
  Shard& shard = shards_[index(owner)];
  const Range range = shard.pieces[index(piece)];
  const std::size_t slot = index(piece % x_.slots);
  const int root = b_.request().root, lane = home(owner);
  const bool is_root = owner == root;
  const Region held =
      is_root ? Region{} : slice(shard.inbound[index(root)][slot], {0, range.bytes});
  if (is_root) {
    for (const Event& event : shard.result_read[slot]) b_.wait(lane, event);
    shard.result_read[slot].clear();
    if (!shard.result.empty())
      b_.copy(lane, slice(shard.result[slot], {0, range.bytes}), b_.input(root, range));
    b_.copy(lane, b_.output(root, range), b_.input(root, range));
  } else {
    b_.wait(lane, arrived);
  }
  std::vector<int> ranks;
  for (const int rank : shard.readers) ranks.push_back(results.reader(owner, rank));
  ready_[index(owner)] = signal_each(lane, ranks);
  if (!is_root) b_.copy(lane, b_.output(owner, range), held);
}

void ExchangeWriter::write_broadcast() {
  make_shards();
  const int root = b_.request().root;
  Mover contributions(b_, options("", false, most_bytes()));
  Mover results(b_, options("result.", true, most_bytes()));
  open_all(contributions, results);
  ready_.resize(index(n_));
  const int pieces = static_cast<int>(shards_[0].pieces.size());
  for (int piece = 0; piece < pieces; ++piece) {
    const std::size_t slot = index(piece % x_.slots);
    for (int step = 0; step < n_; ++step) {
      const int owner = (root + step) % n_;
      Shard& shard = shards_[index(owner)];
      const Range range = shard.pieces[index(piece)];
      if (range.bytes == 0) continue;
      Event arrived;
      if (owner != root) {
        std::vector<Event> after;
        if (piece >= x_.slots) {
          for (const Event& event : shard.result_read[slot]) b_.wait(home(owner), event);
          after.push_back(b_.signal(home(owner), contributions.filler(root, owner)));
        }
        shard.result_read[slot].clear();
        const Region dst = slice(shard.inbound[index(root)][slot], {0, range.bytes});
        const Carried carried =
            contributions.carry(root, owner, dst, b_.input(root, range), after, step);
        arrived = carried.arrived;
        // In place the output is the input: the root's own copy follows the send on the same lane.
        b_.copy(contributions.source_lane(root, owner, step), b_.output(root, range),
                b_.input(root, range));
      }
      own_piece(results, owner, piece, arrived);
    }
    pull_results(results, piece);
  }
  end_results();
  contributions.close(home_of());
  results.close(home_of());
}

}  // namespace

int pieces_fitting(std::uint64_t bytes, int wanted, std::uint64_t limit, std::uint64_t overhead) {
  const std::uint64_t left = limit > overhead + 4096 ? limit - overhead : 4096;
  return static_cast<int>(std::clamp<std::uint64_t>(bytes / left + 1, index(wanted), 1U << 20));
}

std::uint64_t largest(const std::vector<Range>& ranges) {
  std::uint64_t most = 0;
  for (const Range& range : ranges) most = std::max(most, range.bytes);
  return most;
}

std::vector<Range> shards_of(const Builder& builder, Range range) {
  const Request& request = builder.request();
  if (request.collective != Collective::reduce_scatter)
    return partition(range, request.ranks, builder.granule());
  std::vector<Range> shards;
  for (int owner = 0; owner < request.ranks; ++owner)
    shards.push_back(part_of(received_block(request, owner, owner), range));
  return shards;
}

void write_exchange(Builder& builder, const ExchangeOptions& exchange) {
  const Collective collective = builder.request().collective;
  if (exchange.is_pairwise)
    write_pairwise(builder, exchange);
  else if (reduces(collective) || collective == Collective::broadcast)
    ExchangeWriter(builder, exchange).write();
  else
    write_moves(builder, exchange);
}

}  // namespace plait
