// Kernel ll_chain: a broadcast or a reduce along a chain of all ranks in LL packets. Each rank
// takes a unit from the rank before, keeps the data or adds its own, and sends the unit on. A
// message crosses each link once, whereas in direct_ll the root's links carry the message once for
// every other rank. This kernel serves messages whose packets fit into half an inbox;
// long_chain.cuh serves longer messages. Ranks that exchange no data exchange a greeting packet ("I
// am in this call").
#pragma once
#include "gpu/abi/direct_shape.hpp"
#include "gpu/abi/ll_args.hpp"
#include "gpu/ll/escaped.cuh"

namespace plait::cuda {

/// State and helpers of ll_chain and long_chain. kHandling: kReduceParts or kPlaceParts.
template <DataType kType, int kOp, int kHandling>
struct ChainCall : EscapedCall<ChainArgs> {
  using Sum = Accumulator<kType, kOp>;
  using Stored = typename Sum::Stored;
  static constexpr bool kSums = kHandling == kReduceParts;
  static constexpr int kTogether = kSums ? 2 : 4;
  using Packets = EscapedCall<ChainArgs>;
  using Packets::args;

  const ChainShape& shape;
  const int before, next;
  // The current piece's part of the buffers, and the number of packets in front of the escape
  // words.
  const char* input;
  char* output;
  unsigned long long bytes;
  unsigned units;  // 32 bits (kMostPackets) to save registers
  unsigned packets;

  __device__ explicit ChainCall(const ChainArgs& given)
      : Packets(given),
        shape(given.shape),
        before(before_in(shape, given.ranks, given.rank)),
        next(next_in(shape, given.ranks, given.rank)) {
    this->open();
    set_piece(0, shape.bytes);
    packets = units + static_cast<unsigned>(given.ranks - 1);
  }
  __device__ void set_piece(unsigned long long at, unsigned long long length) {
    input = static_cast<const char*>(args.input) + at;
    output = static_cast<char*>(args.output) + at;
    bytes = length;
    units = static_cast<unsigned>((length + 15) / 16);
  }
  __device__ int receiver() const { return next >= 0 ? next : returns(shape) ? shape.root : -1; }
  __device__ bool awaits_return() const { return returns(shape) && args.rank == shape.root; }

  __device__ void load_own(Unit (&held)[kTogether], unsigned first, unsigned stride,
                           int valid) const {
    const bool whole = is_aligned(input);
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (u < valid) held[u] = load_unit<Stored>(input, first + u * stride, bytes, whole);
  }
  __device__ void put(const Unit (&held)[kTogether], unsigned first, unsigned stride,
                      int valid) const {
    const bool whole = is_aligned(output);
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (u < valid) store_unit<Stored, true>(output, first + u * stride, held[u], bytes, whole);
  }
  /// Adds this rank's own units to the partial sums, in rank order. The first rank sends its own
  /// units unchanged. Rank 0 is behind rank 1 in a chain of two with root 0 alone.
  __device__ void add(Unit (&came)[kTogether], const Unit (&own)[kTogether], int valid) const {
    const bool own_is_first = args.rank < before;
    const double scale_of_came = before == shape.first ? args.scalars[before] : 1.0;
    const double scale_of_own = args.scalars[args.rank];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      if (u >= valid) continue;
      Sum sum;
      sum.first(choose(own_is_first, own[u], came[u]), args.op,
                own_is_first ? scale_of_own : scale_of_came);
      sum.add(choose(own_is_first, came[u], own[u]), args.op,
              own_is_first ? scale_of_came : scale_of_own);
      came[u] = sum.result(args.op, next < 0, args.ranks);
    }
  }
  __device__ static Unit choose(bool is_first, const Unit& one, const Unit& other) {
    return {is_first ? one.lo : other.lo, is_first ? one.hi : other.hi};
  }
  /// Forwards the units of a step through this rank. After a wait that was given up nothing is sent
  /// on.
  __device__ void pass(unsigned first, unsigned stride) {
    const int valid = valid_units(first, stride, units, kTogether);
    Unit held[kTogether];
    if (before < 0) {
      load_own(held, first, stride, valid);
    } else {
      Unit own[kTogether];  // loads under way while the partial sum is awaited
      if constexpr (kSums) load_own(own, first, stride, valid);
      this->take(held, before, packets, first, first, stride, valid);
      if (this->broken) return;
      if constexpr (kSums) add(held, own, valid);
    }
    const int to = receiver();
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (u < valid && to >= 0)
        this->send(to, packets, first + u * stride, first + u * stride, held[u]);
    if (keeps(shape, args.rank) && (before >= 0 || args.input != args.output))
      put(held, first, stride, valid);
  }
  /// Takes the returned units at the root.
  __device__ void take_returned(unsigned first, unsigned stride) {
    const int valid = valid_units(first, stride, units, kTogether);
    Unit held[kTogether];
    this->take(held, shape.last, packets, first, first, stride, valid);
    put(held, first, stride, valid);
  }

  /// Returns a greeting packet's index: behind the packets of data, one per rank.
  __device__ unsigned greeting(int owner, int from) const {
    return units + static_cast<unsigned>(place_among_others(owner, from));
  }
  /// Sends a packet without data to each rank that gets no data from this rank.
  __device__ void greet() const {
    if (blockIdx.x != 0) return;
    for (int to = static_cast<int>(threadIdx.x); to < args.ranks;
         to += static_cast<int>(blockDim.x))
      if (greets(shape, args.ranks, args.rank, to))
        this->send(to, packets, greeting(to, args.rank), units, Unit{0, 0});
  }
  __device__ void await_greetings() {
    if (blockIdx.x != 0) return;
    Unit got[1];
    for (int from = static_cast<int>(threadIdx.x); from < args.ranks;
         from += static_cast<int>(blockDim.x))
      if (greets(shape, args.ranks, from, args.rank))
        this->take(got, from, packets, greeting(args.rank, from), units, 1, 1);
  }
};

template <DataType kType, int kOp, int kHandling>
__device__ void ll_chain(const ChainArgs& args) {
  wait_for_grid_before();
  using Call = ChainCall<kType, kOp, kHandling>;
  Call call(args);
  const unsigned stride = gridDim.x * blockDim.x;
  const unsigned first = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned step = stride * Call::kTogether;
  if (step < call.units && args.state->has_neighbour == 0)
    let_next_grid_start();  // early, as in two_shot
  if (!call.broken) call.greet();
  // A rank that awaits returned steps first forwards `ahead` steps.
  const bool awaits = call.awaits_return();
  unsigned passed = 0;
  for (int s = awaits ? -args.ahead : 0; !call.broken; ++s) {
    if (passed < call.units) call.pass(first + passed, stride);
    passed += step;
    if (s < 0) continue;
    const unsigned at = static_cast<unsigned>(s) * step;
    if (at >= call.units) break;
    if (awaits) call.take_returned(first + at, stride);
  }
  if (!call.broken) call.await_greetings();
  if (call.broken) fail_stream_at_end(args.state);
  fence_clears(args);
  end_fused_call(args.state, call.number);
}

}  // namespace plait::cuda
