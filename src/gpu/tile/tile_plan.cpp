// Writes the plan of a tiled call, a function per role, as in tile_roles.cuh and tiled.cuh.
#include "gpu/tile/tile_plan.hpp"

#include <algorithm>

#include "gpu/abi/tile_cut.hpp"
#include "plait/builder.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kUnit = 16;

class TilePlan {
 public:
  TilePlan(const Topology& topology, const Request& request, const TileWish& wish)
      : b_(topology, request, "tiled"), n_(request.ranks), send_gb_per_s_(wish.send_gb_per_s) {
    for (int rank = 0; rank < n_; ++rank) {
      shapes_.push_back(tiled_shape(request, rank));
      spread_tiles(shapes_.back(), wish);
    }
    const TiledArgs& shape = shapes_[0];
    units_ = tile_units(shape) * shape.blocks;
    const std::uint64_t units = (shape.part_bytes + kUnit - 1) / kUnit;
    count_ = static_cast<std::uint32_t>((units + units_ - 1) / units_);
    blocks_ = wish.most_blocks == 1 ? 1 : wish.slot_blocks;
    for (int rank = 0; rank < n_; ++rank)
      b_.alloc(Space::scratch, rank, shape.block_bytes * blocks_);
  }

  Plan write() {
    for (me_ = 0; me_ < n_; ++me_) {
      begin();
      signal();
      watch_room();
      push();
      handle();
      collect();
      end();
    }
    b_.kernel("tiled");
    b_.param("blocks", shapes_[0].blocks);
    b_.param("tile_units", shapes_[0].most_units);
    b_.param("window", shapes_[0].window);
    write_schedule();
    Plan plan = b_.build();
    for (int word = kTileParts; word <= kTileCollectsDone; ++word) plan.counts[word] = count_;
    return plan;
  }

 private:
  const TiledArgs& mine() const { return shapes_[static_cast<std::size_t>(me_)]; }
  int lane(const char* role) { return b_.lane(me_, LaneKind::kernel, role); }
  int peer(int step) const { return (me_ + step) % n_; }
  static bool in(std::uint32_t mask, int rank) { return (mask >> rank & 1) != 0; }
  bool owns() const { return in(mine().owners, me_); }
  bool pushes(int owner) const { return in(pushes_to(mine(), me_), owner); }
  bool takes_from(int rank) const { return in(senders_to(mine(), me_), rank); }
  bool is_read_by(int rank) const { return in(readers_of(mine(), me_), rank); }
  bool reads_from(int owner) const { return in(read_by(mine(), me_), owner); }
  /// Stores how the call uses the links, for the price (sim/kernel_price.hpp).
  void write_schedule() {
    const TiledArgs& shape = shapes_[0];
    if (shape.turns != 0) b_.param("shift", 1);
    if (send_gb_per_s_ != 0) b_.param("send_gb_per_s", send_gb_per_s_);
    if (shape.in_turn != 0)
      b_.param("in_flight_bytes", std::int64_t{shape.blocks} * shape.piece_bytes * kPushStages);
  }
  /// Returns the range of a tile in `owner`'s part.
  Range range(int owner, std::uint32_t tile) const {
    const std::uint64_t part = part_bytes(mine(), owner);
    const std::uint64_t from = std::min(std::uint64_t{tile} * units_ * kUnit, part);
    return {from, std::min(units_ * kUnit, part - from)};
  }
  Region input(int owner, std::uint32_t tile) const {
    const Range at = range(owner, tile);
    return b_.input(
        me_, {static_cast<std::uint64_t>(index_of(mine(), owner)) * mine().part_stride + at.offset,
              at.bytes});
  }
  Region output(int owner, std::uint32_t tile) const {
    const Range at = range(owner, tile);
    return b_.output(
        me_,
        {static_cast<std::uint64_t>(index_of(mine(), owner)) * mine().result_stride + at.offset,
         at.bytes});
  }
  Region slot(int at, int stage, int from, std::uint32_t tile, std::uint64_t bytes) const {
    return {Space::scratch, at, slot_offset(mine(), 0, at, stage, from, tile) * blocks_, bytes};
  }
  Flag word(TileWord index, int owner, int writer) const { return {owner, writer, index}; }
  Flag inside(TileWord index) const { return {me_, me_, index}; }
  /// Waits until the data of the slot `window` tiles before has been taken.
  void await_room(int lane, TileWord taken, int by, std::uint32_t tile) {
    const std::uint32_t window = mine().window;
    if (tile >= window) b_.await(lane, word(taken, me_, by), tile + 1 - window);
  }

