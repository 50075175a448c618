// Kernels direct_ll and short_direct_ll: any collective in a single hop. Every rank pushes parts
// straight to the owners in escaped LL packets, and each owner reduces or places the data. Each
// pair of ranks exchanges at least one packet, if only a greeting ("I am in this call"). Every call
// is therefore a full exchange, and no rank can be two calls ahead of a reader of the inbox.
#pragma once
#include "gpu/abi/direct_shape.hpp"
#include "gpu/abi/ll_args.hpp"
#include "gpu/abi/tile_cut.hpp"
#include "gpu/ll/escaped.cuh"

namespace plait::cuda {

/// kHandling: kReduceParts or kPlaceParts.
template <DataType kType, int kOp, int kHandling>
struct DirectLlCall : EscapedCall<DirectLlArgs> {
  using Sum = Accumulator<kType, kOp>;
  using Stored = typename Sum::Stored;
  static constexpr bool kSums = kHandling == kReduceParts;
  static constexpr int kTogether = kSums ? 2 : 4;
  using Packets = EscapedCall<DirectLlArgs>;
  using Packets::args;
  using ExpectedUnit = typename Packets::ExpectedUnit;

  const DirectShape& shape;
  unsigned units;  // units of a part; 32 bits (kMostPackets) to save registers

  __device__ explicit DirectLlCall(const DirectLlArgs& given) : Packets(given), shape(given.shape) {
    units = static_cast<unsigned>((shape.part_bytes + 15) / 16);
  }
  __device__ bool gives(int k) const { return (shape.gives >> k & 1) != 0; }
  __device__ bool takes(int k) const { return (shape.takes >> k & 1) != 0; }
  __device__ bool owns() const { return (shape.owners >> args.rank & 1) != 0; }
  /// Returns the index of a packet in the owner's inbox; `unit` == `units` is the greeting packet.
  __device__ unsigned index(int owner, int from, unsigned unit) const {
    return static_cast<unsigned>(place_among_others(owner, from)) * (units + 1) + unit;
  }
  __device__ unsigned packets() const {
    return static_cast<unsigned>(args.ranks - 1) * (units + 1);
  }
  __device__ void send(int owner, unsigned unit, const Unit& value) const {
    Packets::send(owner, packets(), index(owner, args.rank, unit), unit, value);
  }
  template <int kSlots>
  __device__ void take(Unit (&got)[kSlots], int from, unsigned first, unsigned stride, int valid) {
    Packets::take(got, from, packets(), index(args.rank, from, first), first, stride, valid);
  }
  /// Prefetches the data that reduce() will load `ahead` steps later.
  __device__ void fetch_own(unsigned first, unsigned stride, int valid) const {
    const char* src = static_cast<const char*>(args.input) + args.rank * shape.part_stride;
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (u < valid) fetch_ahead(src + (first + u * stride) * 16ull);
  }
  /// Loads this rank's units for `owner`; all loads are under way before any unit is used.
  __device__ void load_own(Unit (&held)[kTogether], int owner, unsigned first, unsigned stride,
                           int valid) const {
    const char* const src = input_for(owner);
    const bool whole = is_aligned(src);
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (u < valid) held[u] = load_one(src, first + u * stride, whole);
  }
  __device__ const char* input_for(int owner) const {
    return static_cast<const char*>(args.input) + owner * shape.part_stride;
  }
  __device__ Unit load_one(const char* src, unsigned unit, bool whole) const {
    return load_unit<Stored>(src, unit, shape.part_bytes, whole);
  }
  __device__ void put(unsigned long long offset, unsigned unit, const Unit& value) const {
    char* dst = static_cast<char*>(args.output) + offset;
    store_unit<Stored, true>(dst, unit, value, shape.part_bytes, is_aligned(dst));
  }

