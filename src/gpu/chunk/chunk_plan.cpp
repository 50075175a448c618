// Writes the plan of a direct_chunks call, a lane per role, as in direct_chunks.cuh.
#include "gpu/chunk/chunk_plan.hpp"

#include <algorithm>
#include <map>

#include "plan/blocks.hpp"
#include "plan/direct_shape.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kUnit = 16;

std::uint64_t divided(std::uint64_t value, std::uint64_t by) { return (value + by - 1) / by; }

class ChunkPlan {
 public:
  ChunkPlan(const Topology& topology, const Request& request, const ChunkWish& wish)
      : b_(topology, request, "direct_chunks"),
        n_(request.ranks),
        shape_(direct_shape(request, 0)),
        cut_(cut_chunks(request, wish)),
        half_(wish.half_bytes / kUnit * kUnit) {
    for (int rank = 0; rank < n_; ++rank)
      b_.alloc(Space::inbox, rank, cut_.pieces > 1 ? 2 * half_ : half_);
  }

  Plan write() {
    for (piece_ = 0; piece_ < cut_.pieces; ++piece_) {
      chunks_ = divided(std::min(cut_.units, units() - piece_ * cut_.units), step());
      for_ranks([this](int rank) { push(rank); });
      for_ranks([this](int rank) { take(rank); });
    }
    b_.kernel("direct_chunks");
    b_.param("blocks", cut_.blocks);
    b_.param("chunk_units", cut_.chunk_units);
    b_.param("pieces", static_cast<std::int64_t>(cut_.pieces));
    return b_.build();
  }

 private:
  template <class Body>
  void for_ranks(Body body) {
    for (int rank = 0; rank < n_; ++rank) body(rank);
  }
  std::uint64_t units() const { return divided(shape_.part_bytes, kUnit); }
  std::uint64_t step() const { return std::uint64_t{cut_.blocks} * cut_.chunk_units; }
  int pusher(int rank) { return b_.lane(rank, LaneKind::kernel, "push"); }
  int taker(int rank) { return b_.lane(rank, LaneKind::kernel, "take"); }
  int peer(int rank, int k) const { return (rank + k) % n_; }
  bool gives(int from, int to) const { return sends(shape_, n_, from, to); }

  /// Returns the range of a chunk of all blocks, within a part.
  Range range(std::uint64_t chunk) const {
    const std::uint64_t first = piece_ * cut_.units,
                        end = std::min(first + cut_.units, units()) * kUnit,
                        from = (first + chunk * step()) * kUnit;
    const std::uint64_t to = std::min({from + step() * kUnit, end, shape_.part_bytes});
    return {from, to - from};
  }
  Region slot(int owner, int from, std::uint64_t chunk) const {
    const auto place = static_cast<std::uint64_t>(place_among_others(owner, from));
    const std::uint64_t at = piece_ % 2 * half_ + place * cut_.units * kUnit;
    return {Space::inbox, owner, at + chunk * step() * kUnit, range(chunk).bytes};
  }
  Region input(int rank, int to, std::uint64_t chunk) const {
    return b_.input(rank, part_of(sent_block(b_.request(), rank, to), range(chunk)));
  }
  Region output(int rank, int from, std::uint64_t chunk) const {
    return b_.output(rank, part_of(received_block(b_.request(), from, rank), range(chunk)));
  }

