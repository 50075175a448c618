// The roles of a tiled block's threads that do not depend on types: push, collect by threads,
// place, pass on, and the signal warps, which raise and poll the flags between ranks. Reducing is
// in tiled.cuh, collecting by bulk copies in tile_collect.cuh.
#pragma once
#include "gpu/abi/tile_args.hpp"
#include "gpu/abi/tile_cut.hpp"
#include "gpu/device/units.cuh"
#ifndef PLAIT_BULK  // tests run kernels on host threads (tests/conformance/device_on_host.hpp)
#define PLAIT_BULK "gpu/device/bulk.cuh"
#endif
#include PLAIT_BULK

namespace plait::cuda {

/// Shared memory of a block.
struct TileShared {
  static constexpr unsigned kQueue = 8;
  struct BulkMove {
    char* dst;  ///< null = the whole tile is on its way
    unsigned bytes, tile;
  };
  unsigned long long push_barriers[kPushStages], collect_barriers[kCollectStages];
  BulkMove push_queue[kQueue], collect_queue[kQueue];
  unsigned ends[kQueue];  ///< bulk stores of the push role when the last store of a tile had been
                          ///< issued
  // Tiles so far, each counter with a single writer.
  volatile unsigned stopped;            ///< 1 = no role may begin
  volatile unsigned free;               ///< tiles that owners have free slots for
  volatile unsigned sent;               ///< tiles read from this rank's input
  volatile unsigned arrived;            ///< tiles with all parts at the owners
  volatile unsigned handled;            ///< tiles with results on the way, or in the output
  std::uint8_t targets[kMaxCudaRanks];  ///< in this block's order: this rank, then the peers
  // Tables by rank, computed once per call, since a single thread takes microseconds for an
  // address: parts and results of each owner, and rings of slots, in which tile t has slot t %
  // window.
  const char* input[kMaxCudaRanks];
  char* output[kMaxCudaRanks];
  unsigned long long part_bytes[kMaxCudaRanks];
  char* parts_out[kMaxCudaRanks];    ///< by owner: slots for this rank's part
  char* parts_in[kMaxCudaRanks];     ///< by sender: slots with the part that this rank handles
  char* results_out[kMaxCudaRanks];  ///< by reader: slots for results of this rank
  char* results_in[kMaxCudaRanks];   ///< by owner: slots to take results from
  TiledArgs args;  ///< kernel parameters are slow to read in functions that are not inlined
};

/// State and helpers of roles that do not depend on types. Separate functions call the helpers, to
/// be compiled once and not for every kernel.
struct TileRoles {
  using FlagRow = unsigned (TileFlags::*)[kMaxCudaRanks];

  const TiledArgs& args;
  TileShared& shared;
  const unsigned element;  ///< bytes of an element
  const unsigned tile_units;
  unsigned base;   // tiles of this block in all earlier calls
  unsigned count;  // tiles in this call
  bool broken;
  SpinTimeout timeout;

