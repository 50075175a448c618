// Any collective in one hop, for small messages: every rank pushes its parts straight to their
// owners as flagged lines, so that data is its own signal, and each owner reduces or places what
// comes. One line a pair says "I am in this call", so that every call is a full exchange and nobody
// can be two calls ahead of a reader of the inbox.
#pragma once
#include "exec/cuda/kernels/fused.cuh"
#include "exec/cuda/tile_cut.hpp"

namespace plait::cuda {

template <DataType kType>
struct HopCall {
  using Sum = Accumulator<kType, kAnyOp>;
  using Stored = typename Sum::Stored;
  static constexpr int kTogether = sizeof(Stored) < 4 ? 2 : 4;

  const HopArgs& args;
  const HopShape& shape;
  unsigned call;
  unsigned long long half, units;
  bool broken;
  Patience patience;

  __device__ explicit HopCall(const HopArgs& given) : args(given), shape(given.shape) {
    call = number_of_call(args.state);
    half = (call & 1) * args.half_bytes;
    units = (shape.part_bytes + 15) / 16;
    broken = args.state->failed != 0;
  }
  __device__ bool sends(int from, int owner) const {
    return cuda::sends(shape, args.ranks, from, owner);
  }
  /// Line `units` of a slot is the one that says "I am in this call".
  __device__ char* line(int owner, int from, unsigned long long unit) const {
    return args.inbox[owner] + half + (from * (units + 1) + unit) * FlaggedLine::kBytes;
  }
  /// Units first, first + stride, ... (`valid` of them) of what `from` sends: all polled together,
  /// so that one round trip to L2 may serve them all.
  __device__ void take(Unit (&got)[kTogether], int from, unsigned long long first,
                       unsigned long long stride, int valid) {
    bool all_here;
    do {
      all_here = true;
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (u < valid)
          all_here &=
              FlaggedLine::receive<kType>(line(args.rank, from, first + u * stride), got[u], call);
    } while (!all_here && !give_up(from, first));
  }
  __device__ bool give_up(int from, unsigned long long unit) {
    if (!broken)
      broken = patience.gone(args.state, args.lifeline, args.wait_ns, static_cast<unsigned>(from),
                             static_cast<unsigned>(unit), ~0u);
    return broken;
  }
  __device__ Unit own(int owner, unsigned long long unit) const {
    const char* src = static_cast<const char*>(args.input) + owner * shape.part_stride;
    return load_unit<Stored>(src, unit, shape.part_bytes, is_aligned(src));
  }
  __device__ void put(unsigned long long offset, unsigned long long unit, const Unit& value) const {
    char* dst = static_cast<char*>(args.output) + offset;
    store_unit<Stored>(dst, unit, value, shape.part_bytes, is_aligned(dst));
  }

  __device__ int peer(int k) const { return rank_after(args.rank, k, args.ranks); }
  __device__ void push(unsigned long long first, unsigned long long stride) const {
    const int valid = valid_units(first, stride, units, kTogether);
    for (int k = 1; k < args.ranks; ++k) {
      if (!sends(args.rank, peer(k))) continue;
      Unit held[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (u < valid) held[u] = own(peer(k), first + u * stride);
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (u < valid)
          FlaggedLine::send<kType>(line(peer(k), args.rank, first + u * stride), held[u], call);
    }
  }
  __device__ void reduce(unsigned long long first, unsigned long long stride) {
    const int valid = valid_units(first, stride, units, kTogether);
    Sum sum[kTogether];
    for (int from = 0; from < args.ranks; ++from) {
      Unit got[kTogether];
      if (from != args.rank) take(got, from, first, stride, valid);
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (u >= valid) continue;
        if (from == args.rank) got[u] = own(from, first + u * stride);
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
  __device__ void place(unsigned long long first, unsigned long long stride) {
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
    const int to = static_cast<int>(threadIdx.x);
    if (blockIdx.x == 0 && to < args.ranks && to != args.rank && !sends(args.rank, to))
      FlaggedLine::send<kType>(line(to, args.rank, units), Unit{0, 0}, call);
  }
  __device__ void await_greetings() {
    const int from = static_cast<int>(threadIdx.x);
    Unit got[kTogether];
    if (blockIdx.x == 0 && from < args.ranks && from != args.rank && !sends(from, args.rank))
      take(got, from, units, 1, 1);
  }
  __device__ void copy_own(unsigned long long first, unsigned long long stride) const {
    const char* src = static_cast<const char*>(args.input) + shape.own_from;
    char* dst = static_cast<char*>(args.output) + shape.own_to;
    if (src == dst) return;
    const bool whole = is_aligned(src) && is_aligned(dst);
    for (unsigned long long i = first; i * 16 < shape.own_bytes; i += stride)
      store_unit<Stored>(dst, i, load_unit<Stored>(src, i, shape.own_bytes, whole), shape.own_bytes,
                         whole);
  }
};

template <DataType kType>
__device__ void hop(const HopArgs& args) {
  wait_for_grid_before();
  HopCall<kType> call(args);
  const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  const unsigned long long first =
      static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  call.greet();
  const unsigned long long step = stride * HopCall<kType>::kTogether;
  for (unsigned long long unit = first; unit < call.units; unit += step) call.push(unit, stride);
  if (args.shape.own_bytes != 0) call.copy_own(first, stride);
  if ((args.shape.owners >> args.rank & 1) != 0)
    for (unsigned long long unit = first; unit < call.units && !call.broken; unit += step)
      if (args.shape.handling == kReduceParts)
        call.reduce(unit, stride);
      else
        call.place(unit, stride);
  call.await_greetings();
  end_fused_call(args.state, call.call);
}

}  // namespace plait::cuda
