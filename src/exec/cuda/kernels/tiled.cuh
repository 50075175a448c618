// Any collective of any size in one kernel. The message is cut into tiles; on every rank, block b
// works with block b of the others. Threads have roles. *Push* sends this rank's parts into their
// owners' slots, *handle* reduces (or passes on, or places) what came and sends results into the
// readers' slots, *collect* copies results out. Four slots a pair make a pipeline: while a tile
// travels, the one before is reduced and the one before that copied out. Push and collect are bulk
// copies of one thread where addresses allow, else loads and stores of their role's threads: ranks
// need not agree, as slots and words are the same.
// Idea: the pipelined two-stage all-reduce of Micro 2021, at the grain of a thread block.
#pragma once
#include "exec/cuda/kernels/bulk.cuh"
#include "exec/cuda/tile_cut.hpp"

namespace plait::cuda {

/// What the roles of a block share.
struct TileShared {
  static constexpr unsigned kQueue = 8;
  struct Move {
    char* dst;  ///< null = all of the tile is on its way
    unsigned bytes, tile;
  };
  unsigned long long push_barriers[kPushStages], collect_barriers[kCollectStages];
  Move push_queue[kQueue], collect_queue[kQueue];
  unsigned ends[kQueue];      ///< bulk stores of the push role when a tile's last had been issued
  volatile unsigned sent;     ///< tiles of which this rank's input has been read
  volatile unsigned handled;  ///< tiles that have been told as handled
};

/// Threads that do one thing together; a named barrier keeps them in step.
struct Team {
  unsigned id, threads, lane;
  __device__ void meet() const {
    asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
  }
  __device__ bool any(bool mine) const {
    unsigned found;
    asm volatile(
        "{ .reg .pred p, q;\n"
        "setp.ne.u32 p, %3, 0;\n"
        "barrier.cta.red.or.pred q, %1, %2, p;\n"
        "selp.u32 %0, 1, 0, q; }"
        : "=r"(found)
        : "r"(id), "r"(threads), "r"(mine ? 1u : 0u)
        : "memory");
    return found != 0;
  }
};

/// What roles need that does not depend on types; calls of it stand in functions of their own, so
/// that they are compiled once and not for every kernel.
struct TileRoles {
  using Words = unsigned (TileFlags::*)[kTileBlocks][kMaxCudaRanks];

  const TiledArgs& args;
  TileShared& shared;
  const unsigned element;  ///< bytes
  const unsigned tile_units;
  unsigned base;   // tiles of this block in all earlier calls
  unsigned count;  // in this call
  bool broken;
  Patience patience;