  __device__ TileRoles(TileShared& between, unsigned element_bytes)
      : args(between.args),
        shared(between),
        element(element_bytes),
        tile_units(cuda::tile_units(args)) {
    const unsigned long long units = (args.part_bytes + 15) / 16,
                             tiles = (units + tile_units - 1) / tile_units;
    count =
        tiles > blockIdx.x ? static_cast<unsigned>((tiles - blockIdx.x - 1) / args.blocks + 1) : 0;
    base = mine().tiles;
    broken = should_exit(args.state);
  }
  /// Flags of this block in a rank's memory.
  __device__ TileFlags& flags_of(int rank) const { return args.flags[rank][blockIdx.x]; }
  __device__ TileFlags& mine() const { return flags_of(args.rank); }
  __device__ bool in(unsigned mask, int rank) const { return (mask >> rank & 1) != 0; }
  __device__ int peer(int k) const { return rank_after(args.rank, k, args.ranks); }
  __device__ unsigned senders_to(int owner) const { return cuda::senders_to(args, owner); }
  /// Returns the k-th target of this block; 0 = this rank.
  __device__ int target(int k) const { return shared.targets[k]; }
  __device__ bool owns() const { return in(args.owners, args.rank); }
  __device__ unsigned owners_of_mine() const { return pushes_to(args, args.rank); }
  __device__ unsigned readers_of_mine() const { return readers_of(args, args.rank); }
  __device__ unsigned owners_i_read() const { return read_by(args, args.rank); }
  __device__ bool bulk_output() const {
    return is_aligned(args.output) && args.result_stride % 16 == 0;
  }
  __device__ unsigned long long part_bytes(int owner) const { return shared.part_bytes[owner]; }
  /// Returns the first unit of the tile within a part.
  __device__ unsigned long long first(unsigned tile) const {
    return first_unit(args, tile_units, blockIdx.x, tile);
  }
  /// Returns the units of the tile in the part of `owner`.
  __device__ unsigned length(int owner, unsigned tile) const {
    const unsigned long long units = (part_bytes(owner) + 15) / 16, from = first(tile);
    return from >= units ? 0
                         : static_cast<unsigned>(
                               min(units - from, static_cast<unsigned long long>(tile_units)));
  }
  /// Returns the tile's bytes that a bulk copy can move: all but a unit that the part's end
  /// truncates.
  __device__ unsigned whole_bytes(int owner, unsigned tile) const {
    const unsigned long long bytes = part_bytes(owner) / 16 * 16, from = first(tile) * 16;
    return from >= bytes ? 0
                         : static_cast<unsigned>(
                               min(bytes - from, static_cast<unsigned long long>(tile_units) * 16));
  }
  __device__ const char* input(int owner) const { return shared.input[owner]; }
  __device__ char* output(int owner) const { return shared.output[owner]; }
  __device__ unsigned long long slot_at(unsigned tile) const { return slot_in_ring(args, tile); }
  __device__ char* part_out(int owner, unsigned tile) const {
    return shared.parts_out[owner] + slot_at(tile);
  }
  __device__ char* part_in(int sender, unsigned tile) const {
    return shared.parts_in[sender] + slot_at(tile);
  }
  __device__ char* result_out(int reader, unsigned tile) const {
    return shared.results_out[reader] + slot_at(tile);
  }
  __device__ char* result_in(int owner, unsigned tile) const {
    return shared.results_in[owner] + slot_at(tile);
  }
  /// `stage` 0: parts, by sender; 1: results, by owner.
  __device__ char* ring(int at, int stage, int from) const {
    return args.slots[at] + slot_offset(args, blockIdx.x, at, stage, from, 0);
  }
  /// Fills in the tables of TileShared for a rank, by a single thread, before all roles.
  __device__ void find_places(int rank) const {
    const int index = cuda::index_of(args, rank);
    shared.input[rank] = static_cast<const char*>(args.input) + index * args.part_stride;
    shared.output[rank] = static_cast<char*>(args.output) + index * args.result_stride;
    shared.part_bytes[rank] = cuda::part_bytes(args, rank);
    shared.parts_out[rank] = ring(rank, 0, args.rank);
    shared.parts_in[rank] = ring(args.rank, 0, rank);
    shared.results_out[rank] = ring(rank, 1, args.rank);
    shared.results_in[rank] = ring(args.rank, 1, rank);
  }