  /// The begin and the end around all roles: no slot is written while a tile of an earlier call is
  /// read from any slot, since that call's slots may be laid out differently.
  void begin() {
    for (int step = 1; step < n_; ++step)
      b_.await(lane("begin"), word(kTileEnded, me_, peer(step)), 0);
    b_.raise(lane("begin"), inside(kTileBegun), count_);
    for (const char* role : {"room", "handle"}) b_.await(lane(role), inside(kTileBegun), count_);
  }
  void end() {
    b_.raise(lane("handle"), inside(kTileHandlesDone), count_);
    b_.raise(lane("collect"), inside(kTileCollectsDone), count_);
    b_.await(lane("end"), inside(kTileHandlesDone), count_);
    b_.await(lane("end"), inside(kTileCollectsDone), count_);
    for (int step = 1; step < n_; ++step)
      b_.raise(lane("end"), word(kTileEnded, peer(step), me_), count_);
  }

  void watch_room() {
    for (std::uint32_t tile = 0; tile < count_; ++tile) {
      for (int step = 1; step < n_; ++step)
        if (pushes(peer(step))) await_room(lane("room"), kTilePartsTaken, peer(step), tile);
      b_.raise(lane("room"), inside(kTileFree), tile + 1);
    }
  }

  void push() {
    for (std::uint32_t tile = 0; tile < count_; ++tile) {
      b_.await(lane("push"), inside(kTileFree), tile + 1);
      for (int k = 1; k < n_; ++k) {
        const int owner = target(mine(), 0, k);
        if (!pushes(owner)) continue;
        const Region src = input(owner, tile);
        b_.copy(lane("push"), slot(owner, 0, me_, tile, src.bytes), src);
      }
      b_.raise(lane("push"), inside(kTileSent), tile + 1);
      b_.raise(lane("push"), inside(kTileArrived), tile + 1);
    }
  }

  /// Writes the signals. A single thread of the kernel raises all in order of completion; in the
  /// plan each kind has a lane.
  void signal() {
    for (std::uint32_t tile = 0; tile < count_; ++tile) {
      signal_when("signal_arrived", kTileArrived, tile, kTileParts,
                  [this](int rank) { return pushes(rank); });
      signal_when("signal_handled", kTileHandled, tile, kTileResults,
                  [this](int rank) { return is_read_by(rank); });
    }
    // A peer that does not wait in this call gets the signals of all tiles at once.
    for (int step = 1; step < n_; ++step) {
      const int rank = peer(step);
      const auto signal_all = [&](bool waits, TileWord index) {
        if (!waits) b_.raise(lane("signal_others"), word(index, rank, me_), count_);
      };
      signal_all(pushes(rank), kTileParts);
      signal_all(takes_from(rank), kTilePartsTaken);
      signal_all(is_read_by(rank), kTileResults);
      signal_all(reads_from(rank), kTileResultsTaken);
    }
  }
  /// Signals the ranks that `which` selects, if any, once a tile has come this far.
  template <class Which>
  void signal_when(const char* signaller, TileWord so_far, std::uint32_t tile,
                   TileWord signal_value, const Which& which) {
    bool waited = false;
    for (int step = 1; step < n_; ++step) {
      if (!which(peer(step))) continue;
      if (!waited) b_.await(lane(signaller), inside(so_far), tile + 1);
      waited = true;
      b_.raise(lane(signaller), word(signal_value, peer(step), me_), tile + 1);
    }
  }

