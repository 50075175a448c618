// Any collective of any size in one kernel. The message is cut into tiles; on every rank, block b
// works with block b of the others. It pushes this rank's parts into their owners' slots, reduces
// (or passes on, or places) what came and pushes results into the readers' slots, and copies
// results out. Four slots a pair make a pipeline: while a tile travels, the one before is reduced
// and the one before that copied out. One fence a tile: a fence waits for all stores of its SM, so
// that blocks with one of these roles each, and a fence each, were slower (bench/NOTES.md).
// A share of every part may go through host memory instead, by a few blocks of its own, so that
// NVLink and PCIe carry one message together.
// Idea: the pipelined two-stage all-reduce of Micro 2021, at the grain of a thread block.
#pragma once
#include "exec/cuda/kernels/memory.cuh"
#include "exec/cuda/tile_cut.hpp"

namespace plait::cuda {

template <DataType kType, int kOp, int kRanks>
struct TiledBlock {
  using Sum = Accumulator<kType, kOp>;
  using Stored = typename Sum::Stored;
  static constexpr int kHeld = kRanks == 0 ? 1 : kRanks;
  // Units that a thread reduces at once: as many as its registers hold.
  static constexpr int kFew = sizeof(Stored) < 4 ? 2 : 1;
  static constexpr int kTogether = kRanks == 8 ? 1 : kRanks == 2 ? 4 / kFew : 2 / kFew;
  using Words = unsigned (*)[kMaxCudaRanks];

  const TiledArgs& args;
  const TilePath& path;
  const TileCut cut;
  unsigned number;  // of this block among those of its path
  unsigned base;    // tiles of this block in all earlier calls
  unsigned count;   // in this call
  bool broken;
  Patience patience;

  __device__ TiledBlock(const TiledArgs& given, int index)
      : args(given),
        path(given.paths[index]),
        cut(cut_tiles(path, index, given.part_bytes, given.host_permille)),
        number(blockIdx.x - path.first_block) {
    const unsigned long long tiles = (cut.to - cut.from + cut.tile_units - 1) / cut.tile_units;
    count = tiles > number ? static_cast<unsigned>((tiles - number - 1) / path.blocks + 1) : 0;
    base = mine().tiles[number];
    broken = args.state->failed != 0;
  }
  __device__ TileFlags& mine() const { return *path.flags[args.rank]; }
  __device__ bool in(unsigned mask, int rank) const { return (mask >> rank & 1) != 0; }
  __device__ int peer(int k) const { return rank_after(args.rank, k, args.ranks); }
  __device__ unsigned senders_to(int owner) const { return cuda::senders_to(args, owner); }
  __device__ int index_of(int owner) const { return cuda::index_of(args, owner); }
  __device__ unsigned long long part_bytes(int owner) const {
    return cuda::part_bytes(args, owner);
  }
  /// First unit of the tile within a part.
  __device__ unsigned long long first(unsigned tile) const {
    return cut.from +
           (number + static_cast<unsigned long long>(tile) * path.blocks) * cut.tile_units;
  }
  /// Units of the tile in the part of `owner`.
  __device__ unsigned length(int owner, unsigned tile) const {
    const unsigned long long units = min((part_bytes(owner) + 15) / 16,
                                         static_cast<unsigned long long>(cut.to)),
                             from = first(tile);
    return from >= units ? 0
                         : static_cast<unsigned>(
                               min(units - from, static_cast<unsigned long long>(cut.tile_units)));
  }
  /// `stage` 0: parts, by sender; 1: results, by owner.
  __device__ char* slot(int at, int stage, int from, unsigned tile) const {
    const unsigned long long index =
        ((static_cast<unsigned long long>(number) * 2 + stage) * args.ranks + from) * kTileSlots +
        (base + tile) % kTileSlots;
    return path.slots[at] + index * path.slot_bytes;
  }
  __device__ const char* input(int owner) const {
    return static_cast<const char*>(args.input) + index_of(owner) * args.part_stride;
  }
  __device__ char* output(int owner) const {
    return static_cast<char*>(args.output) + index_of(owner) * args.result_stride;
  }

