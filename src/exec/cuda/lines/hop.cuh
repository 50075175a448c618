// Any collective in one hop: every rank pushes its parts straight to their owners, each unit of
// data its own signal, and each owner reduces or places what comes. One line a pair says "I am in
// this call", so that every call is a full exchange and nobody can be two calls ahead of a reader
// of the inbox.
#pragma once
#include "exec/cuda/lines/escaped.cuh"
#include "exec/cuda/lines/line_args.hpp"
#include "exec/cuda/traffic/hop_shape.hpp"
#include "exec/cuda/traffic/tile_cut.hpp"

namespace plait::cuda {

/// kHandling: kReduceParts or kPlaceParts.
template <DataType kType, int kOp, int kHandling>
struct HopCall : EscapedCall<HopArgs> {
  using Sum = Accumulator<kType, kOp>;
  using Stored = typename Sum::Stored;
  static constexpr int kTogether = kHandling == kReduceParts ? 2 : 4;
  static constexpr int kPeers = 4;  ///< that a thread of a short call hears together
  using Lines = EscapedCall<HopArgs>;
  using Lines::args;
  using Slot = typename Lines::Slot;

  const HopShape& shape;
  unsigned units;  // of a part; counted in 32 bits (kMostLines), so that registers suffice

  __device__ explicit HopCall(const HopArgs& given) : Lines(given), shape(given.shape) {
    units = static_cast<unsigned>((shape.part_bytes + 15) / 16);
  }
  __device__ bool sends(int from, int owner) const {
    return plait::sends(shape, args.ranks, from, owner);
  }
  __device__ bool takes() const { return (shape.owners >> args.rank & 1) != 0; }
  /// Of the lines in the owner's inbox; `units` is the one that says "I am in this call".
  __device__ unsigned index(int owner, int from, unsigned unit) const {
    return static_cast<unsigned>(place_among_others(owner, from)) * (units + 1) + unit;
  }
  __device__ unsigned lines() const { return static_cast<unsigned>(args.ranks - 1) * (units + 1); }
  __device__ void send(int owner, unsigned unit, const Unit& value) const {
    Lines::send(owner, lines(), index(owner, args.rank, unit), unit, value);
  }
  template <int kSlots>
  __device__ void take(Unit (&got)[kSlots], int from, unsigned first, unsigned stride, int valid) {
    Lines::take(got, from, lines(), index(args.rank, from, first), first, stride, valid);
  }
  /// What reduce() will load, `ahead` steps later.
  __device__ void fetch_own(unsigned first, unsigned stride, int valid) const {
    const char* src = static_cast<const char*>(args.input) + args.rank * shape.part_stride;
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (u < valid) fetch_ahead(src + (first + u * stride) * 16ull);
  }
  /// This rank's units for `owner`, all on their way before any is used.
  __device__ void load_own(Unit (&held)[kTogether], int owner, unsigned first, unsigned stride,
                           int valid) const {
    const char* src = static_cast<const char*>(args.input) + owner * shape.part_stride;
    const bool whole = is_aligned(src);
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (u < valid) held[u] = load_unit<Stored>(src, first + u * stride, shape.part_bytes, whole);
  }
  __device__ void put(unsigned long long offset, unsigned unit, const Unit& value) const {
    char* dst = static_cast<char*>(args.output) + offset;
    store_unit<Stored, true>(dst, unit, value, shape.part_bytes, is_aligned(dst));
  }

