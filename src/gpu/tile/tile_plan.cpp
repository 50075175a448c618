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
      shapes_.push_back(tiled_shape(request, rank, wish));
      spread_tiles(shapes_.back(), wish);
    }
    const TiledArgs& shape = shapes_[0];
    units_ = tile_units(shape) * shape.blocks;
    const std::uint64_t units = (shape.part_bytes + kUnit - 1) / kUnit;
    tiles_ = static_cast<std::uint32_t>((units + units_ - 1) / units_);
    count_ = tiles_ * steps_of_tile(shape);
    blocks_ = wish.most_blocks == 1 ? 1 : wish.slot_blocks;
    for (int rank = 0; rank < n_; ++rank)
      b_.alloc(Space::scratch, rank, shape.block_bytes * blocks_);
  }

  Plan write() {
    for (me_ = 0; me_ < n_; ++me_) {
      begin();
      signal();
      if (mine().ring != 0) {
        add_round();
        if (readers_of(mine(), me_) != 0) go_round();
      } else {
        watch_room();
        push();
        handle();
        collect();
      }
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
    if (shape.half != 0) b_.param("fold", 1);
    if (shape.ring != 0) b_.param("ring", 1);
    if (shape.pull != 0) b_.param("pull", shape.pull);
    if (shape.turns != 0) b_.param("shift", 1);
    if (shape.order == kByXor) b_.param("by_xor", 1);
    if (send_gb_per_s_ != 0) b_.param("send_gb_per_s", send_gb_per_s_);
    const std::uint64_t piece = std::uint64_t{shape.blocks} * shape.piece_bytes;  // of each block
    const std::uint64_t pieces = shape.most_pieces;
    if (shape.in_turn != 0)
      b_.param("in_flight_bytes", to_param(piece * (pieces != 0 ? pieces : kPushStages)));
    int phases = 0, copied = 0;
    for (me_ = 0; me_ < n_; ++me_) {
      int paced = 0;
      for (int other = 0; other < n_; ++other) paced += is_paced(mine(), other) ? 1 : 0;
      phases = std::max(phases, paced);
      if (copies_results()) copied = std::max(copied, __builtin_popcount(readers_of(mine(), me_)));
    }
    if (phases != 0) b_.param("phases", std::int64_t{phases} * count_);
    if (copied != 0) {
      const auto to_each = static_cast<std::uint64_t>(copied);
      const std::uint64_t most = pieces != 0 ? pieces - 1 + to_each : kCollectStages;
      b_.param("results_in_flight_bytes", to_param(piece * most));
    }
  }
  static std::int64_t to_param(std::uint64_t bytes) { return static_cast<std::int64_t>(bytes); }
  /// True if a sum goes on to `rank` across; the result that comes back is relayed.
  bool goes_on(int rank) const { return is_lower(mine(), me_) && rank == across(mine(), me_); }
  bool relays() const {
    const bool goes_round = mine().ring != 0 && readers_of(mine(), me_) != 0;
    return is_lower(mine(), me_) || goes_round || copies_results();
  }
  /// True if kept sums go on from the output by bulk copies.
  bool copies_results() const {
    return mine().copied_results != 0 && mine().handling == kReduceParts &&
           in(mine().keepers, me_) && readers_of(mine(), me_) != 0;
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
  /// Returns the ranks whose slots get a handled result; with pulls only this rank, from which all
  /// readers pull.
  std::vector<int> stores_to() const {
    if (pulls_results(mine())) return {me_};
    std::vector<int> to;
    for (int step = 1; step < n_; ++step)
      if (is_read_by(peer(step))) to.push_back(peer(step));
    return to;
  }
  Region slot(int at, int stage, int from, std::uint32_t tile, std::uint64_t bytes) const {
    return {Space::scratch, at, slot_offset(mine(), 0, at, stage, from, tile) * blocks_, bytes};
  }
  /// Returns the slot from which this rank takes a result.
  Region result_slot(int owner, std::uint32_t tile, std::uint64_t bytes) const {
    return slot(pulls_results(mine()) ? owner : me_, 1, owner, tile, bytes);
  }
  /// Returns the slot for a sender's part of an owner's data; the owner reduces from the slot.
  Region part_slot(int owner, int sender, std::uint32_t tile, std::uint64_t bytes) const {
    return pulls_parts(mine()) ? slot(sender, 0, owner, tile, bytes)
                               : slot(owner, 0, sender, tile, bytes);
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
    if (relays()) b_.await(lane("collect"), inside(kTileBegun), count_);
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
        if (is_paced(mine(), owner)) {
          b_.raise(lane("push"), word(kTilePace, owner, me_), tile + 1);
          b_.await(lane("push"), word(kTilePace, me_, owner), tile + 1);
        }
        const Region src = input(owner, tile);
        b_.copy(lane("push"), part_slot(owner, me_, tile, src.bytes), src);
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
      signal_when("signal_handled", kTileHandled, tile, kTileParts,
                  [this](int rank) { return goes_on(rank); });
      signal_when("signal_handled", kTileHandled, tile, kTileResults,
                  [this](int rank) { return !relays() && is_read_by(rank); });
      signal_when("signal_relayed", kTileRelayed, tile, kTileResults,
                  [this](int rank) { return relays() && is_read_by(rank); });
    }
    // A peer that does not wait in this call gets the signals of all tiles at once.
    for (int step = 1; step < n_; ++step) {
      const int rank = peer(step);
      const auto signal_all = [&](bool waits, TileWord index) {
        if (!waits) b_.raise(lane("signal_others"), word(index, rank, me_), count_);
      };
      signal_all(pushes(rank) || goes_on(rank), kTileParts);
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
      for (int rank = 0; rank < n_; ++rank) {
        if (goes_on(rank)) await_room(lane("handle"), kTilePartsTaken, rank, tile);
        if (!relays() && is_read_by(rank))
          await_room(lane("handle"), kTileResultsTaken, rank, tile);
      }
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
    for (int which = 0; which < source_count(mine()); ++which) {
      const int rank = source_rank(mine(), which);
      srcs.push_back(rank == me_ ? own : part_slot(me_, rank, tile, own.bytes));
    }
    const bool is_last = !is_lower(mine(), me_);
    const Region sum = in(mine().keepers, me_) ? output(me_, tile)
                       : pulls_parts(mine())   ? slot(me_, 0, me_, tile, own.bytes)
                       : srcs[0] == own        ? srcs[1]
                                               : srcs[0];
    b_.reduce(lane("handle"), sum, srcs, is_last);
    for (int rank = 0; rank < n_; ++rank)
      if (goes_on(rank)) b_.copy(lane("handle"), slot(rank, 0, me_, tile, own.bytes), sum);
    if (relays() || readers_of(mine(), me_) == 0) return;
    for (const int rank : stores_to())
      b_.copy(lane("handle"), slot(rank, 1, me_, tile, own.bytes), sum);
  }
  void pass(std::uint32_t tile) {
    const std::uint64_t bytes = range(me_, tile).bytes;
    const std::uint32_t senders = senders_to(mine(), me_);
    const Region part = senders == 0 ? b_.input(me_, range(me_, tile))
                                     : slot(me_, 0, __builtin_ctz(senders), tile, bytes);
    for (const int rank : stores_to())
      if (!in(senders, rank)) b_.copy(lane("handle"), slot(rank, 1, me_, tile, bytes), part);
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
    const std::uint32_t lag = relays() ? 1 : 0;
    for (std::uint32_t tile = 0; tile < count_ + lag; ++tile) {
      if (lag != 0 && tile < count_) relay(tile);
      if (tile >= lag) take(tile - lag, [this](int rank) { return !goes_on(rank); });
    }
  }
  /// Takes results from the slots of some owners.
  template <class Which>
  void take(std::uint32_t tile, const Which& which) {
    for (int step = 1; step < n_; ++step)
      if (reads_from(peer(step)) && which(peer(step)))
        b_.await(lane("collect"), word(kTileResults, me_, peer(step)), tile + 1);
    for (int step = 1; step < n_; ++step)
      if (reads_from(peer(step)) && which(peer(step))) {
        const Region dst = output(peer(step), tile);
        b_.copy(lane("collect"), dst, result_slot(peer(step), tile, dst.bytes));
      }
    for (int step = 1; step < n_; ++step)
      if (reads_from(peer(step)) && which(peer(step)))
        b_.raise(lane("collect"), word(kTileResultsTaken, peer(step), me_), tile + 1);
  }
  /// Sends results that have arrived from across, or were handled here, on to the other readers.
  void relay(std::uint32_t tile) {
    const bool from_across = is_lower(mine(), me_);
    const int owner = from_across ? across(mine(), me_) : me_;
    if (from_across)
      b_.await(lane("collect"), word(kTileResults, me_, owner), tile + 1);
    else
      b_.await(lane("collect"), inside(kTileHandled), tile + 1);
    for (int step = 1; step < n_; ++step)
      if (is_read_by(peer(step))) await_room(lane("collect"), kTileResultsTaken, peer(step), tile);
    const Region out = output(owner, tile);
    const Region src = from_across ? slot(me_, 1, owner, tile, out.bytes) : out;
    for (int step = 1; step < n_; ++step)
      if (is_read_by(peer(step)))
        b_.copy(lane("collect"), slot(peer(step), 1, me_, tile, src.bytes), src);
    if (from_across) take(tile, [this](int rank) { return goes_on(rank); });
    b_.raise(lane("collect"), inside(kTileRelayed), tile + 1);
  }

  /// In a ring the parts gather one rank's data per turn. In a chain each rank has a single turn,
  /// at its position.
  void add_round() {
    const bool chain = is_chain(mine());
    const std::uint32_t steps = steps_of_tile(mine()), last = static_cast<std::uint32_t>(n_ - 1);
    const auto from = chain ? static_cast<std::uint32_t>(chain_place(mine(), me_)) : 0;
    const int next = ring_next(mine()), before = ring_before(mine());
    const int at = lane("handle");
    for (std::uint32_t tile = 0; tile < tiles_; ++tile)
      for (std::uint32_t turn = from; turn <= (chain ? from : last); ++turn) {
        const std::uint32_t step = chain ? tile : tile * steps + turn;
        const std::uint32_t came_in = chain ? tile : step - 1;
        const bool sends = turn < last, takes = turn > 0;
        if (sends) await_room(at, kTilePartsTaken, next, step);
        if (takes) b_.await(at, word(kTileParts, me_, before), came_in + 1);
        const int owner = chain ? chain_end(mine()) : ring_part(mine(), turn + 1);
        const Region own = input(owner, tile);
        const Region dst = sends ? slot(next, 0, me_, step, own.bytes) : output(owner, tile);
        if (!takes) {
          b_.copy(at, dst, own);
        } else {  // threads hold the sum; in the plan it replaces the arrived data
          const Region came = slot(me_, 0, before, came_in, own.bytes);
          b_.reduce(at, sends ? came : dst, {came, own}, !sends);
          if (sends) b_.copy(at, dst, came);
        }
        if (sends) b_.raise(at, inside(kTileArrived), step + 1);
        if (takes) b_.raise(at, word(kTilePartsTaken, before, me_), came_in + 1);
        if (!sends) b_.raise(at, inside(kTileSummed), tile + 1);
      }
  }
  /// Sends results round the ring.
  void go_round() {
    const std::uint32_t turns = steps_of_tile(mine());
    const int next = ring_next(mine()), before = ring_before(mine());
    const int at = lane("collect");
    for (std::uint32_t tile = 0; tile < tiles_; ++tile)
      for (std::uint32_t turn = 0; turn <= turns; ++turn) {
        const std::uint32_t step = tile * turns + turn;
        const bool sends = turn < turns;
        const Region out = output(ring_part(mine(), turn), tile);
        if (turn == 0) b_.await(at, inside(kTileSummed), tile + 1);
        if (turn > 0) b_.await(at, word(kTileResults, me_, before), step);
        if (sends) await_room(at, kTileResultsTaken, next, step);
        const Region src = turn == 0 ? out : slot(me_, 1, before, step - 1, out.bytes);
        if (sends) b_.copy(at, slot(next, 1, me_, step, out.bytes), src);
        if (turn > 0) b_.copy(at, out, src);
        if (turn > 0) b_.raise(at, word(kTileResultsTaken, before, me_), step);
        if (sends) b_.raise(at, inside(kTileRelayed), step + 1);
      }
  }

  Builder b_;
  const int n_;
  const std::uint32_t send_gb_per_s_;  // limit of all that a GPU sends; 0 = none
  std::vector<TiledArgs> shapes_;      // by rank
  std::uint64_t units_ = 0;            // units of a tile of all blocks
  std::uint32_t tiles_ = 0;
  std::uint32_t count_ = 0;   // steps of all tiles
  std::uint64_t blocks_ = 1;  // blocks whose slots are merged into one
  int me_ = 0;
};

}  // namespace

Plan tile_plan(const Topology& topology, const Request& request, const TileWish& wish) {
  return TilePlan(topology, request, wish).write();
}

}  // namespace plait::cuda