  /// One thread a rank waits: until the words of `ranks` have reached `value`, and those of
  /// `more_ranks` `more_value`; then the block goes on.
  __device__ void await(Words words, unsigned ranks, unsigned value, Words more = nullptr,
                        unsigned more_ranks = 0, unsigned more_value = 0) {
    if (threadIdx.x < kMaxCudaRanks && threadIdx.x != static_cast<unsigned>(args.rank)) {
      if (in(ranks, static_cast<int>(threadIdx.x))) await_word(words, value);
      if (in(more_ranks, static_cast<int>(threadIdx.x))) await_word(more, more_value);
    }
    broken = __syncthreads_or(broken ? 1 : 0) != 0;
  }
  __device__ void await_word(Words words, unsigned value) {
    const unsigned* word = &words[number][threadIdx.x];
    while (!broken && !reached(load_flag(word), value))
      broken = patience.gone(args.state, args.lifeline, args.wait_ns, threadIdx.x, value, ~0u);
  }

  /// `limit` units from unit `from` of `src` on, into a slot.
  __device__ void send(char* to, const char* src, unsigned long long bytes, unsigned long long from,
                       unsigned limit) const {
    auto* dst = reinterpret_cast<ulonglong2*>(to);
    const bool whole = is_aligned(src);
    for (unsigned i = threadIdx.x; i < limit; i += 4 * blockDim.x) {
      Unit held[4];
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (i + u * blockDim.x < limit)
          held[u] = load_unit<Stored>(src, from + i + u * blockDim.x, bytes, whole);
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (i + u * blockDim.x < limit)
          dst[i + u * blockDim.x] = make_ulonglong2(held[u].lo, held[u].hi);
    }
  }
  /// `limit` units of a slot, to unit `from` of `to` on.
  __device__ void put(char* to, unsigned long long bytes, unsigned long long from, const char* slot,
                      unsigned limit) const {
    const bool whole = is_aligned(to);
    for (unsigned i = threadIdx.x; i < limit; i += 4 * blockDim.x) {
      Unit held[4];
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (i + u * blockDim.x < limit) held[u] = load_pair(slot + (i + u * blockDim.x) * 16ull);
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (i + u * blockDim.x < limit)
          store_unit<Stored>(to, from + i + u * blockDim.x, held[u], bytes, whole);
    }
  }

  __device__ void push(unsigned tile) {
    unsigned to = 0;
    for (int k = 1; k < args.ranks; ++k)
      if (in(senders_to(peer(k)), args.rank)) to |= 1u << peer(k);
    await(mine().parts_taken, to, base + tile + 1 - kTileSlots);
    if (broken) return;
    for (int k = 1; k < args.ranks; ++k)
      if (in(to, peer(k)))
        send(slot(peer(k), 0, args.rank, tile), input(peer(k)), part_bytes(peer(k)), first(tile),
             length(peer(k), tile));
  }