  __device__ void await_flag(FlagRow words, unsigned rank, unsigned value) {
    const unsigned* word = &(mine().*words)[rank];
    while (!broken && !reached(peek_flag(word), value))
      broken = timeout.expired(args.state, args.stop_page, args.wait_ns, rank, value, ~0u);
    load_flag(word);
    timeout.began_ns = 0;  // the next wait has a fresh deadline
  }
  __device__ void await_flags(FlagRow words, unsigned ranks, unsigned value) {
    for (int k = 1; k < args.ranks; ++k)
      if (in(ranks, peer(k))) await_flag(words, peer(k), value);
  }
  /// The whole team waits; a thread per rank polls.
  __device__ void await_together(const Team& team, FlagRow words, unsigned ranks, unsigned value) {
    if (team.lane < kMaxCudaRanks && in(ranks, static_cast<int>(team.lane)))
      await_flag(words, team.lane, value);
    broken = team.any(broken);
  }
  __device__ bool is_peer(unsigned rank) const {
    return rank < static_cast<unsigned>(args.ranks) && rank != static_cast<unsigned>(args.rank);
  }
  /// Waits, with a thread per peer and before all roles, until no rank reads from this rank's slots
  /// any more and the slots may be written. Returns false if the wait was given up; then no role
  /// may begin.
  __device__ bool await_ended(unsigned rank) {
    if (!is_peer(rank)) return true;
    if (!reached(load_flag(&mine().ended[rank]), base)) await_flag(&TileFlags::ended, rank, base);
    return !broken;
  }
  /// Signals, with a thread per peer and after all roles, that this rank reads no slots any more.
  /// No fence: only loads come before.
  __device__ void signal_ended(unsigned rank) const {
    if (is_peer(rank))
      store_flag_relaxed(&flags_of(static_cast<int>(rank)).ended[args.rank], base + count);
  }
  /// Waits until the data of the slot `window` tiles before has been taken.
  __device__ void await_room(FlagRow words, unsigned rank, unsigned tile) {
    if (tile >= args.window) await_flag(words, rank, base + tile + 1 - args.window);
  }
  /// Signals that the handle role has read a tile out of the slots. No fence: only loads come
  /// before, and those have ended when the data is stored.
  __device__ void signal_taken(const Team& team, unsigned from, unsigned tile) const {
    if (team.lane < kMaxCudaRanks && in(from, static_cast<int>(team.lane)))
      store_flag_relaxed(&flags_of(static_cast<int>(team.lane)).parts_taken[args.rank],
                         base + tile + 1);
  }
  /// Raises flags by a single thread, after fence_before_flags().
  __device__ void signal(FlagRow words, unsigned ranks, unsigned value) const {
    for (int k = 1; k < args.ranks; ++k)
      if (in(ranks, peer(k))) store_flag_relaxed(&(flags_of(peer(k)).*words)[args.rank], value);
  }
  /// Signals a peer that does not wait in this call for all tiles at once, because flags count the
  /// tiles of all calls.
  __device__ void signal_idle_peers(int rank) const {
    const unsigned end = base + count;
    TileFlags& theirs = flags_of(rank);
    if (!in(owners_of_mine(), rank)) store_flag(&theirs.parts[args.rank], end);
    if (!in(senders_to(args.rank), rank)) store_flag(&theirs.parts_taken[args.rank], end);
    if (!in(readers_of_mine(), rank)) store_flag(&theirs.results[args.rank], end);
    if (!in(owners_i_read(), rank)) store_flag(&theirs.results_taken[args.rank], end);
  }

  // --- push -------------------------------------------------------------------------------------

  __device__ void push_by_threads(const Team& team, unsigned to) {
    for (unsigned tile = 0; tile < count; ++tile) {
      if (team.lane == 0) await_shared(shared.free, tile + 1);
      broken = team.any(broken);
      if (broken) return;
      for (int k = 1; k < args.ranks; ++k) {
        const int owner = target(k);
        if (in(to, owner))
          put_units(team, part_out(owner, tile), input(owner), part_bytes(owner), first(tile),
                    length(owner, tile), element);
      }
      team.barrier();
      if (team.lane != 0) continue;
      __threadfence_block();
      shared.sent = tile + 1;
      shared.arrived = tile + 1;
    }
  }

  /// Paces a block's bulk copies of parts if the call has a rate: overloaded links delay the flags
  /// behind the data. Blocks start in turn. A late block does not catch up, so that no GPU ever
  /// sends faster (docs/design/tiled.md).
  struct SendRate {
    const unsigned long long ps_per_kib;
    unsigned long long began_ns, due_ps;  // due_ps counts from began_ns

