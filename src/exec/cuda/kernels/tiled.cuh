// all_reduce of any size in one kernel: block b of every rank works with block b of the others on
// tiles of the shards. Parts are pushed to the owner's slots, reduced there in rank order, results
// are pushed to everyone's slots and copied out. Four slots a pair, small enough for L2, make a
// pipeline: while a tile travels, the one before is reduced and the one before that copied out.
// Idea: the pipelined two-stage all-reduce of Micro 2021, at the grain of a thread block.
#pragma once
#include "exec/cuda/kernels/memory.cuh"

namespace plait::cuda {

template <DataType kType, int kOp>
struct TiledCall {
  using Sum = Accumulator<kType, kOp>;
  using Stored = typename Sum::Stored;
  static constexpr int kTogether = sizeof(Stored) == 1 ? 2 : 4;

  const TiledArgs& args;
  unsigned long long bytes, units, shard;
  unsigned base;   // tiles of this block in all earlier calls
  unsigned count;  // in this call
  bool aligned;
  bool broken;
  Patience patience;

  __device__ explicit TiledCall(const TiledArgs& given) : args(given) {
    bytes = args.count * sizeof(Stored);
    units = (bytes + 15) / 16;
    shard = (units + args.ranks - 1) / args.ranks;
    const unsigned long long tiles = (shard + args.tile_units - 1) / args.tile_units;
    count =
        tiles > blockIdx.x ? static_cast<unsigned>((tiles - blockIdx.x - 1) / gridDim.x + 1) : 0;
    base = mine().tiles[blockIdx.x];
    aligned = ((reinterpret_cast<unsigned long long>(args.input) |
                reinterpret_cast<unsigned long long>(args.output)) &
               15) == 0;
    broken = args.state->failed != 0;
  }
  __device__ TileFlags& mine() const { return *args.flags[args.rank]; }
  /// `stage` 0: parts, by sender; 1: results, by owner.
  __device__ char* slot(int owner, int stage, int from, unsigned tile) const {
    const unsigned long long index =
        ((static_cast<unsigned long long>(blockIdx.x) * 2 + stage) * args.ranks + from) *
            kTileSlots +
        (base + tile) % kTileSlots;
    return args.slots[owner] + index * args.slot_bytes;
  }
  /// First unit of the tile within a shard.
  __device__ unsigned long long first(unsigned tile) const {
    return (blockIdx.x + static_cast<unsigned long long>(tile) * gridDim.x) * args.tile_units;
  }
  /// Units of the tile in the shard of `owner`; the last shards may be short or empty.
  __device__ unsigned length(int owner, unsigned tile) const {
    const unsigned long long begin = shard * owner + first(tile);
    const unsigned long long end = min(shard * (owner + 1), units);
    return begin >= end ? 0
                        : static_cast<unsigned>(
                              min(end - begin, static_cast<unsigned long long>(args.tile_units)));
  }
  __device__ int peer(int k) const {
    const int at = args.rank + k;
    return at < args.ranks ? at : at - args.ranks;
  }
  __device__ bool is_peer_thread() const {
    return threadIdx.x < static_cast<unsigned>(args.ranks) &&
           threadIdx.x != static_cast<unsigned>(args.rank);
  }
  using Words = unsigned (*)[kMaxCudaRanks];
  __device__ void await_word(Words words, unsigned value) {
    const unsigned* word = &words[blockIdx.x][threadIdx.x];
    while (!broken && !reached(load_flag(word), value))
      broken = patience.gone(args.state, args.lifeline, args.wait_ns, threadIdx.x, value, ~0u);
  }
  /// One thread a peer waits until its words have reached these values; then the block goes on.
  __device__ void await(Words words, unsigned value, Words more = nullptr,
                        unsigned more_value = 0) {
    if (is_peer_thread()) {
      await_word(words, value);
      if (more != nullptr) await_word(more, more_value);
    }
    broken = __syncthreads_or(broken ? 1 : 0) != 0;
  }
  __device__ const char* input() const { return static_cast<const char*>(args.input); }
  __device__ char* output() const { return static_cast<char*>(args.output); }