  __device__ TileRoles(const TiledArgs& given, TileShared& between, unsigned element_bytes)
      : args(given), shared(between), element(element_bytes), tile_units(cuda::tile_units(given)) {
    const unsigned long long units = (args.part_bytes + 15) / 16,
                             tiles = (units + tile_units - 1) / tile_units;
    count =
        tiles > blockIdx.x ? static_cast<unsigned>((tiles - blockIdx.x - 1) / args.blocks + 1) : 0;
    base = mine().tiles[blockIdx.x];
    broken = args.state->failed != 0;
  }
  __device__ TileFlags& mine() const { return *args.flags[args.rank]; }
  __device__ bool in(unsigned mask, int rank) const { return (mask >> rank & 1) != 0; }
  __device__ int peer(int k) const { return rank_after(args.rank, k, args.ranks); }
  __device__ unsigned senders_to(int owner) const { return cuda::senders_to(args, owner); }
  __device__ unsigned others(unsigned mask) const { return mask & ~(1u << args.rank); }
  __device__ bool owns() const { return in(args.owners, args.rank); }
  __device__ unsigned owners_of_mine() const {
    unsigned to = 0;
    for (int k = 1; k < args.ranks; ++k)
      if (in(senders_to(peer(k)), args.rank)) to |= 1u << peer(k);
    return to;
  }
  __device__ unsigned readers_of_mine() const { return owns() ? others(args.readers) : 0; }
  __device__ unsigned owners_i_read() const {
    return in(args.readers, args.rank) ? others(args.owners) : 0;
  }
  __device__ unsigned long long part_bytes(int owner) const {
    return cuda::part_bytes(args, owner);
  }
  /// First unit of the tile within a part.
  __device__ unsigned long long first(unsigned tile) const {
    return (blockIdx.x + static_cast<unsigned long long>(tile) * args.blocks) * tile_units;
  }
  /// Units of the tile in the part of `owner`.
  __device__ unsigned length(int owner, unsigned tile) const {
    const unsigned long long units = (part_bytes(owner) + 15) / 16, from = first(tile);
    return from >= units ? 0
                         : static_cast<unsigned>(
                               min(units - from, static_cast<unsigned long long>(tile_units)));
  }
  /// Of these, what a bulk copy can move: all but a unit that the part's end cuts short.
  __device__ unsigned whole_bytes(int owner, unsigned tile) const {
    const unsigned long long bytes = part_bytes(owner) / 16 * 16, from = first(tile) * 16;
    return from >= bytes ? 0
                         : static_cast<unsigned>(
                               min(bytes - from, static_cast<unsigned long long>(tile_units) * 16));
  }
  /// `stage` 0: parts, by sender; 1: results, by owner.
  __device__ char* slot(int at, int stage, int from, unsigned tile) const {
    const unsigned long long index =
        ((static_cast<unsigned long long>(blockIdx.x) * 2 + stage) * args.ranks + from) *
            kTileSlots +
        (base + tile) % kTileSlots;
    return args.slots[at] + index * args.slot_bytes;
  }
  __device__ const char* input(int owner) const {
    return static_cast<const char*>(args.input) + cuda::index_of(args, owner) * args.part_stride;
  }
  __device__ char* output(int owner) const {
    return static_cast<char*>(args.output) + cuda::index_of(args, owner) * args.result_stride;
  }

  /// One thread: whether the words of all `ranks` have reached `value`.
  __device__ bool all_reached(Words words, unsigned ranks, unsigned value) const {
    for (int k = 1; k < args.ranks; ++k)
      if (in(ranks, peer(k)) && !reached(load_flag(&(mine().*words)[blockIdx.x][peer(k)]), value))
        return false;
    return true;
  }
  __device__ void await_word(Words words, unsigned rank, unsigned value) {
    const unsigned* word = &(mine().*words)[blockIdx.x][rank];
    while (!broken && !reached(load_flag(word), value))
      broken = patience.gone(args.state, args.lifeline, args.wait_ns, rank, value, ~0u);
  }
  __device__ void await_words(Words words, unsigned ranks, unsigned value) {
    for (int k = 1; k < args.ranks; ++k)
      if (in(ranks, peer(k))) await_word(words, peer(k), value);
  }
  /// A whole team waits; a thread a rank looks.
  __device__ void await_together(const Team& team, Words words, unsigned ranks, unsigned value) {
    if (team.lane < kMaxCudaRanks && in(ranks, static_cast<int>(team.lane)))
      await_word(words, team.lane, value);
    broken = team.any(broken);
  }
  /// One thread tells `ranks` that everything before it in this role holds.
  __device__ void tell(Words words, unsigned ranks, unsigned value) const {
    if (ranks == 0) return;
    fence_before_flags();
    for (int k = 1; k < args.ranks; ++k)
      if (in(ranks, peer(k)))
        store_flag_relaxed(&(args.flags[peer(k)]->*words)[blockIdx.x][args.rank], value);
  }
  /// Words count the tiles of all calls, so who does not wait in this call is told of all its tiles
  /// at once.
  __device__ void tell_who_does_not_wait(int rank) const {
    const unsigned end = base + count;
    TileFlags& theirs = *args.flags[rank];
    if (!in(owners_of_mine(), rank)) store_flag(&theirs.parts[blockIdx.x][args.rank], end);
    if (!in(senders_to(args.rank), rank))
      store_flag(&theirs.parts_taken[blockIdx.x][args.rank], end);
    if (!in(readers_of_mine(), rank)) store_flag(&theirs.results[blockIdx.x][args.rank], end);
    if (!in(owners_i_read(), rank)) store_flag(&theirs.results_taken[blockIdx.x][args.rank], end);
  }