    __device__ explicit SendRate(const TiledArgs& args)
        : ps_per_kib(args.ps_per_kib),
          began_ns(ps_per_kib != 0 ? now_ns() : 0),
          due_ps(ps_per_kib * (kBulkBytes / 1024) * blockIdx.x / args.blocks) {}
    /// Returns the time since began_ns. A clock that steps back restarts the rate.
    __device__ unsigned long long passed_ps() {
      const unsigned long long now = now_ns();
      if (is_not_past(began_ns, now)) began_ns = now, due_ps = 0;
      return (now - began_ns) * 1000;
    }
    __device__ void await_turn(TileRoles& work, unsigned bytes) {
      if (ps_per_kib == 0) return;
      unsigned long long at_ps = passed_ps();
      while (at_ps < due_ps && !work.broken) {
        work.broken = work.timeout.failed_elsewhere(work.args.state);
        at_ps = passed_ps();
      }
      due_ps = max(due_ps, at_ps) + ps_per_kib * bytes / 1024;
    }
  };
  /// One thread. The arrival of a tile is published some pieces later, or at once before the thread
  /// waits for slots.
  __device__ void push_in_bulk(char* room, unsigned to) {
    BulkRing<kPushStages> ring(room, shared.push_barriers);
    constexpr unsigned kAhead = 3, kLag = 2, kQueue = TileShared::kQueue;
    unsigned put = 0, taken = 0, ready = 0, ended = 0, arrived = 0;
    SendRate rate(args);
    const auto see_arrived = [&](unsigned lag) {
      const unsigned before = arrived;
      while (arrived < ended && ring.stored() - shared.ends[arrived % kQueue] >= lag) ++arrived;
      if (arrived == before) return;
      wait_bulk_stores<false>(ring.stored() - shared.ends[(arrived - 1) % kQueue]);
      __threadfence_block();
      shared.arrived = arrived;
    };
    const auto take = [&] {
      const TileShared::BulkMove move = shared.push_queue[taken++ % kQueue];
      if (move.dst == nullptr) {
        __threadfence_block();
        shared.sent = move.tile + 1;
        shared.ends[ended++ % kQueue] = ring.stored();
        return see_arrived(kLag);
      }
      ring.await_load();
      if (move.tile >= ready) {
        if (shared.free <= move.tile) see_arrived(0);
        await_shared(shared.free, move.tile + 1);
        ready = shared.free;
      }
      rate.await_turn(*this, move.bytes);
      if (broken) return;
      ring.store(move.dst, move.bytes);
      see_arrived(kLag);
    };
    const auto queue = [&](const TileShared::BulkMove& move) {
      shared.push_queue[put++ % kQueue] = move;
      while (!broken && (ring.held() > kAhead || put - taken == kQueue)) take();
    };
    // Pushes pieces [from, end) of a target's part of the tile; returns true if the part's end
    // truncates a unit.
    const auto push = [&](int owner, unsigned tile, unsigned from, unsigned end) {
      const unsigned bytes = whole_bytes(owner, tile);
      const char* const src = input(owner) + first(tile) * 16;
      char* const dst = part_out(owner, tile);
      for (unsigned at = from; at < min(bytes, end) && !broken; at += args.piece_bytes) {
        const unsigned piece = min(args.piece_bytes, bytes - at);
        ring.load(src + at, piece);
        queue({dst + at, piece, tile});
      }
      return length(owner, tile) * 16 != bytes;
    };
    for (unsigned tile = 0; tile < count && !broken; ++tile) {
      bool cut_short = false;
      const unsigned all = tile_units * 16, step = args.in_turn != 0 ? args.piece_bytes : all;
      for (unsigned from = 0; from < all && !broken; from += step)
        for (int k = 1; k < args.ranks; ++k)
          if (in(to, target(k)) && push(target(k), tile, from, from + step)) cut_short = true;
      if (cut_short && !broken) {
        while (!broken && put != taken) take();
        see_arrived(0);
        push_tails(tile, to);
      }
      if (!broken) queue({nullptr, 0, tile});
    }
    while (!broken && put != taken) take();
    if (!broken) see_arrived(0);
    ring.end();
  }
  /// Pushes units that the end of a part truncates; only the last tile of a part has any.
  __device__ void push_tails(unsigned tile, unsigned to) {
    await_shared(shared.free, tile + 1);
    for (int k = 1; k < args.ranks && !broken; ++k) {
      const int owner = peer(k);
      const unsigned whole = whole_bytes(owner, tile) / 16;
      if (!in(to, owner) || whole == length(owner, tile)) continue;
      const Unit unit = load_any(input(owner), first(tile) + whole, part_bytes(owner), true);
      store_pair(part_out(owner, tile) + whole * 16ull, unit.lo, unit.hi);
    }
  }

  __device__ Unit load_any(const char* src, unsigned long long unit, unsigned long long bytes,
                           bool whole) const {
    return cuda::load_any(src, unit, bytes, whole, element);
  }
  __device__ void store_any(char* dst, unsigned long long unit, const Unit& value,
                            unsigned long long bytes, bool whole) const {
    cuda::store_any(dst, unit, value, bytes, whole, element);
  }
  __device__ void await_shared(const volatile unsigned& word, unsigned value) {
    while (!broken && word < value) broken = timeout.failed_elsewhere(args.state);
    __threadfence_block();
  }

