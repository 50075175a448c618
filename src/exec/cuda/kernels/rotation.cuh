// What copy engines cannot do of a large collective: wait for a flag, raise one, and handle a piece
// that has come. One small block waits and tells, so that no SM is held while copies run; pieces
// are reduced by a kernel that starts when all of it is there.
#pragma once
#include "exec/cuda/kernels/memory.cuh"

namespace plait::cuda {

/// Waits until all words have reached their values, then tells the peers.
__device__ inline void rotation_step(const RotationStep& step) {
  const unsigned rank = threadIdx.x;
  if (rank >= kMaxCudaRanks) return;
  const unsigned base = *step.pieces;
  bool broken = step.state->failed != 0;
  Patience patience;
  for (const RotationWait& wait : step.waits) {
    if ((wait.ranks >> rank & 1) == 0) continue;
    while (!broken && !reached(load_flag(&wait.words[rank]), base + wait.value))
      broken = patience.gone(step.state, step.lifeline, step.wait_ns, rank, wait.value, ~0u);
  }
  if (broken || step.tell[rank] == nullptr) return;
  __threadfence_system();
  store_flag(step.tell[rank], base + step.told);
}

/// dst := source 0 (+) source 1 ..., unit by unit; where there is a second dst, that too.
template <DataType kType, int kOp, int kSources>
__device__ void reduce_piece(const PieceArgs& args) {
  using Sum = Accumulator<kType, kOp>;
  using Stored = typename Sum::Stored;
  constexpr int kHeld = kSources == 0 ? 1 : kSources;
  constexpr int kTogether = sizeof(Stored) == 1 ? 1 : kSources == 2 || kSources == 0 ? 4 : 2;
  if (args.state->failed != 0) return;
  unsigned whole = 0;
  for (int s = 0; s < args.sources; ++s) whole |= is_aligned(args.source[s]) ? 1u << s : 0u;
  const bool whole_dst[2] = {is_aligned(args.dst[0]), is_aligned(args.dst[1])};
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
      for (int u = 0; u < kTogether; ++u)
#pragma unroll
        for (int s = 0; s < kHeld; ++s)
          if (from + s == 0)
            sum[u].first(got[u][s], args.op, args.scalars[0]);
          else
            sum[u].add(got[u][s], args.op, args.scalars[from + s]);
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      if (i + u * stride >= units) continue;
      const Unit total = sum[u].result(args.op, true, args.sources);
      for (int d = 0; d < 2; ++d)
        if (args.dst[d] != nullptr)
          store_unit<Stored>(args.dst[d], i + u * stride, total, args.bytes, whole_dst[d]);
    }
  }
}

}  // namespace plait::cuda
