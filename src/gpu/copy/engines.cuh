// Device code of calls by copy engines: waiting for flags, raising flags and handling pieces, which
// copy engines cannot do. A single small block waits and signals, so that no SM is occupied while
// copies run. Pieces are reduced by a kernel that starts when the whole piece has arrived.
#pragma once
#include "gpu/abi/copy_args.hpp"
#include "gpu/device/memory.cuh"

namespace plait::cuda {

/// Returns true if the call has failed here. A peer that gave up has poisoned this rank: later
/// copies of the peer are invalid, and no more signals come. A poisoned rank waits here until the
/// own program aborts, the host reports a lost rank, or the deadline passes.
__device__ inline bool engine_is_broken(const EngineStep& step) {
  const unsigned* const poisoned = &step.flags[step.rank]->poisoned;
  unsigned failed = fault_of(step.state);
  SpinTimeout timeout;
  for (unsigned peer = load_flag(poisoned); peer != 0 && failed == kNoFault;)
    failed = timeout.poll(step.state, step.stop_page, step.wait_ns, peer - 1, 0, ~0u);
  return __any_sync(~0u, failed != kNoFault ? 1 : 0) != 0;
}

/// Returns false if the wait was given up. Lane r waits for rank r.
__device__ inline bool engine_wait(const EngineStep& step) {
  const unsigned rank = threadIdx.x;
  const EngineFlags& mine = *step.flags[step.rank];
  const unsigned base = *step.counted;
  bool broken = false;
  SpinTimeout timeout;
  for (const EngineWait& wait : step.waits) {
    if (rank >= kMaxCudaRanks || (wait.ranks >> rank & 1) == 0) continue;
    while (!broken && !reached(load_flag(&wait.flags[rank]), base + wait.value))
      broken =
          load_flag(&mine.poisoned) != 0 ||
          timeout.poll(step.state, step.stop_page, step.wait_ns, rank, wait.value, ~0u) != kNoFault;
  }
  return __any_sync(~0u, broken ? 1 : 0) == 0;
}

/// Raises the flags. A peer that sees a flag also sees all that this stream copied and wrote
/// before.
__device__ inline void engine_signal(const EngineStep& step) {
  __threadfence_system();
  if (threadIdx.x < kMaxCudaRanks && step.signal[threadIdx.x] != nullptr)
    store_flag(step.signal[threadIdx.x], *step.counted + step.signal_value);
}

/// Waits and signals. Copies cannot be called back: copies that follow a wait given up may
/// overwrite data that a peer still needs. The peers are therefore poisoned first; then the stream
/// fails here, and no peer completes the call either.
__device__ inline void engine_step(const EngineStep& step) {
  bool broken = engine_is_broken(step);
  if (!broken && step.signals_first != 0) engine_signal(step);
  if (!broken) broken = !engine_wait(step);
  broken = engine_is_broken(step) || broken;
  if (!broken && step.signals_first == 0) engine_signal(step);
  if (!broken) return;
  __threadfence_system();
  const unsigned rank = threadIdx.x;
  if (rank < static_cast<unsigned>(step.ranks) && rank != static_cast<unsigned>(step.rank))
    store_flag(&step.flags[rank]->poisoned, step.rank + 1);
  __threadfence_system();
  __syncwarp();
  (void)should_exit(step.state);
}

/// dst := source 0 (+) source 1 ..., unit by unit.
template <DataType kType, int kOp, int kSources>
__device__ void reduce_piece(const PieceArgs& args) {
  using Sum = Accumulator<kType, kOp>;
  using Stored = typename Sum::Stored;
  constexpr int kHeld = kSources == 0 ? 1 : kSources;
  constexpr int kTogether = sizeof(Stored) == 1 ? 1 : kSources == 2 || kSources == 0 ? 4 : 2;
  if (should_exit(args.state)) return;
  unsigned whole = 0;
  for (int s = 0; s < args.sources; ++s) whole |= is_aligned(args.source[s]) ? 1u << s : 0u;
  const bool whole_dst = is_aligned(args.dst);
  const unsigned long long units = (args.bytes + 15) / 16;
  const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i =
           static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < units; i += kTogether * stride) {
    Sum sum[kTogether];
    for (int from = 0; from < (kSources == 0 ? args.sources : kSources); from += kHeld) {
      Unit got[kTogether][kHeld];
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
#pragma unroll
        for (int s = 0; s < kHeld; ++s)
          if (i + u * stride < units)
            got[u][s] = load_unit<Stored>(args.source[from + s], i + u * stride, args.bytes,
                                          (whole >> (from + s) & 1) != 0);
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if constexpr (kIsTree<kOp>)
          sum[u].template sum_tree<0, kHeld>(got[u], args.op, args.scalars,
                                             rounds_sums(args.order));
#pragma unroll
        for (int s = 0; s < kHeld && !kIsTree<kOp>; ++s)
          if (from + s == 0)
            sum[u].first(got[u][s], args.op, args.scalars[0]);
          else
            sum[u].add(got[u][s], args.op, args.scalars[from + s]);
      }
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      if (i + u * stride >= units) continue;
      const Unit total = sum[u].result(args.op, true, args.sources);
      store_unit<Stored>(args.dst, i + u * stride, total, args.bytes, whole_dst);
    }
  }
}

/// The same in a tree of 4, 8 or 16 sources, a unit at a time.
template <DataType kType>
__device__ void reduce_piece_in_tree(const PieceArgs& args) {
  using Sum = Accumulator<kType, kTreeAny>;
  using Stored = typename Sum::Stored;
  if (should_exit(args.state)) return;
  const bool whole_dst = is_aligned(args.dst);
  const unsigned long long units = (args.bytes + 15) / 16;
  const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i =
           static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < units; i += stride) {
    Sum sum = sum_in_tree<Sum>(args.sources, args.op, args.order, args.scalars, [&](int from) {
      const char* const source = args.source[from];
      return load_unit<Stored>(source, i, args.bytes, is_aligned(source));
    });
    const Unit total = sum.result(args.op, true, args.sources);
    store_unit<Stored>(args.dst, i, total, args.bytes, whole_dst);
  }
}

/// dst := source 0, bit for bit.
__device__ inline void move_piece(const PieceArgs& args) {
  constexpr int kTogether = 4;
  if (should_exit(args.state)) return;
  const bool whole = is_aligned(args.source[0]), whole_dst = is_aligned(args.dst);
  const unsigned long long units = (args.bytes + 15) / 16;
  const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i =
           static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < units; i += kTogether * stride) {
    Unit held[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (i + u * stride < units)
        held[u] = load_unit<std::uint8_t>(args.source[0], i + u * stride, args.bytes, whole);
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (i + u * stride < units)
        store_unit<std::uint8_t>(args.dst, i + u * stride, held[u], args.bytes, whole_dst);
  }
}

}  // namespace plait::cuda
