// A call of all_reduce_rms_norm on a rank: choice of the kernel, cut into launches, enqueueing.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "driver/cuda/api.hpp"
#include "gpu/abi/norm_args.hpp"
#include "gpu/device/kernels.hpp"
#include "gpu/engine/engine_rank.hpp"
#include "gpu/engine/group.hpp"
#include "gpu/engine/resources.hpp"
#include "plait/rms_norm.hpp"

namespace plait::cuda {

extern const KernelFamily kNormKernels;
extern const KernelFamily kNormClusterKernels;  ///< a cluster of blocks holds a row
extern const KernelFamily kNormTreeKernels;
const Resources& norm_resources();

/// Strategy of an all_reduce as plait chooses, and the norm behind it.
inline constexpr const char* kUnfused = "unfused";
/// True for the strategies by which one kernel sums and normalises: one_shot and two_shot.
bool is_fused_strategy(const std::string& strategy);

/// How a caller wants the kernel; equal on all ranks. 0 or "" = plait chooses.
struct NormTuning {
  std::string strategy;  ///< one_shot or two_shot
  int units = 0;         ///< 16-byte units of a row that a thread holds: 1, 2, 4 or 8
  int blocks = 0;        ///< most blocks
  int ahead = -1;        ///< rows of a block that pushing runs ahead of summing; -1 = plait chooses
  int cluster = 0;       ///< blocks that hold a row in a one_shot: 1, 2, 4 or 8
};
/// Throws Error(invalid_argument) for an unknown parameter or a value out of range.
NormTuning norm_tuning_from(const std::string& strategy,
                            const std::map<std::string, std::int64_t>& params);

/// Launches of a call.
struct NormLaunch {
  NormKernel kernel = NormKernel::one_shot;
  int units = 2;
  int ahead = 0;
  std::uint64_t piece_rows = 0;  ///< rows of a launch; 0 = half an inbox holds no row of each rank
  KernelLaunchConfig config;     ///< a two_shot's cluster shares the slots of rows
};
NormLaunch norm_launch(const RmsNorm& norm, const NormTuning& tuning, const Group& group);
/// Launch of the norm alone.
NormLaunch norm_launch_alone(const RmsNorm& norm, const NormTuning& tuning, const Group& group);

/// Returns "" if units and cluster hold a row; otherwise the reason, with values that do.
std::string why_no_params(const RmsNorm& norm, const NormTuning& tuning, const Group& group);
/// Returns "" if one kernel sums and normalises; otherwise the reason. The tuning's parameters hold
/// a row (why_no_params).
std::string why_not_fused(const RmsNorm& norm, const NormTuning& tuning, const Group& group);
/// True if one kernel is faster than an all_reduce and the norm behind it.
bool is_faster_fused(const RmsNorm& norm, const Group& group);

/// A call prepared on a rank; only addresses are missing. alone: the norm without the sum.
class NormCall {
 public:
  NormCall(const RmsNorm& norm, const NormTuning& tuning, EngineRank& rank, bool alone);
  /// Enqueues the call in stream order in the rank's context. May be captured.
  void enqueue(const RmsNormBuffers& buffers, Stream stream);

 private:
  EngineRank& rank_;
  const RmsNorm norm_;
  NormLaunch launch_;
  Function kernel_;
  NormArgs args_{};
};

}  // namespace plait::cuda
