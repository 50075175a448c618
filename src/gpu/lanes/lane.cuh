// Runs lanes of a plan in a single kernel. The blocks of a lane step through the ops together, each
// block with a share of every copy and reduction; waits and signals are flags in memory. A lane of
// any length, or all lanes of a rank, therefore takes a single launch, and lanes run side by side
// whatever the scheduler does.
#pragma once
#include "gpu/abi/lane_args.hpp"
#include "gpu/device/memory.cuh"

namespace plait::cuda {

__device__ inline char* resolve(const LaneArgs& args, const DeviceRegion& region,
                                unsigned long long half) {
  return args.bases[region.base] + region.offset + (region.half != 0 ? half : 0);
}

/// Position of a block among the blocks of a lane.
struct LanePlace {
  const DeviceLane* lane;
  unsigned block;
  unsigned blocks;
  unsigned* counters;
  __device__ unsigned long long first() const {
    return static_cast<unsigned long long>(block) * blockDim.x + threadIdx.x;
  }
  __device__ unsigned long long stride() const {
    return static_cast<unsigned long long>(blocks) * blockDim.x;
  }
};

/// Copies in 16-byte steps if both addresses allow it, otherwise byte by byte.
__device__ inline void copy_share(const LanePlace& place, char* dst, const char* src,
                                  unsigned long long bytes) {
  const unsigned long long stride = place.stride(), first = place.first();
  const bool aligned =
      ((reinterpret_cast<unsigned long long>(dst) | reinterpret_cast<unsigned long long>(src)) &
       15) == 0;
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
    for (; i < units; i += stride) store_plain(to + i, load_plain(from + i));
    done = units * 16;
  }
  for (unsigned long long i = done + first; i < bytes; i += stride)
    store_plain(dst + i, load_plain(src + i));
}

/// Reduces `units` units, `stride` apart, over all ranks in a tree.
template <class Sum>
__device__ inline void reduce_in_tree(const LaneArgs& args, const DeviceOp& op, char* dst,
                                      const char* const* sources, bool aligned,
                                      unsigned long long first, unsigned long long stride,
                                      int units) {
  using Stored = typename Sum::Stored;
  const int count = static_cast<int>(op.source_count);
  double scales[kMaxSources];
  for (int s = 0; s < count; ++s) {
    const int origin = args.sources[op.first_source + s].origin;
    scales[s] = origin < 0 ? 1.0 : args.scalars[origin];
  }
  for (int u = 0; u < units; ++u) {
    const unsigned long long at = first + u * stride;
    if (at >= (op.bytes + 15) / 16) return;
    Sum sum = sum_in_tree<Sum>(count, args.op, args.order, scales, [&](int s) {
      return load_unit<Stored>(sources[s], at, op.bytes, aligned);
    });
    store_unit<Stored>(dst, at, sum.result(args.op, op.finish != 0, args.ranks), op.bytes, aligned);
  }
}

template <DataType kType, int kOp, int kSources>
__device__ void reduce_share(const LaneArgs& args, const LanePlace& place, const DeviceOp& op,
                             char* dst, const char* const* sources) {
  using Sum = Accumulator<kType, kOp>;
  using Stored = typename Sum::Stored;
  constexpr int kTogether = kSources == 2 ? 4 : 2;
  const int count = kSources == 0 ? static_cast<int>(op.source_count) : kSources;
  unsigned long long joint = reinterpret_cast<unsigned long long>(dst);
  for (int s = 0; s < count; ++s) joint |= reinterpret_cast<unsigned long long>(sources[s]);
  const bool aligned = (joint & 15) == 0;
  const unsigned long long units = (op.bytes + 15) / 16;
  const unsigned long long stride = place.stride();
  for (unsigned long long i = place.first(); i < units; i += kTogether * stride) {
    Sum sum[kTogether];
    if (kSources == 0 && count > 2 && sums_in_tree(args.order)) {
      reduce_in_tree<Sum>(args, op, dst, sources, aligned, i, stride, kTogether);
      continue;
    }
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
          if (s == 0)
            sum[u].first(unit[u], args.op, scale);
          else
            sum[u].add(unit[u], args.op, scale);
        }
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (i + u * stride < units)
        store_unit<Stored>(dst, i + u * stride, sum[u].result(args.op, op.finish != 0, args.ranks),
                           op.bytes, aligned);
  }
}

/// Barrier of all blocks. A round adds 2^31 to counters[0], whatever the number of blocks: a round
/// is complete when the top bit changes, and no rest is lost at 2^32. Source: CUDA's cooperative
/// groups, sync_grids.
__device__ inline bool sync_blocks(const LaneArgs& args, const LanePlace& place, const DeviceOp& op,
                                   SpinTimeout& timeout) {
  PLAIT_SHARED(int, broken);
  __syncthreads();
  if (threadIdx.x == 0) {
    broken = 0;
    __threadfence();
    constexpr unsigned kRound = 1u << 31;
    const unsigned mine = place.block == 0 ? kRound - (place.blocks - 1) : 1;
    const unsigned before = atomicAdd(&place.counters[0], mine);
    while (((load_flag(&place.counters[0]) ^ before) & kRound) == 0)
      if (timeout.expired(args.state, args.stop_page, args.wait_ns, op.peer, op.index,
                          place.lane->index)) {
        broken = 1;
        break;
      }
  }
  __syncthreads();
  return broken == 0;
}