  // --- push -------------------------------------------------------------------------------------

  __device__ void push_by_threads(const Team& team, unsigned to) {
    for (unsigned tile = 0; tile < count; ++tile) {
      await_together(team, &TileFlags::parts_taken, to, base + tile + 1 - kTileSlots);
      if (broken) return;
      for (int k = 1; k < args.ranks; ++k)
        if (in(to, peer(k)))
          send(team, slot(peer(k), 0, args.rank, tile), input(peer(k)), part_bytes(peer(k)),
               first(tile), length(peer(k), tile));
      team.meet();
      if (team.lane != 0) continue;
      shared.sent = tile + 1;
      tell(&TileFlags::parts, to, base + tile + 1);
    }
  }

  /// One thread. Tiles are told a few pieces later, when their stores have arrived; all at once
  /// before it waits for a peer.
  __device__ void push_in_bulk(char* room, unsigned to) {
    BulkRing<kPushStages> ring(room, shared.push_barriers);
    constexpr unsigned kAhead = 3, kLag = 2, kQueue = TileShared::kQueue;
    unsigned put = 0, taken = 0, ready = 0, ended = 0, told = 0;
    const auto tell_arrived = [&](unsigned lag) {
      for (; told < ended && ring.stored() - shared.ends[told % kQueue] >= lag; ++told) {
        wait_bulk_stores<false>(ring.stored() - shared.ends[told % kQueue]);
        tell(&TileFlags::parts, to, base + told + 1);
      }
    };
    const auto take = [&] {
      const TileShared::Move move = shared.push_queue[taken++ % kQueue];
      if (move.dst == nullptr) {
        shared.sent = move.tile + 1;
        shared.ends[ended++ % kQueue] = ring.stored();
        return tell_arrived(kLag);
      }
      ring.await_load();
      if (move.tile >= ready) {
        const unsigned value = base + move.tile + 1 - kTileSlots;
        if (!all_reached(&TileFlags::parts_taken, to, value)) {
          tell_arrived(0);
          await_words(&TileFlags::parts_taken, to, value);
        }
        bulk_follows();
        ready = move.tile + 1;
      }
      if (broken) return;
      ring.store(move.dst, move.bytes);
      tell_arrived(kLag);
    };
    const auto queue = [&](char* dst, unsigned bytes, unsigned tile) {
      shared.push_queue[put++ % kQueue] = {dst, bytes, tile};
      while (!broken && (ring.held() > kAhead || put - taken == kQueue)) take();
    };
    for (unsigned tile = 0; tile < count && !broken; ++tile) {
      for (int k = 1; k < args.ranks; ++k) {
        const int owner = peer(k);
        const unsigned bytes = in(to, owner) ? whole_bytes(owner, tile) : 0;
        for (unsigned at = 0; at < bytes && !broken; at += kBulkBytes) {
          const unsigned piece = min(kBulkBytes, bytes - at);
          ring.load(input(owner) + first(tile) * 16 + at, piece);
          queue(slot(owner, 0, args.rank, tile) + at, piece, tile);
        }
      }
      if (!broken && cuts_short(tile, to)) {
        while (!broken && put != taken) take();
        tell_arrived(0);
        push_tails(tile, to);
      }
      if (!broken) queue(nullptr, 0, tile);
    }
    while (!broken && put != taken) take();
    if (!broken) tell_arrived(0);
    ring.end();
  }
  /// Units that the end of a part cuts short; only the last tile of a part has one.
  __device__ bool cuts_short(unsigned tile, unsigned to) const {
    for (int k = 1; k < args.ranks; ++k)
      if (in(to, peer(k)) && length(peer(k), tile) * 16 != whole_bytes(peer(k), tile)) return true;
    return false;
  }
  __device__ void push_tails(unsigned tile, unsigned to) {
    await_words(&TileFlags::parts_taken, to, base + tile + 1 - kTileSlots);
    for (int k = 1; k < args.ranks && !broken; ++k) {
      const int owner = peer(k);
      const unsigned whole = whole_bytes(owner, tile) / 16;
      if (!in(to, owner) || whole == length(owner, tile)) continue;
      const Unit unit = load_any(input(owner), first(tile) + whole, part_bytes(owner), true);
      store_pair(slot(owner, 0, args.rank, tile) + whole * 16ull, unit.lo, unit.hi);
    }
  }

