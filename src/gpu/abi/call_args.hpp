// Arguments common to all kernels: plain structs that both compilers read. Integer widths are
// explicit, so host and device agree on the layout. Arguments of a kernel family are in the
// family's folder (ll_args.hpp, tile_args.hpp, ...).
#pragma once
#include <cstdint>

namespace plait::cuda {

inline constexpr int kMaxCudaRanks = 16;
inline constexpr int kMaxSources = 16;  ///< Sources of a reduction.
inline constexpr int kFlagsPerPair = 256;

/// Report of a failed wait, in pinned host memory; `code` is written last.
struct KernelFault {
  std::uint32_t code;   ///< FaultCode
  std::uint32_t peer;   ///< Rank that was waited for, or kNoPeer.
  std::uint32_t where;  ///< Fused kernels: the 16-byte unit. Lanes: the index of the op.
  std::uint32_t lane;
};
inline constexpr std::uint32_t kNoPeer = ~0u;  ///< A rank unknown to this communicator.
/// Reasons to end a wait. All but kFaultAborted fail the stream, because the output was not
/// written. A program's own abort ends without a stream error, as under NCCL.
enum FaultCode : std::uint32_t {
  kNoFault = 0,
  kFaultDeadline = 1,
  kFaultAborted = 2,       ///< By the program itself.
  kFaultLost = 3,          ///< A rank that is waited for is gone.
  kFaultBeingReported = 4  ///< DeviceState::failed only: the host report is not complete yet.
};

/// A rank's counters, in its own device memory, so that replayed graphs advance them too.
struct DeviceState {
  // A 64-bit counter of kernels with LL packets, in two halves: the lower half carries into the
  // upper.
  std::uint32_t fused_done;   ///< Arrivals of the call's blocks so far; 0 between calls.
  std::uint32_t fused_calls;  ///< Finished calls; the number selects the inboxes' part.
  std::uint32_t plan_epoch;   ///< Sum of epochs_per_call of finished plans.
  std::uint32_t inbox_calls;  ///< Finished plans that used an inbox.
  std::uint32_t failed;  ///< FaultCode; not 0 = a wait was given up and this rank's kernels exit.
  std::uint32_t plan_done;       ///< Blocks of the running one-launch plan that are done.
  unsigned long long looked_ns;  ///< Last time a waiting thread read the StopPage.
  std::uint32_t has_neighbour;   ///< Not 0: another rank of this process uses this GPU.
  std::uint32_t unused[7];
};

/// Pinned host memory that waiting kernels poll.
struct StopPage {
  std::uint32_t stop;  ///< kFaultAborted or kFaultLost: kernels stop waiting.
  std::uint32_t unused[15];
  KernelFault fault;
};

/// Arguments of the kernel that looks for a lost rank behind another library's part of a call.
struct PeerLostArgs {
  DeviceState* state;
  StopPage* stop_page;
};

/// Arguments of every fused kernel.
struct CallArgs {
  const void* input;
  void* output;
  DeviceState* state;
  StopPage* stop_page;
  std::uint64_t wait_ns;
  double scalars[kMaxCudaRanks];  ///< premul_sum
  std::int32_t rank;
  std::int32_t ranks;
  std::int32_t op;           ///< ReduceOp
  std::int32_t order;        ///< SumOrder: rank_order, or a tree over 4, 8 or 16 ranks
  std::uint32_t behind_bus;  ///< Not 0: inboxes lie in host memory.
};

}  // namespace plait::cuda