  /// What an owner does with what came: then its slots are free, and readers have the results.
  __device__ void handle(unsigned tile) {
    const unsigned from = senders_to(args.rank);
    const bool shows = in(args.owners, args.rank) && (args.readers & ~(1u << args.rank)) != 0;
    await(mine().parts, from, base + tile + 1, mine().results_taken, shows ? args.readers : 0,
          base + tile + 1 - kTileSlots);
    if (broken || !in(args.owners, args.rank)) return;
    if (args.handling == kReduceParts)
      reduce(tile);
    else if (args.handling == kPassPart)
      pass(tile, from);
    else
      place(tile, from);
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
          if (i + u * blockDim.x < limit)
            got[u][rank] = part(rank, tile, i + u * blockDim.x, own, bytes, whole);
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
          if (i + u * blockDim.x < limit)
            unit[u] = part(rank, tile, i + u * blockDim.x, own, bytes, whole);
#pragma unroll
        for (int u = 0; u < kTogether; ++u)
          if (rank == 0)
            sum[u].first(unit[u], args.op, args.scalars[rank]);
          else
            sum[u].add(unit[u], args.op, args.scalars[rank]);
      }
    }
  }

  __device__ void reduce(unsigned tile) {
    const char* own = input(args.rank);
    char* out = output(args.rank);
    const unsigned long long bytes = part_bytes(args.rank), from = first(tile);
    const unsigned limit = length(args.rank, tile);
    const bool keeps = in(args.keepers, args.rank), whole = is_aligned(own),
               whole_out = is_aligned(out);
    for (unsigned i = threadIdx.x; i < limit; i += kTogether * blockDim.x) {
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
            if (i + u * blockDim.x < limit)
              to[i + u * blockDim.x] = make_ulonglong2(total[u].lo, total[u].hi);
        }
      if (!keeps) continue;
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (i + u * blockDim.x < limit)
          store_unit<Stored>(out, from + i + u * blockDim.x, total[u], bytes, whole_out);
    }
  }

  /// The root's part (broadcast), or this rank's own input (all_gather), to all readers.
  __device__ void pass(unsigned tile, unsigned from) {
    const int source = from == 0 ? args.rank : __ffs(static_cast<int>(from)) - 1;
    const char* src =
        from == 0 ? static_cast<const char*>(args.input) : slot(args.rank, 0, source, tile);
    const unsigned long long bytes = part_bytes(args.rank), start = first(tile);
    const unsigned limit = length(args.rank, tile);
    const bool whole = is_aligned(src);
    char* out = output(args.rank);
    const bool keeps = in(args.keepers, args.rank) && out != src, whole_out = is_aligned(out);
    for (unsigned i = threadIdx.x; i < limit; i += 4 * blockDim.x) {
      Unit held[4];
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (i + u * blockDim.x < limit)
          held[u] = from != 0 ? load_pair(src + (i + u * blockDim.x) * 16ull)
                              : load_unit<Stored>(src, start + i + u * blockDim.x, bytes, whole);
      for (int k = 1; k < args.ranks; ++k)
        if (in(args.readers, peer(k)) && peer(k) != source) {
          auto* to = reinterpret_cast<ulonglong2*>(slot(peer(k), 1, args.rank, tile));
#pragma unroll
          for (int u = 0; u < 4; ++u)
            if (i + u * blockDim.x < limit)
              to[i + u * blockDim.x] = make_ulonglong2(held[u].lo, held[u].hi);
        }
      if (!keeps) continue;
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (i + u * blockDim.x < limit)
          store_unit<Stored>(out, start + i + u * blockDim.x, held[u], bytes, whole_out);
    }
  }

  __device__ void place(unsigned tile, unsigned from) {
    for (int k = 1; k < args.ranks; ++k)
      if (in(from, peer(k)))
        put(static_cast<char*>(args.output) + peer(k) * args.place_stride, part_bytes(args.rank),
            first(tile), slot(args.rank, 0, peer(k), tile), length(args.rank, tile));
  }

  __device__ void collect(unsigned tile) {
    const bool reads = in(args.readers, args.rank);
    unsigned owners = reads ? args.owners & ~(1u << args.rank) : 0;
    await(mine().results, owners, base + tile + 1);
    if (broken) return;
    for (int k = 1; k < args.ranks; ++k)
      if (in(owners, peer(k)))
        put(output(peer(k)), part_bytes(peer(k)), first(tile), slot(args.rank, 1, peer(k), tile),
            length(peer(k), tile));
  }

  /// After step t, tell every peer at once what was pushed, handled and copied out in it: one fence
  /// a step, and stores travel while the block goes on with other work. Every peer is told, whether
  /// or not it waits in this call: so words count tiles of all calls.
  __device__ void tell(unsigned t) {
    __syncthreads();
    if (threadIdx.x >= static_cast<unsigned>(args.ranks) ||
        threadIdx.x == static_cast<unsigned>(args.rank))
      return;
    TileFlags& theirs = *path.flags[threadIdx.x];
    __threadfence_system();
    if (t < count) store_flag(&theirs.parts[number][args.rank], base + t + 1);
    if (t >= 1 && t - 1 < count) {
      store_flag(&theirs.results[number][args.rank], base + t);
      store_flag(&theirs.parts_taken[number][args.rank], base + t);
    }
    if (t >= 2) store_flag(&theirs.results_taken[number][args.rank], base + t - 1);
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
      store_unit<Stored>(dst, i, load_unit<Stored>(src, i, args.own_bytes, whole), args.own_bytes,
                         whole);
  }
};

template <DataType kType, int kOp, int kRanks>
__device__ void tiled(const TiledArgs& args) {
  wait_for_grid_before();
  let_next_grid_start();
  TiledBlock<kType, kOp, kRanks> block(args, blockIdx.x >= args.paths[1].first_block ? 1 : 0);
  __syncthreads();  // all have read the tile count before it is advanced
  if (args.own_bytes != 0) block.copy_own();
  for (unsigned t = 0; t < block.count + 2 && !block.broken; ++t) {
    if (t < block.count) block.push(t);
    if (t >= 1 && t - 1 < block.count) block.handle(t - 1);
    if (t >= 2) block.collect(t - 2);
    if (!block.broken) block.tell(t);
  }
  if (threadIdx.x == 0) block.mine().tiles[block.number] = block.base + block.count;
}

}  // namespace plait::cuda