  // --- signal warps, one thread each ------------------------------------------------------------

  /// Publishes the tiles that all owners have free slots for.
  __device__ void watch_room() {
    const unsigned to = owners_of_mine();
    unsigned free = min(count, args.window);
    shared.free = free;
    while (free < count && !broken) {
      unsigned least = base + count, last = args.rank;
      for (int k = 1; k < args.ranks; ++k) {
        if (!in(to, peer(k))) continue;
        const unsigned room = peek_flag(&mine().parts_taken[peer(k)]) + args.window;
        if (reached(room, least)) continue;
        least = room;
        last = peer(k);
      }
      if (reached(base + free, least)) {
        broken = timeout.expired(args.state, args.stop_page, args.wait_ns, last, free, ~0u);
        continue;
      }
      free = least - base;
      timeout.began_ns = 0;
      for (int k = 1; k < args.ranks; ++k)
        if (in(to, peer(k))) load_flag(&mine().parts_taken[peer(k)]);
      bulk_follows();
      __threadfence_block();
      shared.free = free;
    }
  }
  /// Signals tiles that have arrived, and tiles that were handled and became results, with a single
  /// fence for all new tiles. The end of the bulk stores is not enough: without a fence, peers read
  /// elements that had not arrived (E-0306).
  __device__ void signal_all() {
    const unsigned to = owners_of_mine(), readers = readers_of_mine();
    unsigned arrived = to != 0 ? 0 : count, handled = readers != 0 ? 0 : count;
    while (arrived < count || handled < count) {
      const unsigned sent = to != 0 ? shared.arrived : count,
                     taken = readers != 0 ? shared.handled : count;
      if (sent == arrived && taken == handled) {
        broken = broken || timeout.failed_elsewhere(args.state);
        if (broken) return;
        continue;
      }
      fence_before_flags();
      if (sent != arrived) signal(&TileFlags::parts, to, base + sent);
      if (taken != handled) signal(&TileFlags::results, readers, base + taken);
      arrived = sent;
      handled = taken;
    }
  }

  // --- pass on, place, stay ---------------------------------------------------------------------

  /// Passes a part to all readers: the root's part of a broadcast, from a slot, or this rank's part
  /// of an all_gather, from the input.
  __device__ void pass(const Team& team, unsigned tile, unsigned from) {
    const int source = from == 0 ? args.rank : __ffs(static_cast<int>(from)) - 1;
    const char* src = from == 0 ? static_cast<const char*>(args.input) : part_in(source, tile);
    const unsigned long long bytes = part_bytes(args.rank), start = first(tile);
    const unsigned limit = length(args.rank, tile);
    const bool whole = is_aligned(src);
    char* out = output(args.rank);
    const bool keeps = in(args.keepers, args.rank) && out != src, whole_out = is_aligned(out);
    for (unsigned i = team.lane; i < limit; i += 4 * team.threads) {
      Unit held[4];
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (i + u * team.threads < limit)
          held[u] = from != 0 ? load_pair(src + (i + u * team.threads) * 16ull)
                              : load_any(src, start + i + u * team.threads, bytes, whole);
      for (int k = 1; k < args.ranks; ++k)
        if (in(readers_of_mine(), peer(k)) && (from == 0 || peer(k) != source)) {
          auto* to = reinterpret_cast<ulonglong2*>(result_out(peer(k), tile));
#pragma unroll
          for (int u = 0; u < 4; ++u)
            if (i + u * team.threads < limit)
              store_plain(&to[i + u * team.threads], make_ulonglong2(held[u].lo, held[u].hi));
        }
      if (!keeps) continue;
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (i + u * team.threads < limit)
          store_any(out, start + i + u * team.threads, held[u], bytes, whole_out);
    }
  }

  __device__ void place(const Team& team, unsigned tile, unsigned from) {
    for (int k = 1; k < args.ranks; ++k)
      if (in(from, peer(k)))
        take_units(team, static_cast<char*>(args.output) + peer(k) * args.place_stride,
                   part_bytes(args.rank), first(tile), part_in(peer(k), tile),
                   length(args.rank, tile), element);
  }