  __device__ int peer(int k) const { return rank_after(args.rank, k, args.ranks); }
  __device__ void push(unsigned first, unsigned stride) const {
    const int valid = valid_units(first, stride, units, kTogether);
    if constexpr (kSums)
      if (owns()) fetch_own(first, stride, valid);
    Unit held[kTogether];
    int k = next_given(1);
    if (!kSums && k < args.ranks) load_own(held, peer(k), first, stride, valid);
    while (k < args.ranks) {
      if constexpr (kSums) load_own(held, peer(k), first, stride, valid);
      const int after = next_given(k + 1);
      const char* const src = input_for(peer(after));
      const bool whole = is_aligned(src);
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (u < valid) {
          send(peer(k), first + u * stride, held[u]);
          // A move loads the next peer's unit into the register of a unit just sent: the load then
          // overlaps the sends of further units, 0 to 5 % faster. Loading more at once spills
          // registers: 1 to 7 % slower.
          if (!kSums && after < args.ranks) held[u] = load_one(src, first + u * stride, whole);
        }
      k = after;
    }
  }
  /// Returns the first peer from the k-th on that this rank has a part for.
  __device__ int next_given(int k) const {
    while (k < args.ranks && !gives(k)) ++k;
    return k;
  }
  __device__ void reduce(unsigned first, unsigned stride) {
    const int valid = valid_units(first, stride, units, kTogether);
    Unit mine[kTogether];  // loads under way while the peers' units are awaited
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
  /// A unit at a time: a tree holds several sums.
  __device__ void reduce_in_tree(unsigned first, unsigned stride) {
    const int valid = valid_units(first, stride, units, kTogether);
    for (int u = 0; u < valid; ++u) {
      const unsigned at = first + u * stride;
      const char* const own = input_for(args.rank);
      const Unit mine = load_one(own, at, is_aligned(own));
      Sum sum = sum_in_tree<Sum>(args.ranks, args.op, args.order, args.scalars, [&](int from) {
        Unit got[1] = {mine};
        if (from != args.rank) take(got, from, at, stride, 1);
        return got[0];
      });
      put(0, at, sum.result(args.op, true, args.ranks));
    }
  }
  __device__ void place(unsigned first, unsigned stride) {
    const int valid = valid_units(first, stride, units, kTogether);
    for (int k = 1; k < args.ranks; ++k) {
      if (!takes(k)) continue;
      Unit got[kTogether];
      take(got, peer(k), first, stride, valid);
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (u < valid) put(peer(k) * shape.place_stride, first + u * stride, got[u]);
    }
  }
  /// Sends a packet without data to each peer that gets no part from this rank.
  __device__ void greet() const {
    if (blockIdx.x != 0) return;
    for (int k = 1 + static_cast<int>(threadIdx.x); k < args.ranks;
         k += static_cast<int>(blockDim.x))
      if (!gives(k)) send(peer(k), units, Unit{0, 0});
  }
  __device__ void await_greetings() {
    if (blockIdx.x != 0) return;
    Unit got[1];
    for (int k = 1 + static_cast<int>(threadIdx.x); k < args.ranks;
         k += static_cast<int>(blockDim.x))
      if (!takes(k)) take(got, peer(k), units, 1, 1);
  }
  /// Copies the part that stays on this rank, as many units as in any part.
  __device__ void keep(unsigned first, unsigned stride) const {
    const char* src = static_cast<const char*>(args.input) + shape.own_from;
    char* dst = static_cast<char*>(args.output) + shape.own_to;
    if (src == dst || !gives(0)) return;
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
};

/// Runs a call between the greetings, for both kernels. A rank that has given up sends nothing
/// more, since peers may still read the same half of an inbox.
template <class Call, class Parts>
__device__ void direct_ll_call(Call& call, Parts move_parts) {
  fence_earlier_clears(call.args, call.number);
  if (!call.broken) call.greet();
  if (!call.broken) move_parts();
  if (!call.broken) call.await_greetings();
  if (call.broken) fail_stream_at_end(call.args.state);
  end_fused_call(call.args.state, call.number);
}

/// A call with at least one thread per unit of a part. With little to wait for, the number of
/// instructions and the size of the code matter: a thread handles units of several peers together,
/// and the host computes their addresses. kMostRanks: a multiple of kPeers.
template <DataType kType, int kOp, int kHandling, int kMostRanks>
struct ShortDirectLl : DirectLlCall<kType, kOp, kHandling> {
  using Call = DirectLlCall<kType, kOp, kHandling>;
  using typename Call::ExpectedUnit;
  using typename Call::Stored;
  using typename Call::Sum;
  static constexpr int kPeers = 4;  ///< peers handled together
  const ShortDirectLlArgs& args;
  const unsigned unit;

  __device__ explicit ShortDirectLl(const ShortDirectLlArgs& given)
      : Call(given), args(given), unit(blockIdx.x * blockDim.x + threadIdx.x) {}

  __device__ Unit load(unsigned offset, bool whole) const {
    const char* const src = static_cast<const char*>(args.input) + offset;
    if (!whole) return load_unit<Stored>(src, unit, args.shape.part_bytes, is_aligned(src));
    const ulonglong2 pair = load_plain(reinterpret_cast<const ulonglong2*>(src) + unit);
    return {pair.x, pair.y};
  }
  __device__ void put(unsigned offset, const Unit& value, bool whole) const {
    char* const dst = static_cast<char*>(args.output) + offset;
    if (whole)
      __stcs(reinterpret_cast<ulonglong2*>(dst) + unit, make_ulonglong2(value.lo, value.hi));
    else
      store_unit<Stored, true>(dst, unit, value, args.shape.part_bytes, is_aligned(dst));
  }
  __device__ bool gives_to(int i) const { return (args.gives_to >> i & 1) != 0; }
  __device__ bool takes_from(int i) const { return (args.takes_from >> i & 1) != 0; }
  __device__ void give(int i, const Unit& value, bool whole) const {
    if (i == args.ranks - 1) return put(args.place_at[i], value, whole);
    const Unit mixed = EscapedPacket::mixed(value, unit);
    if (EscapedPacket::may_be_special(mixed)) [[unlikely]]
      this->send(this->peer(i + 1), unit, value);
    else
      store_pair(args.to[i] + this->half + unit * kSentinelPacketBytes, mixed.lo, mixed.hi);
  }
  __device__ ExpectedUnit slot(int i) const {
    return {takes_from(i), this->peer(i + 1), args.packet[i] + unit, unit};
  }

  /// Called once a thread's units are here: the block then waits for peers' blocks that run, since
  /// units come from blocks of the same number. Block 0 may also await greetings.
  __device__ void let_next_grid_start_early() const {
    if (blockIdx.x != 0 || args.takes_from == (1u << (args.ranks - 1)) - 1) let_next_grid_start();
  }

  /// A group index known at compile time: indexing kernel parameters by a constant needs no address
  /// computation.
  template <int kFirst>
  struct PeerGroup {
    static constexpr int first = kFirst;
  };
  template <class Handle, int kFirst = 0>
  __device__ void for_groups(Handle handle) const {
    handle(PeerGroup<kFirst>{});
    if constexpr (kFirst + kPeers < kMostRanks)
      if (kFirst + kPeers < args.ranks) for_groups<Handle, kFirst + kPeers>(handle);
  }
  /// All that a thread reads of the input, loaded before any packet is checked.
  struct LoadedInput {
    Unit parts[kMostRanks];
    Unit own;  // this rank's unit of a sum
  };
  __device__ void load(LoadedInput& held) const {
#pragma unroll
    for (int i = 0; i < kMostRanks; ++i)
      if (gives_to(i)) held.parts[i] = load(args.part_at[i], true);
    if constexpr (Call::kSums) held.own = load_own(true);
  }
  __device__ void push(const LoadedInput& held) const {
#pragma unroll
    for (int i = 0; i < kMostRanks; ++i)
      if (gives_to(i)) give(i, held.parts[i], true);
  }
  __device__ void push_by_one() const {
#pragma unroll 1
    for (int i = 0; i < args.ranks; ++i)
      if (gives_to(i)) give(i, load(args.part_at[i], false), false);
  }
  __device__ void add(Sum& sum, int from, const Unit& value) const {
    if (from == 0)
      sum.first(value, args.op, args.scalars[0]);
    else
      sum.add(value, args.op, args.scalars[from]);
  }
  __device__ Unit load_own(bool whole) const {
    return load(static_cast<unsigned>(args.rank * args.shape.part_stride), whole);
  }
  __device__ void take_all(const LoadedInput& held) {
    if constexpr (kIsTree<kOp>)
      reduce_in_tree(held.own);
    else if constexpr (Call::kSums)
      reduce(held.own);
    else
      place();
  }
  __device__ void take_by_one() {
    if constexpr (kIsTree<kOp>)
      reduce_in_tree_by_one();
    else if constexpr (Call::kSums)
      reduce_by_one();
    else
      place_by_one();
  }
  /// Takes the units of a group's ranks, except this rank's own. kIsFull: no rank is missing.
  template <bool kIsFull, class Group>
  __device__ void take_group(Unit (&got)[kPeers], Group) {
    this->template take_slots<RareCode::once>(got, this->packets(), [&](int j) {
      const int from = Group::first + j;
      return ExpectedUnit{(kIsFull || from < args.ranks) && from != args.rank, from,
                          this->index(args.rank, from, unit), unit};
    });
  }
  /// Returns a rank's unit of a sum. The unit may not be whole.
  __device__ Unit unit_of(int from) {
    Unit got[1];
    if (from == args.rank)
      got[0] = load_own(false);
    else
      this->take(got, from, unit, 0, 1);
    return got[0];
  }
  __device__ void reduce(const Unit& mine) {
    Sum sum;
    for_groups([&](auto group) {
      constexpr int first = decltype(group)::first;
      Unit got[kPeers];
      take_group<false>(got, group);
#pragma unroll
      for (int j = 0; j < kPeers; ++j) {
        const int from = first + j;
        if (from >= args.ranks) continue;
        Unit part = got[j];
        if (from == args.rank) part = mine;
        add(sum, from, part);
      }
    });
    let_next_grid_start_early();
    put(0, sum.result(args.op, true, args.ranks), true);
  }
  __device__ void reduce_by_one() {
    Sum sum;
#pragma unroll 1
    for (int from = 0; from < args.ranks; ++from) add(sum, from, unit_of(from));
    put(0, sum.result(args.op, true, args.ranks), false);
  }
  /// The ranks of a group are four of 4 or 8.
  __device__ void reduce_in_tree(const Unit& mine) {
    static_assert(kMostRanks <= 2 * kPeers);
    const bool rounds = rounds_sums(args.order);
    Sum sum;
    for_groups([&](auto group) {
      constexpr int first = decltype(group)::first;
      Unit got[kPeers];
      take_group<true>(got, group);
#pragma unroll
      for (int j = 0; j < kPeers; ++j)
        if (first + j == args.rank) got[j] = mine;
      Sum four;
      four.template sum_tree<0, kPeers>(got, args.op, args.scalars + first, rounds);
      if constexpr (first == 0)
        sum = four;
      else
        sum.join(four, args.op, rounds);
    });
    let_next_grid_start_early();
    put(0, sum.result(args.op, true, args.ranks), true);
  }
  __device__ void reduce_in_tree_by_one() {
    Sum sum = sum_in_tree<Sum>(args.ranks, args.op, args.order, args.scalars,
                               [&](int from) { return unit_of(from); });
    put(0, sum.result(args.op, true, args.ranks), false);
  }
  __device__ void place() {
    for_groups([&](auto group) {
      constexpr int first = decltype(group)::first;
      Unit got[kPeers];
      this->template take_slots<RareCode::once>(got, this->packets(),
                                                [&](int j) { return slot(first + j); });
      if (first + kPeers >= args.ranks) let_next_grid_start_early();
#pragma unroll
      for (int j = 0; j < kPeers; ++j)
        if (takes_from(first + j)) put(args.place_at[first + j], got[j], true);
    });
  }
  __device__ void place_by_one() {
#pragma unroll 1
    for (int i = 0; i < args.ranks - 1; ++i) {
      if (!takes_from(i)) continue;
      Unit got[1];
      this->template take_slots<RareCode::once>(got, this->packets(), [&](int) { return slot(i); });
      put(args.place_at[i], got[0], false);
    }
  }
};

/// Pushes everything before the first wait: only at waits do threads of a diverged warp await each
/// other.
template <DataType kType, int kOp, int kHandling, int kMostRanks>
__device__ void short_direct_ll(const ShortDirectLlArgs& args) {
  wait_for_grid_before();
  ShortDirectLl<kType, kOp, kHandling, kMostRanks> call(args);
  const bool is_whole = call.unit < args.whole_units;
  typename ShortDirectLl<kType, kOp, kHandling, kMostRanks>::LoadedInput held;
  if (is_whole) call.load(held);
  call.open();
  direct_ll_call(call, [&] {
    if (call.unit >= call.units) return;
    if (is_whole) [[likely]]
      call.push(held);
    else
      call.push_by_one();
    if (!call.owns()) return;
    if (is_whole) [[likely]]
      call.take_all(held);
    else
      call.take_by_one();
  });
}

template <DataType kType, int kOp, int kHandling>
__device__ void direct_ll(const DirectLlArgs& args) {
  wait_for_grid_before();
  using Call = DirectLlCall<kType, kOp, kHandling>;
  Call call(args);
  call.open();
  const unsigned stride = gridDim.x * blockDim.x;
  const unsigned first = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned step = stride * Call::kTogether;
  if (step < call.units && args.state->has_neighbour == 0)
    let_next_grid_start();  // early, as in two_shot
  direct_ll_call(call, [&] {
    unsigned pushed = 0;
    for (int s = -args.ahead; !call.broken; ++s) {
      if (pushed < call.units) call.push(first + pushed, stride);
      pushed += step;
      if (s < 0) continue;
      const unsigned at = static_cast<unsigned>(s) * step;
      if (at >= call.units) break;
      call.keep(first + at, stride);
      if (!call.owns()) continue;
      if constexpr (kIsTree<kOp>)
        call.reduce_in_tree(first + at, stride);
      else if constexpr (Call::kSums)
        call.reduce(first + at, stride);
      else
        call.place(first + at, stride);
    }
  });
}

}  // namespace plait::cuda