  /// `limit` units of a buffer, from unit `from` on, into a peer's slot.
  __device__ void send(char* to, const char* buffer, unsigned long long from,
                       unsigned limit) const {
    auto* dst = reinterpret_cast<ulonglong2*>(to);
    for (unsigned i = threadIdx.x; i < limit; i += kTogether * blockDim.x) {
      Unit held[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (i + u * blockDim.x < limit)
          held[u] = load_unit<Stored>(buffer, from + i + u * blockDim.x, bytes, aligned);
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (i + u * blockDim.x < limit)
          dst[i + u * blockDim.x] = make_ulonglong2(held[u].lo, held[u].hi);
    }
  }

  __device__ void push(unsigned tile) {
    await(mine().parts_taken, base + tile + 1 - kTileSlots);
    if (broken) return;
    for (int k = 1; k < args.ranks; ++k) {
      const int to = peer(k);
      send(slot(to, 0, args.rank, tile), input(), shard * to + first(tile), length(to, tile));
    }
  }

  __device__ void reduce(unsigned tile) {
    await(mine().parts, base + tile + 1, mine().results_taken, base + tile + 1 - kTileSlots);
    if (broken) return;
    const unsigned limit = length(args.rank, tile);
    const unsigned long long from = shard * args.rank + first(tile);
    for (unsigned i = threadIdx.x; i < limit; i += kTogether * blockDim.x) {
      Sum sum[kTogether];
      for (int rank = 0; rank < args.ranks; ++rank) {
        const char* part = slot(args.rank, 0, rank, tile);
        Unit unit[kTogether];
#pragma unroll
        for (int u = 0; u < kTogether; ++u)
          if (i + u * blockDim.x < limit)
            unit[u] = rank == args.rank
                          ? load_unit<Stored>(input(), from + i + u * blockDim.x, bytes, aligned)
                          : load_pair(part + (i + u * blockDim.x) * 16ull);
#pragma unroll
        for (int u = 0; u < kTogether; ++u)
          if (rank == 0)
            sum[u].first(unit[u], args.op, args.scalars[rank]);
          else
            sum[u].add(unit[u], args.op, args.scalars[rank]);
      }
      auto* first_peer = reinterpret_cast<ulonglong2*>(slot(peer(1), 1, args.rank, tile));
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (i + u * blockDim.x < limit) {
          const Unit total = sum[u].result(args.op, true, args.ranks);
          if (args.ranks > 1) first_peer[i + u * blockDim.x] = make_ulonglong2(total.lo, total.hi);
          store_unit<Stored>(output(), from + i + u * blockDim.x, total, bytes, aligned);
        }
    }
    // One peer after the other, not unit by unit: links are fastest with one destination at a time.
    for (int k = 2; k < args.ranks; ++k)
      send(slot(peer(k), 1, args.rank, tile), static_cast<const char*>(args.output), from, limit);
  }

  __device__ void gather(unsigned tile) {
    await(mine().results, base + tile + 1);
    if (broken) return;
    for (int k = 1; k < args.ranks; ++k) {
      const int owner = peer(k);
      const unsigned limit = length(owner, tile);
      const unsigned long long to = shard * owner + first(tile);
      const char* src = slot(args.rank, 1, owner, tile);
      for (unsigned i = threadIdx.x; i < limit; i += kTogether * blockDim.x) {
        Unit held[kTogether];
#pragma unroll
        for (int u = 0; u < kTogether; ++u)
          if (i + u * blockDim.x < limit) held[u] = load_pair(src + (i + u * blockDim.x) * 16ull);
#pragma unroll
        for (int u = 0; u < kTogether; ++u)
          if (i + u * blockDim.x < limit)
            store_unit<Stored>(output(), to + i + u * blockDim.x, held[u], bytes, aligned);
      }
    }
  }

  /// After step t, tell every peer at once what was pushed, reduced and copied out in it: one fence
  /// a step, and stores travel while the block goes on with other work.
  __device__ void tell(unsigned t) {
    __syncthreads();
    if (!is_peer_thread()) return;
    TileFlags& theirs = *args.flags[threadIdx.x];
    __threadfence_system();
    if (t < count) store_flag(&theirs.parts[blockIdx.x][args.rank], base + t + 1);
    if (t >= 1 && t - 1 < count) {
      store_flag(&theirs.results[blockIdx.x][args.rank], base + t);
      store_flag(&theirs.parts_taken[blockIdx.x][args.rank], base + t);
    }
    if (t >= 2) store_flag(&theirs.results_taken[blockIdx.x][args.rank], base + t - 1);
  }
};

template <DataType kType, int kOp>
__device__ void tiled(const TiledArgs& args) {
  wait_for_grid_before();
  let_next_grid_start();
  TiledCall<kType, kOp> call(args);
  __syncthreads();  // all have read the tile count before it is advanced
  for (unsigned t = 0; t < call.count + 2 && !call.broken; ++t) {
    if (t < call.count) call.push(t);
    if (t >= 1 && t - 1 < call.count) call.reduce(t - 1);
    if (t >= 2) call.gather(t - 2);
    if (!call.broken) call.tell(t);
  }
  if (threadIdx.x == 0) call.mine().tiles[blockIdx.x] = call.base + call.count;
}

}  // namespace plait::cuda
