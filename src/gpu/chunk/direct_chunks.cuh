// Kernel direct_chunks: any collective in a single hop. The message is cut into chunks; block b
// works with block b of the other ranks. *Push* threads store this rank's chunks into the owners'
// inboxes, and raise a flag behind each chunk. *Take* threads wait for a flag, then reduce or place
// the chunk. Data crosses the bus once in each direction: nothing is cleared, since flags hold the
// number of the call, and calls alternate between two halves of the inboxes. Each pair of ranks
// exchanges a flag in every call, so no rank is two calls ahead of a reader of the inbox.
// Idea: NCCL's Simple protocol.
#pragma once
#include "gpu/abi/chunk_args.hpp"
#include "gpu/device/units.cuh"
#include "gpu/ll/fused.cuh"

namespace plait::cuda {

/// Threads of each role. A taker polls for each peer, and one more for the pushing threads, so at
/// least kMostRanks threads take. Tests have fewer threads.
struct ChunkThreads {
  static constexpr unsigned kMostRanks = kMaxCudaRanks;
  static constexpr unsigned kPush = kChunkPushThreads, kTake = kChunkTakeThreads;
};

struct ChunkShared {
  volatile unsigned sent;  ///< chunks of the input that have been read for peers
  bool was_broken;         ///< the communicator had failed as the block began
};

/// kHandling: kReduceParts or kPlaceParts.
template <DataType kType, int kOp, int kHandling, class Threads>
struct DirectChunks {
  using Sum = Accumulator<kType, kOp>;
  using Stored = typename Sum::Stored;
  static_assert(Threads::kTake >= Threads::kMostRanks,
                "a rank without a polling thread would not be waited for");
  static constexpr bool kSums = kHandling == kReduceParts;
  /// Units that a taker has in flight. Sums of short elements take more registers.
  static constexpr int kTogether = sizeof(Stored) >= 2 ? 4 : 2;

  const DirectChunksArgs& args;
  const DirectShape& shape;
  ChunkShared& shared;
  const unsigned number;
  const unsigned long long half;  ///< offset of this call's half of the inboxes
  const unsigned units;           ///< of a part
  const unsigned chunks;          ///< of this block
  bool broken;
  SpinTimeout timeout;

  __device__ DirectChunks(const DirectChunksArgs& given, ChunkShared& between)
      : args(given),
        shape(given.shape),
        shared(between),
        number(number_of_call(given.state)),
        half((number & 1) * given.half_bytes),
        units(static_cast<unsigned>((given.shape.part_bytes + 15) / 16)),
        chunks(chunks_of_block()),
        broken(between.was_broken) {}

  __device__ unsigned chunks_of_block() const {
    const unsigned first = blockIdx.x * args.chunk_units, step = gridDim.x * args.chunk_units;
    return first >= units ? 0 : (units - first + step - 1) / step;
  }
  __device__ unsigned first_unit(unsigned chunk) const {
    return (chunk * gridDim.x + blockIdx.x) * args.chunk_units;
  }
  __device__ unsigned length(unsigned chunk) const {
    return min(args.chunk_units, units - first_unit(chunk));
  }
  __device__ int peer(int k) const { return rank_after(args.rank, k, args.ranks); }
  __device__ bool gives(int k) const { return (shape.gives >> k & 1) != 0; }
  __device__ bool takes(int k) const { return (shape.takes >> k & 1) != 0; }
  __device__ bool owns() const { return (shape.owners >> args.rank & 1) != 0; }
  __device__ char* slot(int owner, int from, unsigned unit) const {
    const auto place = static_cast<unsigned long long>(place_among_others(owner, from));
    return args.inbox[owner] + half + (place * args.slot_units + unit) * 16;
  }
  __device__ const char* input_for(int owner) const {
    return static_cast<const char*>(args.input) + owner * shape.part_stride;
  }

  // --- push -------------------------------------------------------------------------------------

