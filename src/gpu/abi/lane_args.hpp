// Arguments of the kernel that runs a plan's lanes.
#pragma once
#include "gpu/abi/call_args.hpp"

namespace plait::cuda {

/// A region as kernels see it: bases[base] + offset (+ the inbox half, if `half` is set).
struct DeviceRegion {
  std::uint64_t offset;
  std::uint16_t base;
  std::uint16_t half;
  std::int32_t origin;  ///< source of a reduction: rank of the premul_sum factor; -1 = none
};

/// An op of a lane.
struct DeviceOp {
  std::uint32_t kind;  ///< OpKind
  std::uint32_t source_count;
  std::uint64_t bytes;
  DeviceRegion dst;
  std::uint32_t first_source;  ///< index into LaneArgs::sources
  std::uint32_t finish;
  std::uint32_t* flag;  ///< signal, wait: as mapped here
  std::uint32_t value;
  std::uint32_t peer;      ///< rank that raises or awaits the flag, for errors
  std::uint32_t barrier;   ///< 1 = all blocks must have finished the ops before
  std::uint32_t arrivals;  ///< signal: index of the arrival counter
  std::uint32_t index;     ///< in the plan's lane, for errors
  std::uint32_t unused;
};

inline constexpr int kBases = 2 + 3 * kMaxCudaRanks;  ///< input, output, scratch, inbox, ring

/// A segment of a lane, run by separate blocks.
struct DeviceLane {
  std::uint32_t first_op;
  std::uint32_t op_count;
  std::uint32_t first_counter;  ///< [0] = barrier of the blocks, then one per signal
  std::uint32_t first_block;    ///< within the launch
  std::uint32_t blocks;
  std::uint32_t index;  ///< index of the lane in the plan, for errors
};

/// A launch of the lane kernel: `lane_count` segments side by side.
struct LaneArgs {
  const DeviceLane* lanes;
  const DeviceOp* ops;
  const DeviceRegion* sources;
  std::uint32_t* counters;
  char* bases[kBases];
  std::uint64_t inbox_half_bytes;
  DeviceState* state;
  StopPage* stop_page;
  std::uint64_t wait_ns;
  double scalars[kMaxCudaRanks];
  std::uint32_t lane_count;
  std::int32_t ranks;
  std::int32_t rank;
  /// Every rank's flag EngineFlags::poisoned if copies may go by engines, otherwise null.
  std::uint32_t* poisoned[kMaxCudaRanks];
  std::int32_t op;          ///< ReduceOp
  std::int32_t order;       ///< SumOrder of the plan
  std::uint32_t ends_call;  ///< 1 = this launch is the whole call: the last block counts the call
  std::uint32_t epochs;
  std::uint32_t inbox_calls;
};

/// The end of a call whose lanes were separate launches.
struct LaneEnd {
  DeviceState* state;
  StopPage* stop_page;
  std::uint64_t wait_ns;
  const std::uint32_t* poisoned;  ///< this rank's; null = none
  std::uint32_t epochs;
  std::uint32_t inbox_calls;
};

}  // namespace plait::cuda