  void handle() {
    for (std::uint32_t tile = 0; tile < count_; ++tile) {
      b_.await(lane("handle"), inside(kTileSent), tile + 1);
      for (int rank = 0; rank < n_; ++rank)
        if (is_read_by(rank)) await_room(lane("handle"), kTileResultsTaken, rank, tile);
      for (int rank = 0; rank < n_; ++rank)
        if (takes_from(rank)) b_.await(lane("handle"), word(kTileParts, me_, rank), tile + 1);
      if (owns() && mine().handling == kReduceParts) reduce(tile);
      if (owns() && mine().handling == kPassPart) pass(tile);
      if (owns() && mine().handling == kPlaceParts) place(tile);
      for (int step = 1; step < n_; ++step)
        if (takes_from(peer(step)))
          b_.raise(lane("handle"), word(kTilePartsTaken, peer(step), me_), tile + 1);
      b_.raise(lane("handle"), inside(kTileHandled), tile + 1);
    }
  }
  /// If no output keeps the sum, threads hold the sum until the reader has it. In the plan the sum
  /// replaces a part, or lies in the slot for a rank's part for itself.
  void reduce(std::uint32_t tile) {
    const Region own = input(me_, tile);
    std::vector<Region> srcs;
    for (int rank = 0; rank < n_; ++rank)
      srcs.push_back(rank == me_ ? own : slot(me_, 0, rank, tile, own.bytes));
    const Region sum = in(mine().keepers, me_) ? output(me_, tile)
                       : srcs[0] == own        ? srcs[1]
                                               : srcs[0];
    b_.reduce(lane("handle"), sum, srcs, true);
    for (int step = 1; step < n_; ++step)
      if (is_read_by(peer(step)))
        b_.copy(lane("handle"), slot(peer(step), 1, me_, tile, own.bytes), sum);
  }
  void pass(std::uint32_t tile) {
    const std::uint64_t bytes = range(me_, tile).bytes;
    const std::uint32_t senders = senders_to(mine(), me_);
    const Region part = senders == 0 ? b_.input(me_, range(me_, tile))
                                     : slot(me_, 0, __builtin_ctz(senders), tile, bytes);
    for (int step = 1; step < n_; ++step)
      if (is_read_by(peer(step)) && !in(senders, peer(step)))
        b_.copy(lane("handle"), slot(peer(step), 1, me_, tile, bytes), part);
    if (in(mine().keepers, me_)) b_.copy(lane("handle"), output(me_, tile), part);
  }
  void place(std::uint32_t tile) {
    const Range at = range(me_, tile);
    for (int step = 1; step < n_; ++step) {
      const int from = peer(step);
      if (!takes_from(from)) continue;
      const std::uint64_t place = static_cast<std::uint64_t>(from) * mine().place_stride;
      b_.copy(lane("handle"), b_.output(me_, {place + at.offset, at.bytes}),
              slot(me_, 0, from, tile, at.bytes));
    }
  }

  /// Data that stays is copied piece by piece as tiles are sent; in the plan, after all have been
  /// sent.
  void collect() {
    if (mine().own_bytes != 0) b_.await(lane("collect"), inside(kTileSent), count_);
    b_.copy(lane("collect"), b_.output(me_, {mine().own_to, mine().own_bytes}),
            b_.input(me_, {mine().own_from, mine().own_bytes}));
    for (std::uint32_t tile = 0; tile < count_; ++tile) take(tile);
  }
  /// Takes results from the owners' slots.
  void take(std::uint32_t tile) {
    for (int step = 1; step < n_; ++step)
      if (reads_from(peer(step)))
        b_.await(lane("collect"), word(kTileResults, me_, peer(step)), tile + 1);
    for (int step = 1; step < n_; ++step)
      if (reads_from(peer(step))) {
        const Region dst = output(peer(step), tile);
        b_.copy(lane("collect"), dst, slot(me_, 1, peer(step), tile, dst.bytes));
      }
    for (int step = 1; step < n_; ++step)
      if (reads_from(peer(step)))
        b_.raise(lane("collect"), word(kTileResultsTaken, peer(step), me_), tile + 1);
  }
  Builder b_;
  const int n_;
  const std::uint32_t send_gb_per_s_;  // limit of all that a GPU sends; 0 = none
  std::vector<TiledArgs> shapes_;      // by rank
  std::uint64_t units_ = 0;            // units of a tile of all blocks
  std::uint32_t count_ = 0;            // tiles
  std::uint64_t blocks_ = 1;           // blocks whose slots are merged into one
  int me_ = 0;
};

}  // namespace

Plan tile_plan(const Topology& topology, const Request& request, const TileWish& wish) {
  return TilePlan(topology, request, wish).write();
}

}  // namespace plait::cuda