  __device__ int peer(int k) const { return rank_after(args.rank, k, args.ranks); }
  __device__ void push(unsigned first, unsigned stride) const {
    const int valid = valid_units(first, stride, units, kTogether);
    if constexpr (kHandling == kReduceParts)
      if (takes()) fetch_own(first, stride, valid);
    for (int k = 1; k < args.ranks; ++k) {
      if (!sends(args.rank, peer(k))) continue;
      Unit held[kTogether];
      load_own(held, peer(k), first, stride, valid);
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (u < valid) send(peer(k), first + u * stride, held[u]);
    }
  }
  __device__ void reduce(unsigned first, unsigned stride) {
    const int valid = valid_units(first, stride, units, kTogether);
    Unit mine[kTogether];  // on their way while peers' are awaited
    load_own(mine, args.rank, first, stride, valid);
    Sum sum[kTogether];
    for (int from = 0; from < args.ranks; ++from) {
      Unit got[kTogether];
      if (from != args.rank) take(got, from, first, stride, valid);
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (u >= valid) continue;
        if (from == args.rank) got[u] = mine[u];
        if (from == 0)
          sum[u].first(got[u], args.op, args.scalars[0]);
        else
          sum[u].add(got[u], args.op, args.scalars[from]);
      }
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (u < valid) put(0, first + u * stride, sum[u].result(args.op, true, args.ranks));
  }
  __device__ void place(unsigned first, unsigned stride) {
    const int valid = valid_units(first, stride, units, kTogether);
    for (int k = 1; k < args.ranks; ++k) {
      if (!sends(peer(k), args.rank)) continue;
      Unit got[kTogether];
      take(got, peer(k), first, stride, valid);
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (u < valid) put(peer(k) * shape.place_stride, first + u * stride, got[u]);
    }
  }
  /// Between ranks of which one sends the other nothing, a line without data.
  __device__ void greet() const {
    if (blockIdx.x != 0) return;
    for (int to = static_cast<int>(threadIdx.x); to < args.ranks;
         to += static_cast<int>(blockDim.x))
      if (to != args.rank && !sends(args.rank, to)) send(to, units, Unit{0, 0});
  }
  __device__ void await_greetings() {
    if (blockIdx.x != 0) return;
    Unit got[1];
    for (int from = static_cast<int>(threadIdx.x); from < args.ranks;
         from += static_cast<int>(blockDim.x))
      if (from != args.rank && !sends(from, args.rank)) take(got, from, units, 1, 1);
  }
  __device__ bool keeps() const {
    return shape.own_bytes != 0 && static_cast<const char*>(args.input) + shape.own_from !=
                                       static_cast<char*>(args.output) + shape.own_to;
  }
  /// What stays on this rank, of as many units as a part.
  __device__ void keep(unsigned first, unsigned stride) const {
    if (!keeps()) return;
    const char* src = static_cast<const char*>(args.input) + shape.own_from;
    char* dst = static_cast<char*>(args.output) + shape.own_to;
    const bool whole = is_aligned(src) && is_aligned(dst);
    const int valid = valid_units(first, stride, units, kTogether);
    Unit held[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (u < valid) held[u] = load_unit<Stored>(src, first + u * stride, shape.own_bytes, whole);
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (u < valid)
        store_unit<Stored, true>(dst, first + u * stride, held[u], shape.own_bytes, whole);
  }

  // Of a short call a thread has one unit of each part. It holds those of several peers at once, so
  // that the time of one load or one wait serves them all.

  /// To the k-th rank from this one on; the 0th is this one, which keeps what stays.
  __device__ bool gives(int k) const {
    return k < args.ranks && (k == 0 ? keeps() : sends(args.rank, peer(k)));
  }
  __device__ void push_to_all(unsigned unit) const {
    for (int first = 0; first < args.ranks; first += kPeers) {
      Unit held[kPeers];
#pragma unroll
      for (int j = 0; j < kPeers; ++j) {
        if (!gives(first + j)) continue;
        const unsigned long long at =
            first + j == 0 ? shape.own_from : peer(first + j) * shape.part_stride;
        const char* const src = static_cast<const char*>(args.input) + at;
        held[j] = load_unit<Stored>(src, unit, shape.part_bytes, is_aligned(src));
      }
#pragma unroll
      for (int j = 0; j < kPeers; ++j)
        if (gives(first + j)) {
          if (first + j == 0)
            put(shape.own_to, unit, held[j]);
          else
            send(peer(first + j), unit, held[j]);
        }
    }
  }
  __device__ void reduce_all(unsigned unit) {
    const char* const src = static_cast<const char*>(args.input) + args.rank * shape.part_stride;
    const Unit mine = load_unit<Stored>(src, unit, shape.part_bytes, is_aligned(src));
    Sum sum;
    for (int first = 0; first < args.ranks; first += kPeers) {
      Unit got[kPeers];
      this->take_slots(got, lines(), [&](int j) {
        const int from = first + j;
        return Slot{from < args.ranks && from != args.rank, from, index(args.rank, from, unit),
                    unit};
      });
#pragma unroll
      for (int j = 0; j < kPeers; ++j) {
        const int from = first + j;
        if (from >= args.ranks) continue;
        if (from == args.rank) got[j] = mine;
        if (from == 0)
          sum.first(got[j], args.op, args.scalars[0]);
        else
          sum.add(got[j], args.op, args.scalars[from]);
      }
    }
    put(0, unit, sum.result(args.op, true, args.ranks));
  }
  __device__ void place_all(unsigned unit) {
    for (int first = 1; first < args.ranks; first += kPeers) {
      Unit got[kPeers];
      const auto slot = [&](int j) {
        const int from = first + j < args.ranks ? peer(first + j) : args.rank;
        return Slot{sends(from, args.rank), from, index(args.rank, from, unit), unit};
      };
      this->take_slots(got, lines(), slot);
#pragma unroll
      for (int j = 0; j < kPeers; ++j)
        if (slot(j).is_wanted) put(slot(j).from * shape.place_stride, unit, got[j]);
    }
  }
};

/// What both kernels do before and behind a call's parts. Of a rank that has given up comes
/// nothing: peers may still read what lies in the same half.
template <class Call, class Parts>
__device__ void hop_call(Call& call, Parts move_parts) {
  if (!call.broken) call.greet();
  if (!call.broken) move_parts();
  if (!call.broken) call.await_greetings();
  if (call.broken) end_broken(call.args.state);
  end_fused_call(call.args.state, call.call);
}

/// With a thread, at least, for every unit of a part.
template <DataType kType, int kOp, int kHandling>
__device__ void short_hop(const HopArgs& args) {
  wait_for_grid_before();
  HopCall<kType, kOp, kHandling> call(args);
  const unsigned unit = blockIdx.x * blockDim.x + threadIdx.x;
  hop_call(call, [&] {
    if (unit >= call.units) return;
    call.push_to_all(unit);
    if (!call.takes()) return;
    if constexpr (kHandling == kReduceParts)
      call.reduce_all(unit);
    else
      call.place_all(unit);
  });
}

template <DataType kType, int kOp, int kHandling>
__device__ void hop(const HopArgs& args) {
  wait_for_grid_before();
  using Call = HopCall<kType, kOp, kHandling>;
  Call call(args);
  const unsigned stride = gridDim.x * blockDim.x;
  const unsigned first = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned step = stride * Call::kTogether;
  if (step < call.units && args.state->has_neighbour == 0)
    let_next_grid_start();  // as two_shot does
  hop_call(call, [&] {
    unsigned pushed = 0;
    for (int s = -args.ahead; !call.broken; ++s) {
      if (pushed < call.units) call.push(first + pushed, stride);
      pushed += step;
      if (s < 0) continue;
      const unsigned at = static_cast<unsigned>(s) * step;
      if (at >= call.units) break;
      call.keep(first + at, stride);
      if (!call.takes()) continue;
      if constexpr (kHandling == kReduceParts)
        call.reduce(first + at, stride);
      else
        call.place(first + at, stride);
    }
  });
}

}  // namespace plait::cuda