  /// Source of the part of this rank's input that goes into its own output unchanged.
  __device__ const char* own_src() const {
    return static_cast<const char*>(args.input) + args.own_from;
  }
  __device__ char* own_dst() const { return static_cast<char*>(args.output) + args.own_to; }
  __device__ bool stays_in_bulk() const { return is_aligned(own_src()) && is_aligned(own_dst()); }
  __device__ void copy_own_by_threads() const {
    const unsigned long long units = (args.own_bytes + 15) / 16;
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < units;
         i += static_cast<unsigned long long>(gridDim.x) * blockDim.x)
      store_any(own_dst(), i, load_any(own_src(), i, args.own_bytes, false), args.own_bytes, false);
  }
  /// One thread. Pieces are copied one by one as tiles are sent: copying all at once would occupy
  /// the memory that a call's first tiles come from. A rank that sends no tiles waits for nothing.
  __device__ void copy_own_in_bulk(char* room) {
    BulkRing<kCollectStages> ring(room, shared.collect_barriers);
    constexpr unsigned kAhead = 2;
    const unsigned long long bytes = args.own_bytes / 16 * 16,
                             step = static_cast<unsigned long long>(gridDim.x) * kBulkBytes;
    const auto length = [&](unsigned long long at) {
      return static_cast<unsigned>(min(bytes - at, static_cast<unsigned long long>(kBulkBytes)));
    };
    const unsigned long long pieces = (bytes + step - 1) / step;
    unsigned long long next = static_cast<unsigned long long>(blockIdx.x) * kBulkBytes, piece = 0;
    for (unsigned long long at = next; at < bytes || ring.held() != 0; at += step) {
      if (at < bytes) {
        await_shared(shared.sent, static_cast<unsigned>((piece++ * count + pieces - 1) / pieces));
        ring.load(own_src() + at, length(at));
      }
      if (at < bytes && ring.held() <= kAhead) continue;
      ring.await_load();
      ring.store(own_dst() + next, length(next));
      next += step;
    }
    ring.end();
    if (blockIdx.x == 0 && bytes != args.own_bytes)
      store_any(own_dst(), bytes / 16, load_any(own_src(), bytes / 16, args.own_bytes, false),
                args.own_bytes, false);
  }

  // --- collect ----------------------------------------------------------------------------------

  __device__ void collect_by_threads(const Team& team, unsigned owners) {
    for (unsigned tile = 0; tile < count; ++tile) {
      await_together(team, &TileFlags::results, owners, base + tile + 1);
      if (broken) return;
      for (int k = 1; k < args.ranks; ++k)
        if (in(owners, peer(k)))
          take_units(team, output(peer(k)), part_bytes(peer(k)), first(tile),
                     result_in(peer(k), tile), length(peer(k), tile), element);
      team.barrier();
      if (team.lane != 0) continue;
      fence_before_flags();
      signal(&TileFlags::results_taken, owners, base + tile + 1);
    }
  }
};

__device__ PLAIT_NOINLINE void tile_push(TileRoles work, const Team team, char* room) {
  const unsigned to = work.owners_of_mine();
  const bool bulk = is_aligned(work.args.input) && work.args.part_stride % 16 == 0;
  if (!bulk || to == 0)
    work.push_by_threads(team, to);
  else if (team.lane == 0)
    work.push_in_bulk(room, to);
}
__device__ PLAIT_NOINLINE void tile_signal_warps(TileRoles work, unsigned warp, unsigned lane) {
  if (warp == 0 && !work.broken && lane < static_cast<unsigned>(work.args.ranks) &&
      lane != static_cast<unsigned>(work.args.rank))
    work.signal_idle_peers(static_cast<int>(lane));
  if (lane != 0) return;
  if (warp == 0)
    work.signal_all();
  else
    work.watch_room();
}
__device__ PLAIT_NOINLINE void tile_pass(TileRoles work, const Team team, unsigned tile,
                                         unsigned from) {
  work.pass(team, tile, from);
}
__device__ PLAIT_NOINLINE void tile_place(TileRoles work, const Team team, unsigned tile,
                                          unsigned from) {
  work.place(team, tile, from);
}
/// Copies, by all threads before all roles, data that the collect role cannot copy in bulk.
__device__ PLAIT_NOINLINE void tile_copy_own(TileRoles work) {
  if (work.own_src() != work.own_dst() && !work.stays_in_bulk()) work.copy_own_by_threads();
}

}  // namespace plait::cuda
