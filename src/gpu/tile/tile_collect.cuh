// The collect role by bulk copies of one thread: results from slots (with pulls, from slots of
// other ranks) into the output. In a fold's lower half, and with copied_results, the role also
// sends results on to other ranks: a piece is read once and stored at each of them.
#pragma once
#include "gpu/tile/tile_roles.cuh"

namespace plait::cuda {

class BulkCollect {
 public:
  __device__ BulkCollect(TileRoles& work, char* room, unsigned owners)
      : work_(work),
        shared_(work.shared),
        ring_(room, work.shared.collect_barriers),
        from_(work.onward()),
        to_(work.relays_to()),
        owners_(owners & ~from_) {}

  /// Sends the results of a tile on, and only then waits for results of the tile before, sent on
  /// meanwhile by other ranks.
  __device__ void run() {
    if (work_.args.ring != 0)
      go_round();
    else
      collect_all();
    while (put_ != taken_) take();
    if (!work_.broken) see_relayed(0);
    ring_.end();
  }

 private:
  static constexpr unsigned kAhead = 2, kLag = 2, kQueue = TileShared::kQueue;

  __device__ void collect_all() {
    const unsigned lag = to_ != 0 ? 1 : 0;
    for (unsigned tile = 0; tile < work_.count + lag && !work_.broken; ++tile) {
      while (put_ != taken_) take();
      if (lag != 0 && tile < work_.count) relay(tile);
      if (!work_.broken && tile >= lag) collect(tile - lag);
    }
  }
  /// Runs a ring: the own results first, then results that have arrived from the rank before.
  __device__ void go_round() {
    const unsigned turns = steps_of_tile(work_.args);
    for (unsigned step = 0; step < work_.count / turns * (turns + 1) && !work_.broken; ++step) {
      while (put_ != taken_) take();
      pass(step / (turns + 1), step % (turns + 1), turns);
    }
  }
  __device__ void pass(unsigned tile, unsigned turn, unsigned turns) {
    const TiledArgs& args = work_.args;
    const unsigned step = tile * turns + turn;
    const bool takes = turn > 0, sends = turn < turns;
    if (!takes) {
      if (shared_.summed <= tile) see_relayed(0);
      work_.await_shared(shared_.summed, tile + 1);
    } else {
      await(&TileFlags::results, owners_, work_.base + step);
    }
    if (sends) await_rooms(step);
    if (work_.broken) return;
    bulk_follows();
    const int owner = ring_part(args, turn);
    char* const out = work_.output(owner) + work_.first(tile) * 16;
    const char* const src = takes ? work_.result_in(ring_before(args), step - 1) : out;
    const unsigned bytes = work_.whole_bytes(owner, tile);
    copy(src, takes ? out : nullptr, bytes, args.piece_bytes, step, sends);
    if (bytes / 16 < work_.length(owner, tile)) {
      const unsigned long long at = work_.first(tile) + bytes / 16, part = work_.part_bytes(owner);
      const Unit unit =
          takes ? load_pair(src + bytes) : work_.load_any(work_.output(owner), at, part, true);
      if (sends) store_pair(work_.result_out(ring_next(args), step) + bytes, unit.lo, unit.hi);
      if (takes) work_.store_any(work_.output(owner), at, unit, part, true);
    }
    if (takes) queue({nullptr, 0, step - 1, 0, false});
    if (sends) queue({nullptr, 0, step, 0, true});
  }

  /// Publishes the tiles that have been stored at the other ranks, ignoring the last `least` bulk
  /// stores.
  __device__ void see_relayed(unsigned least) {
    const unsigned before = relayed_;
    while (relayed_ < ended_ && ring_.stored() - shared_.relay_ends[relayed_ % kQueue] >= least)
      ++relayed_;
    if (relayed_ == before) return;
    wait_bulk_stores<false>(ring_.stored() - shared_.relay_ends[(relayed_ - 1) % kQueue]);
    __threadfence_block();
    shared_.relayed = relayed_;
  }
  __device__ void take() {
    const TileShared::BulkMove move = shared_.collect_queue[taken_++ % kQueue];
    if (move.bytes == 0) {
      // No fence: only loads come before, and those have ended when the bytes are on the way out.
      work_.signal(&TileFlags::results_taken, move.relayed ? from_ : owners_,
                   work_.base + move.tile + 1);
      if (move.relayed) shared_.relay_ends[ended_++ % kQueue] = ring_.stored();
      return see_relayed(kLag);
    }
    ring_.await_load();
    if (move.relayed) put_at_others(move);
    if (move.dst != nullptr) ring_.put(move.dst, move.bytes);
    ring_.pass();
    see_relayed(kLag);
  }
  __device__ void put_at_others(const TileShared::BulkMove& move) {
    const TiledArgs& args = work_.args;
    if (args.most_pieces != 0) wait_bulk_stores<false>(args.most_pieces - 1);
    for (int k = 1; k < args.ranks; ++k)
      if (work_.in(to_, work_.target(k)))
        ring_.put(work_.result_out(work_.target(k), move.tile) + move.at, move.bytes);
  }
  __device__ void queue(const TileShared::BulkMove& move) {
    shared_.collect_queue[put_++ % kQueue] = move;
    while (ring_.held() > kAhead || put_ - taken_ == kQueue) take();
  }
  __device__ void copy(const char* src, char* dst, unsigned bytes, unsigned piece, unsigned tile,
                       bool relays) {
    for (unsigned at = 0; at < bytes; at += piece) {
      const unsigned length = min(piece, bytes - at);
      ring_.load(src + at, length);
      queue({dst == nullptr ? nullptr : dst + at, length, tile, at, relays});
    }
  }
  /// Waits for flags of `ranks`. Publishes stored tiles first if a flag has yet to come.
  __device__ void await(TileRoles::FlagRows words, unsigned ranks, unsigned value) {
    for (int k = 1; k < work_.args.ranks; ++k) {
      const int peer = work_.peer(k);
      if (!work_.in(ranks, peer)) continue;
      if (!reached(peek_flag(&(work_.mine().*words)[blockIdx.x][peer]), value)) see_relayed(0);
      work_.await_flag(words, peer, value);
    }
  }