  __device__ void raise(int owner, unsigned chunks_there) const {
    store_relaxed_64(&args.flags[owner]->here[blockIdx.x][args.rank],
                     static_cast<unsigned long long>(number) << 32 | chunks_there);
  }
  /// Never waits for a peer: half an inbox holds the whole call.
  __device__ void push(const Team& team) {
    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
      const unsigned first = first_unit(chunk);
      for (int k = 1; k < args.ranks; ++k)
        if (gives(k))
          put_units(team, slot(peer(k), args.rank, first), input_for(peer(k)), shape.part_bytes,
                    first, length(chunk), sizeof(Stored));
      team.barrier();
      if (team.lane != 0) continue;
      __threadfence_block();
      shared.sent = chunk + 1;
      fence_before_flags();
      for (int k = 1; k < args.ranks; ++k)
        if (gives(k)) raise(peer(k), chunk + 1);
    }
    if (blockIdx.x != 0 || team.lane != 0) return;
    for (int k = 1; k < args.ranks; ++k)
      if (!gives(k)) raise(peer(k), 1);
  }

  // --- take -------------------------------------------------------------------------------------

  /// Chunks of this call that a flag says are here. A peer may be one call ahead, never two; then
  /// all of this call's chunks are here.
  __device__ unsigned chunks_here(unsigned long long flag) const {
    const unsigned calls_ahead = static_cast<unsigned>(flag >> 32) - number;
    const auto raised = static_cast<unsigned>(flag);  // 0 = never
    return calls_ahead == 0 ? raised : calls_ahead == 1 && raised != 0 ? ~0u : 0;
  }
  /// Waits until `wanted` chunks of a peer are here; returns the chunks that are here.
  __device__ unsigned await(int from, unsigned wanted) {
    const unsigned long long* const flag = &args.flags[args.rank]->here[blockIdx.x][from];
    unsigned here = 0;
    while (!broken) {
      here = chunks_here(load_flag_64(flag));
      if (here >= wanted) break;
      broken = timeout.expired(args.state, args.stop_page, args.wait_ns,
                               static_cast<unsigned>(from), first_unit(wanted - 1), ~0u);
    }
    timeout.began_ns = 0;  // the next wait has a fresh deadline
    return here;
  }
  /// The output may be the input: a chunk is not overwritten before peers have been sent it.
  __device__ void await_sent(unsigned wanted) {
    while (!broken && shared.sent < wanted) broken = timeout.failed_elsewhere(args.state);
    __threadfence_block();
  }
  __device__ void take(const Team& team) {
    const int k = static_cast<int>(team.lane);  // of the peer that this thread waits for, or 0
    const bool is_waiting = k > 0 && k < args.ranks && takes(k);
    unsigned here = 0;
    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
      if (is_waiting && here <= chunk) here = await(peer(k), chunk + 1);
      if (k == 0) await_sent(chunk + 1);
      broken = team.any(broken);
      if (broken) return;
      keep(team, chunk);
      if (!owns()) continue;
      if constexpr (kIsTree<kOp>)
        reduce_in_tree(team, chunk);
      else if constexpr (kSums)
        reduce(team, chunk);
      else
        place(team, chunk);
    }
    if (blockIdx.x == 0 && k > 0 && k < args.ranks && !takes(k)) await(peer(k), 1);
  }

  /// Loads units of a peer's part of a chunk that begins with unit `first`; nothing for this rank.
  __device__ void load_part(const Team& team, int from, unsigned i, unsigned limit, unsigned first,
                            Unit (&loaded)[kTogether]) const {
    if (from == args.rank) return;
    const char* const src = slot(args.rank, from, first);
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (const unsigned at = i + u * team.threads; at < limit)
        loaded[u] = load_pair(src + at * 16ull);
  }
  /// A unit at a time: a tree holds several sums.
  __device__ void reduce_in_tree(const Team& team, unsigned chunk) const {
    const char* const own = input_for(args.rank);
    char* const out = static_cast<char*>(args.output);
    const unsigned first = first_unit(chunk), limit = length(chunk);
    const bool is_whole = is_aligned(own), is_whole_out = is_aligned(out);
    for (unsigned i = team.lane; i < limit; i += team.threads) {
      const Unit mine = load_any(own, first + i, shape.part_bytes, is_whole, sizeof(Stored));
      Sum sum = sum_in_tree<Sum>(args.ranks, args.op, args.order, args.scalars, [&](int from) {
        return from == args.rank ? mine : load_pair(slot(args.rank, from, first) + i * 16ull);
      });
      store_any(out, first + i, sum.result(args.op, true, args.ranks), shape.part_bytes,
                is_whole_out, sizeof(Stored));
    }
  }
  __device__ void reduce(const Team& team, unsigned chunk) const {
    const char* const own = input_for(args.rank);
    char* const out = static_cast<char*>(args.output);
    const unsigned first = first_unit(chunk), limit = length(chunk);
    const bool is_whole = is_aligned(own), is_whole_out = is_aligned(out);
    for (unsigned i = team.lane; i < limit; i += kTogether * team.threads) {
      // The units of the next source are under way while those of the source before are added, so
      // that no load from host memory waits for a load of the input.
      Unit mine[kTogether], next[kTogether];
      load_part(team, 0, i, limit, first, next);
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (const unsigned at = i + u * team.threads; at < limit)
          mine[u] = load_any(own, first + at, shape.part_bytes, is_whole, sizeof(Stored));
      Sum sum[kTogether];
      for (int from = 0; from < args.ranks; ++from) {
        Unit got[kTogether];
#pragma unroll
        for (int u = 0; u < kTogether; ++u) got[u] = from == args.rank ? mine[u] : next[u];
        if (from + 1 < args.ranks) load_part(team, from + 1, i, limit, first, next);
#pragma unroll
        for (int u = 0; u < kTogether; ++u) {
          if (i + u * team.threads >= limit) continue;
          if (from == 0)
            sum[u].first(got[u], args.op, args.scalars[0]);
          else
            sum[u].add(got[u], args.op, args.scalars[from]);
        }
      }
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (const unsigned at = i + u * team.threads; at < limit)
          store_any(out, first + at, sum[u].result(args.op, true, args.ranks), shape.part_bytes,
                    is_whole_out, sizeof(Stored));
    }
  }
  __device__ void place(const Team& team, unsigned chunk) const {
    const unsigned first = first_unit(chunk);
    for (int k = 1; k < args.ranks; ++k)
      if (takes(k))
        take_units(team, static_cast<char*>(args.output) + peer(k) * shape.place_stride,
                   shape.part_bytes, first, slot(args.rank, peer(k), first), length(chunk),
                   sizeof(Stored));
  }
  /// Copies the chunk of the part that stays on this rank.
  __device__ void keep(const Team& team, unsigned chunk) const {
    const char* const src = static_cast<const char*>(args.input) + shape.own_from;
    char* const dst = static_cast<char*>(args.output) + shape.own_to;
    if (src == dst || !gives(0)) return;
    const bool is_whole = is_aligned(src), is_whole_out = is_aligned(dst);
    const unsigned first = first_unit(chunk), limit = length(chunk);
    for (unsigned i = team.lane; i < limit; i += team.threads)
      store_any(dst, first + i, load_any(src, first + i, shape.own_bytes, is_whole, sizeof(Stored)),
                shape.own_bytes, is_whole_out, sizeof(Stored));
  }
};

/// A rank that has given up sends nothing more, since peers may still read the same half of an
/// inbox.
template <DataType kType, int kOp, int kHandling, class Threads = ChunkThreads>
__device__ void direct_chunks(const DirectChunksArgs& args) {
  PLAIT_SHARED(ChunkShared, shared);
  wait_for_grid_before();
  // One thread looks for a fault, since threads of different minds would leave a team's barrier.
  if (threadIdx.x == 0) {
    shared.sent = 0;
    shared.was_broken = args.state->failed != kNoFault;
  }
  __syncthreads();
  if (args.state->has_neighbour == 0) let_next_grid_start();  // early, as in two_shot
  DirectChunks<kType, kOp, kHandling, Threads> call(args, shared);
  if (!call.broken) {
    if (threadIdx.x < Threads::kPush)
      call.push({1, Threads::kPush, threadIdx.x});
    else
      call.take({2, Threads::kTake, threadIdx.x - Threads::kPush});
  }
  if (call.broken) fail_stream_at_end(args.state);
  end_fused_call(args.state, call.number);
}

}  // namespace plait::cuda