__device__ inline bool wait_for(const LaneArgs& args, const LanePlace& place, const DeviceOp& op,
                                unsigned epoch, SpinTimeout& timeout) {
  PLAIT_SHARED(int, broken);
  __syncthreads();  // all threads have read the result of the wait before
  if (threadIdx.x == 0) {
    broken = 0;
    while (!reached(load_flag(op.flag), epoch + op.value))
      if (timeout.expired(args.state, args.stop_page, args.wait_ns, op.peer, op.index,
                          place.lane->index)) {
        broken = 1;
        break;
      }
  }
  __syncthreads();
  return broken == 0;
}

/// The last block to arrive raises the flag; no block waits for that. The fences are of the whole
/// system, since the flag may lie in host memory, and the data in the memory of another GPU
/// (docs/design/paths.md).
__device__ inline void raise(const LanePlace& place, const DeviceOp& op, unsigned epoch) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  unsigned* arrivals = &place.counters[op.arrivals];
  if (atomicAdd(arrivals, 1u) != place.blocks - 1) return;
  *arrivals = 0;
  __threadfence_system();
  store_flag(op.flag, epoch + op.value);
}

template <DataType kType, int kOp>
__device__ void do_reduce(const LaneArgs& args, const LanePlace& place, const DeviceOp& op,
                          unsigned long long half) {
  const char* sources[kMaxSources];
  for (unsigned s = 0; s < op.source_count; ++s)
    sources[s] = resolve(args, args.sources[op.first_source + s], half);
  char* dst = resolve(args, op.dst, half);
  if (kOp != kAnyOp && op.source_count == 2)
    reduce_share<kType, kOp, 2>(args, place, op, dst, sources);
  else
    reduce_share<kType, kOp, 0>(args, place, op, dst, sources);
}

/// A single thread decides for the whole block: if some threads went on and some stopped, a flag
/// could be raised for partial work.
__device__ inline bool block_goes_on(const LaneArgs& args) {
  PLAIT_SHARED(int, ended);
  if (threadIdx.x == 0) ended = should_exit(args.state) ? 1 : 0;
  __syncthreads();
  return ended == 0;
}

/// Poisons the peers. After the program aborts, engine copies that follow cannot be called back and
/// may write where a peer still reads.
__device__ inline void poison_peers(const LaneArgs& args) {
  if (threadIdx.x != 0) return;
  __threadfence_system();
  for (int rank = 0; rank < args.ranks; ++rank)
    if (rank != args.rank && args.poisoned[rank] != nullptr)
      store_flag(args.poisoned[rank], args.rank + 1);
}

template <DataType kType, int kOp>
__device__ void run_lane(const LaneArgs& args, const LanePlace& place) {
  const unsigned epoch = args.state->plan_epoch;
  const unsigned long long half = (args.state->inbox_calls & 1) * args.inbox_half_bytes;
  bool going = block_goes_on(args);
  SpinTimeout timeout;
  const DeviceOp* ops = args.ops + place.lane->first_op;
  for (unsigned index = 0; index < place.lane->op_count && going; ++index) {
    const DeviceOp& op = ops[index];
    if (op.barrier != 0) going = sync_blocks(args, place, op, timeout);
    if (!going) break;
    switch (static_cast<OpKind>(op.kind)) {
      case OpKind::copy:
        copy_share(place, resolve(args, op.dst, half),
                   resolve(args, args.sources[op.first_source], half), op.bytes);
        break;
      case OpKind::reduce: do_reduce<kType, kOp>(args, place, op, half); break;
      case OpKind::signal: raise(place, op, epoch); break;
      case OpKind::wait: going = wait_for(args, place, op, epoch, timeout); break;
      case OpKind::join: break;  // refused when plans are chosen
    }
  }
  if (!going && args.ends_call == 0) poison_peers(args);
}

/// Ends a call: the next call continues the counts from here, in eager calls and in replays alike.
__device__ inline void end_lanes(const LaneEnd& end) {
  end.state->plan_epoch += end.epochs;
  end.state->inbox_calls += end.inbox_calls;
  fail_if_poisoned(end.poisoned, end.state, end.stop_page, end.wait_ns);
}

template <DataType kType, int kOp>
__device__ void run_lanes(const LaneArgs& args) {
  unsigned at = 0;
  while (at + 1 < args.lane_count && blockIdx.x >= args.lanes[at + 1].first_block) ++at;
  const DeviceLane* lane = args.lanes + at;
  const LanePlace place{lane, blockIdx.x - lane->first_block, lane->blocks,
                        args.counters + lane->first_counter};
  run_lane<kType, kOp>(args, place);
  if (args.ends_call == 0) return;
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(&args.state->plan_done, 1u) != gridDim.x - 1) return;
  args.state->plan_done = 0;
  end_lanes({args.state, args.stop_page, args.wait_ns, args.poisoned[args.rank], args.epochs,
             args.inbox_calls});
}

}  // namespace plait::cuda