  /// Units of a buffer of any alignment, by the width of its elements.
  __device__ Unit load_any(const char* src, unsigned long long unit, unsigned long long bytes,
                           bool whole) const {
    switch (element) {
      case 1: return load_unit<std::uint8_t>(src, unit, bytes, whole);
      case 2: return load_unit<std::uint16_t>(src, unit, bytes, whole);
      case 4: return load_unit<std::uint32_t>(src, unit, bytes, whole);
      default: return load_unit<std::uint64_t>(src, unit, bytes, whole);
    }
  }
  __device__ void store_any(char* dst, unsigned long long unit, const Unit& value,
                            unsigned long long bytes, bool whole) const {
    switch (element) {
      case 1: return store_unit<std::uint8_t>(dst, unit, value, bytes, whole);
      case 2: return store_unit<std::uint16_t>(dst, unit, value, bytes, whole);
      case 4: return store_unit<std::uint32_t>(dst, unit, value, bytes, whole);
      default: return store_unit<std::uint64_t>(dst, unit, value, bytes, whole);
    }
  }
  /// `limit` units from unit `from` of `src` on, into a slot.
  __device__ void send(const Team& team, char* to, const char* src, unsigned long long bytes,
                       unsigned long long from, unsigned limit) const {
    auto* dst = reinterpret_cast<ulonglong2*>(to);
    const bool whole = is_aligned(src);
    for (unsigned i = team.lane; i < limit; i += 4 * team.threads) {
      Unit held[4];
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (i + u * team.threads < limit)
          held[u] = load_any(src, from + i + u * team.threads, bytes, whole);
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (i + u * team.threads < limit)
          dst[i + u * team.threads] = make_ulonglong2(held[u].lo, held[u].hi);
    }
  }
  /// `limit` units of a slot, to unit `from` of `to` on.
  __device__ void put(const Team& team, char* to, unsigned long long bytes, unsigned long long from,
                      const char* slot, unsigned limit) const {
    const bool whole = is_aligned(to);
    for (unsigned i = team.lane; i < limit; i += 4 * team.threads) {
      Unit held[4];
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (i + u * team.threads < limit)
          held[u] = load_pair(slot + (i + u * team.threads) * 16ull);
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (i + u * team.threads < limit)
          store_any(to, from + i + u * team.threads, held[u], bytes, whole);
    }
  }
  __device__ void await_shared(const volatile unsigned& word, unsigned value) {
    while (!broken && word < value)
      broken = patience.gone(args.state, args.lifeline, args.wait_ns, args.rank, value, ~0u);
    __threadfence_block();
  }

  // --- pass on, place, stay ---------------------------------------------------------------------