  void signal_arrival(int from, int owner, std::uint64_t chunk) {
    arrived_[{owner, from, chunk}] = b_.signal(pusher(from), owner);
  }
  /// A piece is a launch: it begins after the piece before has ended.
  void push(int rank) {
    if (piece_ > 0) b_.wait(pusher(rank), ended_.at(rank));
    for (std::uint64_t chunk = 0; chunk < chunks_; ++chunk) {
      for (int k = 1; k < n_; ++k)
        if (gives(rank, peer(rank, k)))
          b_.copy(pusher(rank), slot(peer(rank, k), rank, chunk),
                  input(rank, peer(rank, k), chunk));
      sent_[{rank, chunk}] = b_.signal(pusher(rank), rank);
      for (int k = 1; k < n_; ++k)
        if (gives(rank, peer(rank, k))) signal_arrival(rank, peer(rank, k), chunk);
    }
    for (int k = 1; k < n_; ++k)  // so that every call is a full exchange
      if (!gives(rank, peer(rank, k))) signal_arrival(rank, peer(rank, k), 0);
  }
  void take(int rank) {
    const bool owns = (shape_.owners >> rank & 1) != 0;
    for (std::uint64_t chunk = 0; chunk < chunks_; ++chunk) {
      b_.wait(taker(rank), sent_.at({rank, chunk}));
      for (int k = 1; k < n_; ++k)
        if (gives(peer(rank, k), rank))
          b_.wait(taker(rank), arrived_.at({rank, peer(rank, k), chunk}));
      if (direct_shape(b_.request(), rank).own_bytes != 0)
        b_.copy(taker(rank), output(rank, rank, chunk), input(rank, rank, chunk));
      if (owns && shape_.handling == kReduceParts) reduce(rank, chunk);
      for (int k = 1; k < n_ && shape_.handling != kReduceParts; ++k)
        if (gives(peer(rank, k), rank))
          b_.copy(taker(rank), output(rank, peer(rank, k), chunk),
                  slot(rank, peer(rank, k), chunk));
    }
    for (int k = 1; k < n_; ++k)
      if (!gives(peer(rank, k), rank)) b_.wait(taker(rank), arrived_.at({rank, peer(rank, k), 0}));
    if (piece_ + 1 < cut_.pieces) ended_[rank] = b_.signal(taker(rank), rank);
  }
  void reduce(int rank, std::uint64_t chunk) {
    std::vector<Region> srcs;
    for (int from = 0; from < n_; ++from)
      srcs.push_back(from == rank ? input(rank, rank, chunk) : slot(rank, from, chunk));
    b_.reduce(taker(rank), output(rank, rank, chunk), srcs, true);
  }

  Builder b_;
  const int n_;
  const DirectShape shape_;
  const ChunkCut cut_;
  const std::uint64_t half_;
  std::uint64_t piece_ = 0, chunks_ = 0;
  std::map<std::tuple<int, int, std::uint64_t>, Event> arrived_;  // by owner, sender and chunk
  std::map<std::pair<int, std::uint64_t>, Event> sent_;           // by rank and chunk
  std::map<int, Event> ended_;
};

}  // namespace

/// Long parts have few blocks, so that stores leave room to loads on the link, and four chunks a
/// block at least, so that a chunk comes up while the next goes down. Chunks of 8 KiB are the
/// fastest for long parts: the fences of shorter chunks cost more. Short parts have many blocks,
/// and chunks of 2 KiB, or of 4 KiB to and from a root. Source: E-0475.
ChunkCut cut_chunks(const Request& request, const ChunkWish& wish) {
  constexpr std::uint64_t kChunksOfBlock = 4, kLeastUnits = 128, kMostUnits = 512;
  constexpr std::uint64_t kRootedUnits = 256;
  constexpr std::uint64_t kShortPart = 3 << 20;
  constexpr unsigned kLongBlocks = 64;
  const std::uint64_t part_bytes = direct_shape(request, 0).part_bytes;
  const std::uint64_t units = divided(part_bytes, kUnit);
  const auto peers = static_cast<std::uint64_t>(std::max(1, request.ranks - 1));
  const std::uint64_t room = wish.half_bytes / kUnit / peers;
  if (room == 0) return {};
  const bool is_short = part_bytes <= kShortPart;
  ChunkCut cut;
  cut.pieces = std::max<std::uint64_t>(1, divided(units, room));
  cut.units = divided(units, cut.pieces);
  std::uint64_t blocks = std::max(1u, wish.most_blocks);
  if (wish.fewer_if_long && !is_short) blocks = std::min<std::uint64_t>(blocks, kLongBlocks);
  cut.chunk_units = wish.chunk_units;
  if (cut.chunk_units == 0)
    cut.chunk_units = static_cast<std::uint32_t>(
        is_short ? (has_root(request.collective) ? kRootedUnits : kLeastUnits)
                 : std::clamp(cut.units / (blocks * kChunksOfBlock), kLeastUnits, kMostUnits));
  cut.blocks = static_cast<unsigned>(
      std::clamp<std::uint64_t>(divided(cut.units, cut.chunk_units), 1, blocks));
  return cut;
}

Plan chunk_plan(const Topology& topology, const Request& request, const ChunkWish& wish) {
  return ChunkPlan(topology, request, wish).write();
}

}  // namespace plait::cuda
