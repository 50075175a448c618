// The part of NCCL's binary interface that plait uses, declared by plait: builds need no NCCL.
// tests/shims compares every value with an installed nccl.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "driver/cuda/types.hpp"

namespace plait::nccl {

using Comm = struct CommTag*;  ///< ncclComm_t; the handle is always NCCL's own
using Stream = cuda::Stream;   ///< cudaStream_t

struct UniqueId {
  char bytes[128];
};

enum Result : int {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

// include/plait/types.def has the element types. NCCL's built-in reductions; handles of
// user-defined reductions (premul_sum) begin at kBuiltInOps.
inline constexpr int kSum = 0;
inline constexpr int kProd = 1;
inline constexpr int kMax = 2;
inline constexpr int kMin = 3;
inline constexpr int kAvg = 4;
inline constexpr int kBuiltInOps = 5;

inline constexpr int kUint8 = 1;
inline constexpr int kScalarDevice = 0;
inline constexpr int kScalarHost = 1;
inline constexpr int kSplitNoColor = -1;
inline constexpr int kShrinkAbort = 1;
inline constexpr int kRevokeDefault = 0;
/// A flag of ncclCommSuspend: free GPU memory.
inline constexpr int kSuspendMemory = 1;
/// ncclCommMemStat_t: memory that ncclCommSuspend frees, that it leaves, and all memory.
inline constexpr int kStatSuspendable = 0;
inline constexpr int kStatPersistent = 2;
inline constexpr int kStatTotal = 3;

inline constexpr unsigned kConfigMagic = 0xcafebeef;
inline constexpr int kConfigUndefined = -2147483647 - 1;
/// Head of ncclConfig_t. `size` says how much of it exists (NCCL before 2.17: up to blocking).
struct ConfigHead {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size = kConfigUndefined;
  int min_ctas = kConfigUndefined;
  int max_ctas = kConfigUndefined;
};

/// Offset of graphUsageMode in ncclConfig_t (an int, from NCCL 2.29 on), and the value for graphs
/// that may run alongside other graphs or eager calls.
inline constexpr std::size_t kConfigGraphUsage = 80;
inline constexpr int kGraphsMixed = 2;
/// Offset of launchOrderImplicit in ncclConfig_t (an int, from NCCL 2.31 on): calls of the GPU's
/// communicators run in launch order.
inline constexpr std::size_t kConfigLaunchOrder = 96;

/// Offset of CTAPolicy in ncclConfig_t (an int, from NCCL 2.27 on).
inline constexpr std::size_t kConfigCtaPolicy = 60;
/// Policies: as fast as possible, few CTAs, copy engines wherever they can.
inline constexpr int kDefaultCtaPolicy = 0, kEfficientCtaPolicy = 1, kZeroCtaPolicy = 2;
/// ncclCollConfig_t, the configuration of a single call (from NCCL 2.31 on). `size` says how much
/// of it exists. Vendors' extensions (`ext`) and the profiler's tag change nothing in NCCL's
/// library.
struct CallConfig {
  std::size_t size;
  unsigned magic;
  unsigned version;
  const void* ext = nullptr;
  int min_ctas = kConfigUndefined;
  int max_ctas = kConfigUndefined;
  int nvls_ctas = kConfigUndefined;
  int cga_cluster_size = kConfigUndefined;
  const char* alg_selection = nullptr;
  int force_alg_selection = 1;
  int cta_policy = kConfigUndefined;
  std::uint64_t user_profiler_tag = 0;
  const void* launch_completion_event = nullptr;
};

/// Decodes ncclGetVersion's number: 22809 = 2.28.9; before 2.9: 2804 = 2.8.4.
constexpr int major_of(int version) { return version < 10000 ? version / 1000 : version / 10000; }
constexpr int minor_of(int version) {
  return version < 10000 ? version / 100 % 10 : version / 100 % 100;
}

}  // namespace plait::nccl