  /// Waits until all ranks that a tile's results are sent on to have a free slot.
  __device__ void await_rooms(unsigned tile) {
    const unsigned window = work_.args.window;
    if (tile >= window) await(&TileFlags::results_taken, to_, work_.base + tile + 1 - window);
  }

  /// Sends on results that have arrived from the rank across, or that were handled here.
  __device__ void relay(unsigned tile) {
    const TiledArgs& args = work_.args;
    const bool from_across = from_ != 0;
    const int owner = from_across ? across(args, args.rank) : args.rank;
    await(&TileFlags::results, from_, work_.base + tile + 1);
    if (!from_across) {
      if (shared_.handled <= tile) see_relayed(0);
      work_.await_shared(shared_.handled, tile + 1);
    }
    await_rooms(tile);
    if (work_.broken) return;
    bulk_follows();
    char* const out = work_.output(owner) + work_.first(tile) * 16;
    const char* const src = from_across ? work_.result_in(owner, tile) : out;
    const unsigned bytes = work_.whole_bytes(owner, tile);
    copy(src, from_across ? out : nullptr, bytes, args.piece_bytes, tile, true);
    if (bytes / 16 < work_.length(owner, tile)) relay_tail(src + bytes, owner, tile, bytes / 16);
    queue({nullptr, 0, tile, 0, true});
  }
  /// Sends on a unit that the part's end truncates.
  __device__ void relay_tail(const char* src, int owner, unsigned tile, unsigned at) {
    const TiledArgs& args = work_.args;
    const unsigned long long unit_at = work_.first(tile) + at, bytes = work_.part_bytes(owner);
    const Unit unit =
        from_ != 0 ? load_pair(src) : work_.load_any(work_.output(owner), unit_at, bytes, true);
    for (int k = 1; k < args.ranks; ++k)
      if (work_.in(to_, work_.target(k)))
        store_pair(work_.result_out(work_.target(k), tile) + at * 16ull, unit.lo, unit.hi);
    if (from_ != 0) work_.store_any(work_.output(owner), unit_at, unit, bytes, true);
  }
  __device__ void collect(unsigned tile) {
    const TiledArgs& args = work_.args;
    await(&TileFlags::results, owners_, work_.base + tile + 1);
    if (work_.broken) return;
    bulk_follows();
    for (int k = 1; k < args.ranks; ++k) {
      const int owner = work_.target(k);
      if (!work_.in(owners_, owner)) continue;
      const char* const src = work_.result_in(owner, tile);
      char* const out = work_.output(owner);
      const unsigned bytes = work_.whole_bytes(owner, tile);
      copy(src, out + work_.first(tile) * 16, bytes, kBulkBytes, tile, false);
      if (bytes / 16 < work_.length(owner, tile))
        work_.store_any(out, work_.first(tile) + bytes / 16, load_pair(src + bytes),
                        work_.part_bytes(owner), true);
    }
    queue({nullptr, 0, tile, 0, false});
  }

  TileRoles& work_;
  TileShared& shared_;
  BulkRing<kCollectStages> ring_;
  const unsigned from_;    ///< in a fold's lower half, the rank that results come from
  const unsigned to_;      ///< ranks that results are sent on to
  const unsigned owners_;  ///< owners whose results are for this rank alone
  unsigned put_ = 0, taken_ = 0, ended_ = 0, relayed_ = 0;
};

__device__ PLAIT_NOINLINE void tile_collect(TileRoles work, const Team team, char* room) {
  const unsigned owners = work.owners_i_read();
  const bool stays = work.args.own_bytes != 0 && work.own_src() != work.own_dst();
  if (stays && work.stays_in_bulk() && team.lane == 0) work.copy_own_in_bulk(room);
  if (owners == 0 && work.relays_to() == 0) return;
  if (!work.bulk_output())
    work.collect_by_threads(team, owners);
  else if (team.lane == 0)
    BulkCollect(work, room, owners).run();
}

}  // namespace plait::cuda