  /// The root's part (broadcast), or this rank's own input (all_gather), to all readers.
  __device__ void pass(const Team& team, unsigned tile, unsigned from) {
    const int source = from == 0 ? args.rank : __ffs(static_cast<int>(from)) - 1;
    const char* src =
        from == 0 ? static_cast<const char*>(args.input) : slot(args.rank, 0, source, tile);
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
        if (in(args.readers, peer(k)) && peer(k) != source) {
          auto* to = reinterpret_cast<ulonglong2*>(slot(peer(k), 1, args.rank, tile));
#pragma unroll
          for (int u = 0; u < 4; ++u)
            if (i + u * team.threads < limit)
              to[i + u * team.threads] = make_ulonglong2(held[u].lo, held[u].hi);
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
        put(team, static_cast<char*>(args.output) + peer(k) * args.place_stride,
            part_bytes(args.rank), first(tile), slot(args.rank, 0, peer(k), tile),
            length(args.rank, tile));
  }

  /// What of this rank's input belongs in its own output as it is.
  __device__ void copy_own() const {
    const char* src = static_cast<const char*>(args.input) + args.own_from;
    char* dst = static_cast<char*>(args.output) + args.own_to;
    if (src == dst) return;
    const bool whole = is_aligned(src) && is_aligned(dst);
    const unsigned long long units = (args.own_bytes + 15) / 16;
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < units;
         i += static_cast<unsigned long long>(gridDim.x) * blockDim.x)
      store_any(dst, i, load_any(src, i, args.own_bytes, whole), args.own_bytes, whole);
  }

  // --- collect ----------------------------------------------------------------------------------

  __device__ void collect_by_threads(const Team& team, unsigned owners) {
    for (unsigned tile = 0; tile < count; ++tile) {
      await_together(team, &TileFlags::results, owners, base + tile + 1);
      if (broken) return;
      for (int k = 1; k < args.ranks; ++k)
        if (in(owners, peer(k)))
          put(team, output(peer(k)), part_bytes(peer(k)), first(tile),
              slot(args.rank, 1, peer(k), tile), length(peer(k), tile));
      team.meet();
      if (team.lane == 0) tell(&TileFlags::results_taken, owners, base + tile + 1);
    }
  }

  /// One thread.
  __device__ void collect_in_bulk(char* room, unsigned owners) {
    BulkRing<kCollectStages> ring(room, shared.collect_barriers);
    constexpr unsigned kAhead = 2, kQueue = TileShared::kQueue;
    unsigned put = 0, taken = 0;
    const auto take = [&] {
      const TileShared::Move move = shared.collect_queue[taken++ % kQueue];
      if (move.dst == nullptr) return tell(&TileFlags::results_taken, owners, base + move.tile + 1);
      ring.await_load();
      ring.store(move.dst, move.bytes);
    };
    const auto queue = [&](char* dst, unsigned bytes, unsigned tile) {
      shared.collect_queue[put++ % kQueue] = {dst, bytes, tile};
      while (ring.held() > kAhead || put - taken == kQueue) take();
    };
    for (unsigned tile = 0; tile < count && !broken; ++tile) {
      if (!all_reached(&TileFlags::results, owners, base + tile + 1)) {
        while (put != taken) take();
        await_words(&TileFlags::results, owners, base + tile + 1);
        if (broken) break;
      }
      bulk_follows();
      for (int k = 1; k < args.ranks; ++k) {
        const int owner = peer(k);
        if (!in(owners, owner)) continue;
        const char* const src = slot(args.rank, 1, owner, tile);
        const unsigned bytes = whole_bytes(owner, tile);
        for (unsigned at = 0; at < bytes; at += kBulkBytes) {
          ring.load(src + at, min(kBulkBytes, bytes - at));
          queue(output(owner) + first(tile) * 16 + at, min(kBulkBytes, bytes - at), tile);
        }
        if (bytes / 16 < length(owner, tile))
          store_any(output(owner), first(tile) + bytes / 16, load_pair(src + bytes),
                    part_bytes(owner), true);
      }
      queue(nullptr, 0, tile);
    }
    while (put != taken) take();
    ring.end();
  }
};

__device__ __noinline__ void tile_push(TileRoles work, const Team team, char* room) {
  const unsigned to = work.owners_of_mine();
  const bool bulk = is_aligned(work.args.input) && work.args.part_stride % 16 == 0;
  if (!bulk || to == 0)
    work.push_by_threads(team, to);
  else if (team.lane == 0)
    work.push_in_bulk(room, to);
}
__device__ __noinline__ void tile_collect(TileRoles work, const Team team, char* room) {
  if (!work.broken && team.lane < static_cast<unsigned>(work.args.ranks) &&
      team.lane != static_cast<unsigned>(work.args.rank))
    work.tell_who_does_not_wait(static_cast<int>(team.lane));
  const unsigned owners = work.owners_i_read();
  const bool bulk = is_aligned(work.args.output) && work.args.result_stride % 16 == 0;
  if (owners == 0) return;
  if (!bulk)
    work.collect_by_threads(team, owners);
  else if (team.lane == 0)
    work.collect_in_bulk(room, owners);
}
__device__ __noinline__ void tile_pass(TileRoles work, const Team team, unsigned tile,
                                       unsigned from) {
  work.pass(team, tile, from);
}
__device__ __noinline__ void tile_place(TileRoles work, const Team team, unsigned tile,
                                        unsigned from) {
  work.place(team, tile, from);
}
__device__ __noinline__ void tile_copy_own(TileRoles work) { work.copy_own(); }

template <DataType kType, int kOp, int kRanks>
struct TiledBlock : TileRoles {
  using Sum = Accumulator<kType, kOp>;
  using Stored = typename Sum::Stored;
  static constexpr int kHeld = kRanks == 0 ? 1 : kRanks;
  // Units that a thread reduces at once: as many as its registers hold.
  static constexpr int kFew = sizeof(Stored) < 4 ? 2 : 1;
  static constexpr int kTogether = kRanks == 8 ? 1 : kRanks == 2 ? 4 / kFew : 2 / kFew;

