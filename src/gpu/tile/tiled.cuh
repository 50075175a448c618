// Kernel tiled: any collective of any size in a single kernel. The message is cut into tiles; block
// b works with block b of the other ranks. Threads have roles. *Push* sends this rank's parts into
// the owners' slots. *Handle* reduces (or passes on, or places) the arrived data and sends results
// into the readers' slots. *Collect* copies results out. *Signal warps* raise and poll the flags
// between ranks: the loads and fences take microseconds, which should delay no other role. Only the
// reading of parts is signalled by the handle role itself, without a fence. Slots form a pipeline:
// while a tile travels, the tile before is reduced and the tile before that copied out.
//
// Push and collect use bulk copies of a single thread if addresses allow, otherwise loads and
// stores of the role's threads. Ranks may differ in this, since slots and flags are the same.
// Idea: the pipelined two-stage all-reduce of Micro 2021, at the grain of a thread block.
#pragma once
#include "gpu/abi/direct_shape.hpp"
#include "gpu/abi/tile_args.hpp"
#include "gpu/tile/tile_collect.cuh"
#include "gpu/tile/tile_roles.cuh"

namespace plait::cuda {

/// Threads of each role, before two signal warps. A thread of the roles that handle and collect
/// polls for each rank, so these roles have at least kMostRanks threads. Tests have fewer threads.
struct TileThreads {
  static constexpr unsigned kMostRanks = kMaxCudaRanks;
  static constexpr unsigned kHandle = kHandleThreads, kPush = kPushThreads,
                            kCollect = kCollectThreads;
};

/// kRanks: 0 = any number, known at run time.
template <DataType kType, int kOp, int kRanks, class Threads>
struct TiledBlock : TileRoles {
  using Sum = Accumulator<kType, kOp>;
  using Stored = typename Sum::Stored;
  static_assert(Threads::kHandle >= Threads::kMostRanks && Threads::kCollect >= Threads::kMostRanks,
                "a rank without a polling thread would not be waited for");
  static_assert(kRanks <= static_cast<int>(Threads::kMostRanks));
  static constexpr int kHeld = kRanks == 0 ? 1 : kRanks;
  // Units that a thread reduces at once: as many as registers hold. A unit of short elements takes
  // more registers; two ranks' units of 16-bit elements fit (4 % faster; not timed with four
  // ranks).
  static constexpr int kFew = sizeof(Stored) < (kRanks == 2 ? 2 : 4) ? 2 : 1;
  static constexpr int kTogether = kHeld == 8 ? 1 : 2 / kFew;

  __device__ explicit TiledBlock(TileShared& between) : TileRoles(between, sizeof(Stored)) {}

