// The part of NCCL's binary interface that plait speaks, in plait's own declarations, so that
// building needs no NCCL. tests/shims compares every value here with an installed nccl.h.
#pragma once
#include <cstddef>

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

// Element types are in include/plait/types.def. Reductions of NCCL's own; handles of user-defined
// ones (pre-multiplied sums) begin at kBuiltInOps.
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

inline constexpr unsigned kConfigMagic = 0xcafebeef;
inline constexpr int kConfigUndefined = -2147483647 - 1;
/// How ncclConfig_t begins; `size` says how much of it there is (NCCL before 2.17: up to blocking).
struct ConfigHead {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size = kConfigUndefined;
  int min_ctas = kConfigUndefined;
  int max_ctas = kConfigUndefined;
};

/// Where ncclConfig_t says how a communicator's graphs are used (graphUsageMode, an int, from NCCL
/// 2.29 on), and what it says where several may run at once, or eager calls beside them.
inline constexpr std::size_t kConfigGraphUsage = 80;
inline constexpr int kGraphsMixed = 2;
/// Where it says that calls of the GPU's communicators run in the order of their launches
/// (launchOrderImplicit, an int, from NCCL 2.31 on).
inline constexpr std::size_t kConfigLaunchOrder = 96;

/// What ncclGetVersion's number stands for: 22809 = 2.28.9, before 2.9: 2804 = 2.8.4.
constexpr int major_of(int version) { return version < 10000 ? version / 1000 : version / 10000; }
constexpr int minor_of(int version) {
  return version < 10000 ? version / 100 % 10 : version / 100 % 100;
}

}  // namespace plait::nccl