  __device__ TiledBlock(const TiledArgs& given, TileShared& between)
      : TileRoles(given, between, sizeof(Stored)) {}

  /// What an owner does with what came: then its slots are free, and readers have the results. Not
  /// before the own tile has been read, which the result may replace.
  __device__ void handle_all(const Team& team, unsigned group) {
    const unsigned from = senders_to(args.rank), readers = readers_of_mine();
    for (unsigned tile = group; tile < count; tile += kHandleGroups) {
      if (team.lane == 32) await_shared(shared.sent, tile + 1);
      if (team.lane < kMaxCudaRanks && in(readers, static_cast<int>(team.lane)))
        await_word(&TileFlags::results_taken, team.lane, base + tile + 1 - kTileSlots);
      await_together(team, &TileFlags::parts, from, base + tile + 1);
      if (broken) return;
      if (owns()) handle(team, tile, from);
      team.meet();
      if (team.lane >= 32) continue;
      if (team.lane == 0) await_shared(shared.handled, tile);
      __syncwarp();
      if (team.lane < kMaxCudaRanks && in(from | readers, static_cast<int>(team.lane))) {
        TileFlags& theirs = *args.flags[team.lane];
        fence_before_flags();
        if (in(from, team.lane))
          store_flag_relaxed(&theirs.parts_taken[blockIdx.x][args.rank], base + tile + 1);
        if (in(readers, team.lane))
          store_flag_relaxed(&theirs.results[blockIdx.x][args.rank], base + tile + 1);
      }
      __syncwarp();
      __threadfence_block();  // so that the other group's words come after these
      if (team.lane == 0) shared.handled = tile + 1;
    }
  }
  __device__ void handle(const Team& team, unsigned tile, unsigned from) {
    if (args.handling == kReduceParts)
      reduce(team, tile);
    else if (args.handling == kPassPart)
      tile_pass(*this, team, tile, from);
    else
      tile_place(*this, team, tile, from);
  }

