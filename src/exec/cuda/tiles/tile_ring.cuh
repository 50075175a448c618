// A ring of a tiled all_reduce, for what gives the same bits in any order: every rank sends to the
// next alone. A tile takes ranks - 1 steps twice: its parts gather one rank's a step, then results
// go round (tile_collect.cuh). Slots and words count steps.
#pragma once
#include "exec/cuda/tiles/tile_roles.cuh"

namespace plait::cuda {

/// The handle role. Turn t of a tile adds to what has come for the part of the rank t + 1 before
/// this one; the last is its own.
template <class Sum, unsigned kThreads>
struct RingReduce {
  TileRoles& work;

  __device__ void run(const Team& team) {
    const TiledArgs& args = work.args;
    const unsigned turns = static_cast<unsigned>(args.ranks) - 1, tiles = work.count / turns;
    for (unsigned tile = 0; tile < tiles; ++tile)
      for (unsigned turn = 0; turn <= turns; ++turn) {
        const unsigned step = tile * turns + turn;
        if (turn < turns && team.lane == 0)
          work.await_word(&TileFlags::parts_taken, ring_next(args),
                          work.base + step + 1 - args.window);
        if (turn > 0 && team.lane == 1)
          work.await_word(&TileFlags::parts, ring_before(args), work.base + step);
        work.broken = team.any(work.broken);
        if (work.broken) return;
        add(team, tile, turn, step);
        team.meet();
        if (team.lane != 0) continue;
        __threadfence_block();
        if (turn < turns) work.shared.arrived = step + 1;
        if (turn > 0) work.shared.handled = step;
        if (turn == turns) work.shared.summed = tile + 1;
      }
  }

  __device__ void add(const Team& team, unsigned tile, unsigned turn, unsigned step) const {
    constexpr unsigned kTogether = 2;
    const TiledArgs& args = work.args;
    const int owner = ring_part(args, turn + 1);
    const bool is_last = owner == args.rank;
    const char* const own = work.input(owner);
    const char* const came =
        turn == 0 ? nullptr : work.slot(args.rank, 0, ring_before(args), step - 1);
    char* const slot = is_last ? nullptr : work.slot(ring_next(args), 0, args.rank, step);
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

/// Apart, so that it takes no registers from the rest.
template <class Sum, unsigned kThreads>
__device__ PLAIT_APART void ring_reduce(TileRoles work, const Team team) {
  RingReduce<Sum, kThreads>{work}.run(team);
}

}  // namespace plait::cuda
