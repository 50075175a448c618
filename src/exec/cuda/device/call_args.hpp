// What host code hands to every kernel: plain structs read by both compilers. Widths are spelled
// out, so that layout is the same on both sides. What only some kernels are told lies beside these.
#pragma once
#include <cstdint>

namespace plait::cuda {

inline constexpr int kMaxCudaRanks = 16;
inline constexpr int kMaxSources = 16;  ///< of one reduction
inline constexpr int kFlagsPerPair = 256;

/// What went wrong in a kernel, in pinned host memory; `code` is written last.
struct KernelFault {
  std::uint32_t code;   ///< FaultCode
  std::uint32_t peer;   ///< the rank waited for, or kNoPeer
  std::uint32_t where;  ///< fused kernels: the 16-byte unit; lanes: the op's index
  std::uint32_t lane;
};
inline constexpr std::uint32_t kNoPeer = ~0u;  ///< one that this rank does not know
/// All but kFaultAborted fail the stream, as what a call should have written is not there. What the
/// program aborts ends without an error of its stream, as under NCCL.
enum FaultCode : std::uint32_t {
  kNoFault = 0,
  kFaultDeadline = 1,
  kFaultAborted = 2,       ///< by the program itself
  kFaultLost = 3,          ///< a rank that is waited for is gone
  kFaultBeingReported = 4  ///< of DeviceState::failed only: the host cannot read yet why
};

/// A rank's counters, in its own device memory: captured graphs advance them at every replay.
struct DeviceState {
  // Of kernels by lines, one word in two halves: blocks carry it over with no look at it.
  std::uint32_t fused_done;   ///< what its blocks have added so far; 0 between calls
  std::uint32_t fused_calls;  ///< finished calls: parity picks the inbox half
  std::uint32_t plan_epoch;   ///< sum of epochs_per_call of finished plans
  std::uint32_t inbox_calls;  ///< finished plans that used an inbox
  std::uint32_t failed;       ///< FaultCode: not 0 = a wait was given up, and nothing goes on here
  std::uint32_t plan_done;    ///< blocks of the running one-launch plan that are through
  unsigned long long looked_ns;  ///< when a waiting thread last looked at the StopPage
  std::uint32_t has_neighbour;   ///< not 0: this process has another rank on this GPU
  std::uint32_t unused[7];
};

/// Pinned host memory that kernels look at while they wait.
struct StopPage {
  std::uint32_t stop;  ///< kFaultAborted or kFaultLost: kernels wait no longer
  std::uint32_t unused[15];
  KernelFault fault;
};

/// What the kernel is told that looks for a lost rank behind another library's part of a call.
struct PeerLostArgs {
  DeviceState* state;
  StopPage* stop_page;
};

/// What every fused kernel is told of its call.
struct CallArgs {
  const void* input;
  void* output;
  DeviceState* state;
  StopPage* stop_page;
  std::uint64_t wait_ns;
  double scalars[kMaxCudaRanks];  ///< premul_sum
  std::int32_t rank;
  std::int32_t ranks;
  std::int32_t op;  ///< ReduceOp
};

}  // namespace plait::cuda