  __device__ Unit part(int rank, unsigned tile, unsigned i, const char* own,
                       unsigned long long bytes, bool whole) const {
    if (rank == args.rank) return load_unit<Stored>(own, first(tile) + i, bytes, whole);
    return load_pair(slot(args.rank, 0, rank, tile) + i * 16ull);
  }
  /// kTogether units in rank order: where the number of ranks is known, all are loaded at once.
  __device__ void sum_units(Sum (&sum)[kTogether], unsigned tile, unsigned i, unsigned limit,
                            const char* own, unsigned long long bytes, bool whole) const {
    if constexpr (kRanks != 0) {
      Unit got[kTogether][kHeld];
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
#pragma unroll
        for (int rank = 0; rank < kHeld; ++rank)
          if (i + u * kHandleThreads < limit)
            got[u][rank] = part(rank, tile, i + u * kHandleThreads, own, bytes, whole);
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        sum[u].first(got[u][0], args.op, args.scalars[0]);
#pragma unroll
        for (int rank = 1; rank < kHeld; ++rank)
          sum[u].add(got[u][rank], args.op, args.scalars[rank]);
      }
    } else {
      for (int rank = 0; rank < args.ranks; ++rank) {
        Unit unit[kTogether];
#pragma unroll
        for (int u = 0; u < kTogether; ++u)
          if (i + u * kHandleThreads < limit)
            unit[u] = part(rank, tile, i + u * kHandleThreads, own, bytes, whole);
#pragma unroll
        for (int u = 0; u < kTogether; ++u)
          if (rank == 0)
            sum[u].first(unit[u], args.op, args.scalars[rank]);
          else
            sum[u].add(unit[u], args.op, args.scalars[rank]);
      }
    }
  }

  __device__ void reduce(const Team& team, unsigned tile) {
    const char* own = input(args.rank);
    char* out = output(args.rank);
    const unsigned long long bytes = part_bytes(args.rank), from = first(tile);
    const unsigned limit = length(args.rank, tile);
    const bool keeps = in(args.keepers, args.rank), whole = is_aligned(own),
               whole_out = is_aligned(out);
    for (unsigned i = team.lane; i < limit; i += kTogether * kHandleThreads) {
      Sum sum[kTogether];
      sum_units(sum, tile, i, limit, own, bytes, whole);
      Unit total[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) total[u] = sum[u].result(args.op, true, args.ranks);
      for (int k = 1; k < args.ranks; ++k)
        if (in(args.readers, peer(k))) {
          auto* to = reinterpret_cast<ulonglong2*>(slot(peer(k), 1, args.rank, tile));
#pragma unroll
          for (int u = 0; u < kTogether; ++u)
            if (i + u * kHandleThreads < limit)
              to[i + u * kHandleThreads] = make_ulonglong2(total[u].lo, total[u].hi);
        }
      if (!keeps) continue;
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (i + u * kHandleThreads < limit)
          store_unit<Stored>(out, from + i + u * kHandleThreads, total[u], bytes, whole_out);
    }
  }

  /// Each thread in its role.
  __device__ void run(char* room) {
    constexpr unsigned kHandlers = kHandleGroups * kHandleThreads;
    constexpr unsigned kPushers = kHandlers + kPushThreads;
    if (threadIdx.x < kHandlers) {
      const unsigned group = threadIdx.x / kHandleThreads;
      handle_all({1 + group, kHandleThreads, threadIdx.x % kHandleThreads}, group);
    } else if (threadIdx.x < kPushers) {
      tile_push(*this, {1 + kHandleGroups, kPushThreads, threadIdx.x - kHandlers}, room);
    } else {
      tile_collect(*this, {2 + kHandleGroups, kCollectThreads, threadIdx.x - kPushers},
                   room + kPushStages * kBulkBytes);
    }
  }
};

template <DataType kType, int kOp, int kRanks>
__device__ void tiled(const TiledArgs& args) {
  extern __shared__ __align__(128) char room[];
  __shared__ TileShared shared;
  wait_for_grid_before();
  let_next_grid_start();
  if (threadIdx.x == 0) shared.sent = 0;
  if (threadIdx.x == 0) shared.handled = 0;
  TiledBlock<kType, kOp, kRanks> block(args, shared);
  __syncthreads();  // all have read the tile count before it is advanced
  if (args.own_bytes != 0) tile_copy_own(block);
  block.run(room);
  __syncthreads();
  if (threadIdx.x == 0) block.mine().tiles[blockIdx.x] = block.base + block.count;
}

}  // namespace plait::cuda
