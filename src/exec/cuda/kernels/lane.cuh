// A lane's ops -> one kernel: all blocks walk the list together, each doing its share of every copy
// and reduction; waits and signals are flags in memory, so a lane of any length costs one launch.
#pragma once
#include "exec/cuda/kernels/memory.cuh"

namespace plait::cuda {

__device__ inline char* resolve(const LaneArgs& args, const DeviceRegion& region,
                                unsigned long long half) {
  return args.bases[region.base] + region.offset + (region.half != 0 ? half : 0);
}

/// Bytes at 16-byte steps if both ends allow it, else one by one.
__device__ inline void copy_share(char* dst, const char* src, unsigned long long bytes) {
  const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  const unsigned long long first =
      static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool aligned = ((reinterpret_cast<unsigned long long>(dst) |
                         reinterpret_cast<unsigned long long>(src)) & 15) == 0;
  unsigned long long done = 0;
  if (aligned) {
    const unsigned long long units = bytes / 16;
    auto* to = reinterpret_cast<ulonglong2*>(dst);
    const auto* from = reinterpret_cast<const ulonglong2*>(src);
    unsigned long long i = first;
    for (; i + 7 * stride < units; i += 8 * stride) {
      ulonglong2 held[8];
#pragma unroll
      for (int u = 0; u < 8; ++u) held[u] = __ldcs(from + i + u * stride);
#pragma unroll
      for (int u = 0; u < 8; ++u) __stcs(to + i + u * stride, held[u]);
    }
    for (; i < units; i += stride) to[i] = from[i];
    done = units * 16;
  }
  for (unsigned long long i = done + first; i < bytes; i += stride) dst[i] = src[i];
}

template <DataType kType, int kOp, int kSources>
__device__ void reduce_share(const LaneArgs& args, const DeviceOp& op, char* dst,
                             const char* const* sources) {
  using Sum = Accumulator<kType, kOp>;
  using Stored = typename Sum::Stored;
  constexpr int kTogether = kSources == 2 ? 4 : 2;
  const int count = kSources == 0 ? static_cast<int>(op.source_count) : kSources;
  unsigned long long joint = reinterpret_cast<unsigned long long>(dst);
  for (int s = 0; s < count; ++s) joint |= reinterpret_cast<unsigned long long>(sources[s]);
  const bool aligned = (joint & 15) == 0;
  const unsigned long long units = (op.bytes + 15) / 16;
  const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < units; i += kTogether * stride) {
    Sum sum[kTogether];
    for (int s = 0; s < count; ++s) {
      const int origin = args.sources[op.first_source + s].origin;
      const double scale = kOp != kAnyOp || origin < 0 ? 1.0 : args.scalars[origin];
      Unit unit[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (i + u * stride < units)
          unit[u] = load_unit<Stored>(sources[s], i + u * stride, op.bytes, aligned);
#pragma unroll
      for (int u = 0; u < kTogether; ++u)
        if (i + u * stride < units) {
          if (s == 0) sum[u].first(unit[u], args.op, scale);
          else sum[u].add(unit[u], args.op, scale);
        }
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (i + u * stride < units)
        store_unit<Stored>(dst, i + u * stride, sum[u].result(args.op, op.finish != 0, args.ranks),
                           op.bytes, aligned);
  }
}

/// All blocks meet. counters[0] only grows; a round is full at the next multiple of the grid.
__device__ inline bool meet_blocks(const LaneArgs& args, const DeviceOp& op, Patience& patience) {
  __shared__ int broken;
  __syncthreads();
  if (threadIdx.x == 0) {
    broken = 0;
    __threadfence();
    const unsigned ticket = atomicAdd(&args.counters[0], 1u);
    const unsigned target = (ticket / gridDim.x + 1) * gridDim.x;
    while (!reached(load_flag(&args.counters[0]), target))
      if (patience.gone(args.state, args.lifeline, args.wait_ns, op.peer, op.index, args.lane)) {
        broken = 1;
        break;
      }
  }
  __syncthreads();
  return broken == 0;
}

__device__ inline bool wait_for(const LaneArgs& args, const DeviceOp& op, unsigned epoch,
                                Patience& patience) {
  __shared__ int broken;
  if (threadIdx.x == 0) {
    broken = 0;
    while (!reached(load_flag(op.flag), epoch + op.value))
      if (patience.gone(args.state, args.lifeline, args.wait_ns, op.peer, op.index, args.lane)) {
        broken = 1;
        break;
      }
  }
  __syncthreads();
  return broken == 0;
}

/// The last block to arrive raises the flag; nobody waits for it.
__device__ inline void raise(const LaneArgs& args, const DeviceOp& op, unsigned epoch) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  unsigned* arrivals = &args.counters[op.arrivals];
  if (atomicAdd(arrivals, 1u) != gridDim.x - 1) return;
  *arrivals = 0;
  __threadfence_system();
  store_flag(op.flag, epoch + op.value);
}

template <DataType kType, int kOp>
__device__ void run_lane(const LaneArgs& args) {
  const unsigned epoch = args.state->plan_epoch;
  const unsigned long long half = (args.state->inbox_calls & 1) * args.inbox_half_bytes;
  bool going = args.state->failed == 0;
  Patience patience;
  for (unsigned index = 0; index < args.op_count && going; ++index) {
    const DeviceOp& op = args.ops[index];
    if (op.barrier != 0 && !meet_blocks(args, op, patience)) break;
    switch (static_cast<OpKind>(op.kind)) {
      case OpKind::copy:
        copy_share(resolve(args, op.dst, half),
                   resolve(args, args.sources[op.first_source], half), op.bytes);
        break;
      case OpKind::reduce: {
        const char* sources[kMaxSources];
        for (unsigned s = 0; s < op.source_count; ++s)
          sources[s] = resolve(args, args.sources[op.first_source + s], half);
        char* dst = resolve(args, op.dst, half);
        if (kOp != kAnyOp && op.source_count == 2)
          reduce_share<kType, kOp, 2>(args, op, dst, sources);
        else
          reduce_share<kType, kOp, 0>(args, op, dst, sources);
        break;
      }
      case OpKind::signal:
        raise(args, op, epoch);
        break;
      case OpKind::wait:
        going = wait_for(args, op, epoch, patience);
        break;
    }
  }
}

}  // namespace plait::cuda