  /// Handles each tile that has arrived; after that the slots are free, and readers have the
  /// results. Waits first until the own tile has been read, since the result may replace the tile.
  __device__ void handle_all(const Team& team) {
    const unsigned from = senders_to(args.rank), readers = readers_of_mine();
    for (unsigned tile = 0; tile < count; ++tile) {
      if (team.lane == Threads::kHandle - 1) await_shared(shared.sent, tile + 1);
      if (team.lane < kMaxCudaRanks && in(readers, static_cast<int>(team.lane)))
        await_room(&TileFlags::results_taken, team.lane, tile);
      await_together(team, &TileFlags::parts, from, base + tile + 1);
      if (broken) return;
      if (owns()) handle(team, tile, from);
      team.barrier();
      signal_taken(team, from, tile);
      if (team.lane != 0) continue;
      __threadfence_block();
      shared.handled = tile + 1;
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

  __device__ int sources() const { return kRanks == 0 ? args.ranks : kRanks; }
  __device__ const char* source_at(int rank, const char* own, unsigned long long at) const {
    return rank == args.rank ? own : shared.parts_in[rank] + at;
  }

  /// Reduces all parts in the call's order into the own output, and into the slots of the ranks
  /// that get the sum.
  __device__ void reduce(const Team& team, unsigned tile) {
    const char* const own = input(args.rank) + first(tile) * 16;
    char* const out = output(args.rank) + first(tile) * 16;
    const unsigned limit = length(args.rank, tile);
    const unsigned whole =
        is_aligned(own) && is_aligned(out) ? whole_bytes(args.rank, tile) / 16 : 0;
    const bool keeps = in(args.keepers, args.rank);
    const unsigned to = readers_of_mine();
    const unsigned long long at = slot_at(tile);
    const char* from[kHeld];
    for (int held = 0; held < kRanks; ++held) from[held] = source_at(held, own, at);
    for (unsigned i = team.lane; i < whole; i += kTogether * Threads::kHandle) {
      Unit total[kTogether];
      sum_units(total, from, own, at, i, whole);
      for (int k = 1; k < args.ranks && to != 0; ++k)
        if (in(to, target(k))) put_units(shared.results_out[target(k)] + at, total, i, whole);
      if (keeps) put_units(out, total, i, whole);
    }
    if (whole < limit) reduce_slowly(*this, team, tile, whole, limit);
  }
  __device__ static void put_units(char* to, const Unit (&units)[kTogether], unsigned i,
                                   unsigned limit) {
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (i + u * Threads::kHandle < limit)
        store_plain(&reinterpret_cast<ulonglong2*>(to)[i + u * Threads::kHandle],
                    make_ulonglong2(units[u].lo, units[u].hi));
  }
  /// Sums kTogether units. If the number of ranks is known at compile time, all parts are loaded at
  /// once.
  __device__ void sum_units(Unit (&total)[kTogether], const char* const (&from)[kHeld],
                            const char* own, unsigned long long at, unsigned i,
                            unsigned limit) const {
    Sum sum[kTogether];
    if (kRanks == 0 && sums_in_tree(args.order)) {
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        const unsigned place = i + u * Threads::kHandle;
        if (place >= limit) continue;
        sum[u] = sum_in_tree<Sum>(args.ranks, args.op, args.order, args.scalars, [&](int rank) {
          return load_pair(source_at(rank, own, at) + place * 16ull);
        });
        total[u] = sum[u].result(args.op, true, args.ranks);
      }
      return;
    }
    const int groups = kRanks != 0 ? 1 : args.ranks;
    for (int group = 0; group < groups; ++group) {
      Unit got[kTogether][kHeld];
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
#pragma unroll
        for (int held = 0; held < kHeld; ++held) {
          const char* const src = kRanks != 0 ? from[held] : source_at(group, own, at);
          if (i + u * Threads::kHandle < limit)
            got[u][held] = load_pair(src + (i + u * Threads::kHandle) * 16ull);
        }
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (kRanks > 2 && sums_in_tree(args.order)) {
          sum[u].template sum_tree<0, kHeld>(got[u], args.op, args.scalars,
                                             rounds_sums(args.order));
          continue;
        }
#pragma unroll
        for (int held = 0; held < kHeld; ++held)
          if (group + held == 0)
            sum[u].first(got[u][held], args.op, args.scalars[0]);
          else
            sum[u].add(got[u][held], args.op, args.scalars[group + held]);
      }
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) total[u] = sum[u].result(args.op, true, args.ranks);
  }
  /// Reduces units that are unaligned or truncated. Not inlined, to take no registers from the
  /// rest.
  __device__ PLAIT_NOINLINE static void reduce_slowly(TiledBlock work, const Team team,
                                                      unsigned tile, unsigned begin,
                                                      unsigned limit) {
    const TiledArgs& args = work.args;
    const unsigned long long bytes = work.part_bytes(args.rank), first = work.first(tile);
    for (unsigned i = begin + team.lane; i < limit; i += Threads::kHandle) {
      const auto unit_of = [&](int rank) {
        return rank == args.rank ? work.load_any(work.input(rank), first + i, bytes, false)
                                 : load_pair(work.part_in(rank, tile) + i * 16ull);
      };
      Sum sum;
      const bool is_tree = kRanks != 2 && sums_in_tree(args.order);
      if (is_tree)
        sum = sum_in_tree<Sum>(work.sources(), args.op, args.order, args.scalars, unit_of);
      for (int rank = 0; rank < work.sources() && !is_tree; ++rank) {
        const Unit unit = unit_of(rank);
        if (rank == 0)
          sum.first(unit, args.op, args.scalars[0]);
        else
          sum.add(unit, args.op, args.scalars[rank]);
      }
      const Unit total = sum.result(args.op, true, args.ranks);
      for (int k = 1; k < args.ranks; ++k)
        if (work.in(work.readers_of_mine(), work.target(k)))
          store_pair(work.result_out(work.target(k), tile) + i * 16ull, total.lo, total.hi);
      if (work.in(args.keepers, args.rank))
        work.store_any(work.output(args.rank), first + i, total, bytes, false);
    }
  }

  /// Runs each thread in its role.
  __device__ void run(char* room) {
    constexpr unsigned kPushers = Threads::kHandle + Threads::kPush;
    constexpr unsigned kCollectors = kPushers + Threads::kCollect;
    if (threadIdx.x < Threads::kHandle) {
      handle_all({1, Threads::kHandle, threadIdx.x});
    } else if (threadIdx.x < kPushers) {
      tile_push(*this, {2, Threads::kPush, threadIdx.x - Threads::kHandle}, room);
    } else if (threadIdx.x < kCollectors) {
      tile_collect(*this, {3, Threads::kCollect, threadIdx.x - kPushers},
                   room + kPushStages * kBulkBytes);
    } else {
      const unsigned signaller = threadIdx.x - kCollectors;
      tile_signal_warps(*this, signaller / 32, signaller % 32);
    }
  }
};

template <DataType kType, int kOp, int kRanks, class Threads = TileThreads>
__device__ void tiled(const TiledArgs& args) {
  PLAIT_DYNAMIC_SHARED(room);
  PLAIT_SHARED(TileShared, shared);
  wait_for_grid_before();
  const auto* from = reinterpret_cast<const unsigned*>(&args);
  for (unsigned i = threadIdx.x; i < sizeof(TiledArgs) / 4; i += blockDim.x)
    reinterpret_cast<unsigned*>(&shared.args)[i] = from[i];
  if (threadIdx.x == 0) {
    shared.stopped = 0;
    shared.free = 0;
    shared.sent = 0;
    shared.arrived = 0;
    shared.handled = 0;
  }
  __syncthreads();
  TiledBlock<kType, kOp, kRanks, Threads> block(shared);
  const unsigned k = threadIdx.x;
  if (k < static_cast<unsigned>(shared.args.ranks)) {
    shared.targets[k] = static_cast<std::uint8_t>(
        k == 0 ? shared.args.rank : target(shared.args, blockIdx.x, static_cast<int>(k)));
    block.find_places(static_cast<int>(k));
  }
  if (!block.await_ended(k)) shared.stopped = 1;
  __syncthreads();  // all threads have read the tile count before it is advanced
  block.broken = block.broken || shared.stopped != 0;
  if (args.own_bytes != 0 && !block.broken) tile_copy_own(block);
  block.run(room);
  __syncthreads();
  block.signal_ended(k);
  let_next_grid_start();  // as in end_fused_call
  if (threadIdx.x != 0) return;
  block.mine().tiles = block.base + block.count;
  fail_if_poisoned(args.poisoned, args.state, args.stop_page, args.wait_ns);
}

}  // namespace plait::cuda
