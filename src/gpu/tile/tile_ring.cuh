// A tiled reduction round a ring, for ops that give the same bits in any order: every rank sends to
// the next rank alone. A tile takes ranks - 1 steps, in which each part of the tile gathers one
// rank's data per step; the results of an all_reduce then take as many steps (tile_collect.cuh). A
// reduce is a chain that ends at the root: a tile takes one step of each rank. Slots and flags
// count steps.
#pragma once
#include "gpu/tile/tile_roles.cuh"

namespace plait::cuda {

/// The handle role. Turn t of a tile adds to a partial sum of t ranks: in a ring for the part of
/// the rank t + 1 before this rank, the last turn for the own part. In a chain a rank has a single
/// turn, at its position.
template <class Sum, unsigned kThreads>
struct RingReduce {
  TileRoles& work;

  __device__ void run(const Team& team) {
    const TiledArgs& args = work.args;
    const bool chain = is_chain(args);
    const unsigned steps = steps_of_tile(args), last = static_cast<unsigned>(args.ranks) - 1;
    const unsigned from = chain ? static_cast<unsigned>(chain_place(args, args.rank)) : 0;
    for (unsigned tile = 0; tile < work.count / steps; ++tile)
      for (unsigned turn = from; turn <= (chain ? from : last); ++turn) {
        const bool takes = turn > 0, sends = turn < last;
        const unsigned step = chain ? tile : tile * steps + turn, came = chain ? tile : step - 1;
        if (sends && team.lane == 0)
          work.await_room(&TileFlags::parts_taken, ring_next(args), step);
        if (takes && team.lane == 1)
          work.await_flag(&TileFlags::parts, ring_before(args), work.base + came + 1);
        work.broken = team.any(work.broken);
        if (work.broken) return;
        add(team, tile, turn, step, came);
        team.barrier();
        if (takes) work.signal_taken(team, 1u << ring_before(args), came);
        if (team.lane != 0) continue;
        __threadfence_block();
        if (sends) work.shared.arrived = step + 1;
        if (!sends) work.shared.summed = tile + 1;
      }
  }

  __device__ void add(const Team& team, unsigned tile, unsigned turn, unsigned step,
                      unsigned came_in) const {
    constexpr unsigned kTogether = 2;
    const TiledArgs& args = work.args;
    const int owner = is_chain(args) ? chain_end(args) : ring_part(args, turn + 1);
    const bool is_last = owner == args.rank;
    const char* const own = work.input(owner);
    const char* const came = turn == 0 ? nullptr : work.part_in(ring_before(args), came_in);
    char* const slot = is_last ? nullptr : work.part_out(ring_next(args), step);
    char* const out = work.output(owner);
    const unsigned long long from = work.first(tile), bytes = work.part_bytes(owner);
    const unsigned limit = work.length(owner, tile);
    const bool whole = is_aligned(own), whole_out = is_aligned(out);
    for (unsigned i = team.lane; i < limit; i += kTogether * kThreads) {
      Unit mine[kTogether], sum[kTogether];
#pragma unroll
      for (unsigned u = 0; u < kTogether; ++u) {
        if (i + u * kThreads >= limit) continue;
        mine[u] = work.load_any(own, from + i + u * kThreads, bytes, whole);
        if (came != nullptr) sum[u] = load_pair(came + (i + u * kThreads) * 16ull);
      }
#pragma unroll
      for (unsigned u = 0; u < kTogether; ++u) {
        const unsigned at = i + u * kThreads;
        if (at >= limit) continue;
        if (came != nullptr) {
          Sum total;
          total.first(sum[u], args.op, 1.0);
          total.add(mine[u], args.op, 1.0);
          mine[u] = total.result(args.op, is_last, args.ranks);
        }
        if (is_last)
          work.store_any(out, from + at, mine[u], bytes, whole_out);
        else
          store_pair(slot + at * 16ull, mine[u].lo, mine[u].hi);
      }
    }
  }
};

/// Not inlined, to take no registers from the other roles.
template <class Sum, unsigned kThreads>
__device__ PLAIT_NOINLINE void ring_reduce(TileRoles work, const Team team) {
  RingReduce<Sum, kThreads>{work}.run(team);
}

}  // namespace plait::cuda
