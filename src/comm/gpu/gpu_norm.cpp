// Enqueues all_reduce_rms_norm: one kernel that sums and normalises, or an all_reduce into the
// output and the norm behind it. Both give the same bits.
#include <bit>

#include "base/text.hpp"
#include "comm/gpu/arena_hold.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "driver/cuda/api.hpp"
#include "plait/error.hpp"

namespace plait {

void GpuCalls::check_memory(const RmsNorm& norm, const RmsNormBuffers& buffers) const {
  Request request = all_reduce_of(norm, 1);
  check_memory(request, 0, buffers.input, buffers.residual);
  request.count = norm.hidden;
  check_memory(request, 0, buffers.weight, buffers.weight);
  request.count = norm.rows * norm.hidden;
  request.type = norm.output;
  check_memory(request, 0, buffers.output, buffers.output);
  if (buffers.scale == nullptr) return;
  request.count = 1;
  request.type = DataType::fp32;
  check_memory(request, 0, buffers.scale, buffers.scale);
}

cuda::NormCall& GpuCalls::prepared(const RmsNorm& norm, const cuda::NormTuning& tuning,
                                   const NormKey& key, ArenaTier tier) {
  if (auto* const found = norms_.find(key)) return **found;
  const bool alone = std::get<bool>(key);
  return *norms_.add(key, cuda_->prepare(norm, tuning, alone, tier), [](const auto&) {});
}

/// A call that takes several launches in the small arena waits for the large arena, as large calls
/// of engines do.
void GpuCalls::enqueue_fused(const RmsNorm& norm, const cuda::NormTuning& tuning, NormKey key,
                             const RmsNormBuffers& buffers, cuda::Stream stream) {
  const std::uint64_t at_once =
      cuda::norm_launch(norm, tuning, cuda_->small_arena_group()).piece_rows;
  ArenaTier tier = tier_of(false);
  unsigned reserved = 0;
  if (cuda_->has_lazy_arena() && at_once < norm.rows) {
    int status = cuda::kCaptureNone;
    PLAIT_CUDA_CALL(stream_is_capturing, stream, &status);
    const bool is_granted = cuda_->reserve_large_arena(
        status != cuda::kCaptureNone ? cuda::CallMode::captured : cuda::CallMode::alone,
        cuda::kPacketStep);
    if (is_granted) reserved = cuda::kPacketStep;
    if (is_granted) tier = ArenaTier::full;
  }
  std::get<CallTier>(key) = tier == ArenaTier::full ? CallTier::full : CallTier::small;
  cuda::NormCall* call = nullptr;
  try {
    call = &prepared(norm, tuning, key, tier);
  } catch (...) {  // of this rank alone
    if (reserved != 0) cuda_->cancel_reservation(reserved, true);
    throw;
  }
  const ArenaHold hold(*cuda_, reserved);
  cuda_->run(*call, buffers, stream);
  fused_norms_.fetch_add(1, std::memory_order_relaxed);
}

void GpuCalls::enqueue(const RmsNorm& norm, const RmsNormBuffers& buffers, cuda::Stream stream,
                       const CallOptions& options) {
  const cuda::Current current(cuda_->context());
  // Parameters without a strategy demand the fused kernel, so PLAIT_ALGO has no say.
  const bool has_params = options.strategy.empty() && !options.params.empty();
  const CallOptions& wanted = has_params ? options : wanted_by(options);
  const bool has_named = cuda::is_fused_strategy(wanted.strategy);
  cuda::NormTuning tuning;
  if (has_params || has_named)  // parameters of PLAIT_ALGO are an engine's
    tuning = cuda::norm_tuning_from(wanted.strategy, options.params);
  if (norm.rows == 0) return;
  check_memory(norm, buffers);
  if (const std::string why = cuda::why_no_params(norm, tuning, cuda_->full_group()); !why.empty())
    throw Error(ErrorCode::invalid_argument, text("parameter of all_reduce_rms_norm: {}", why));
  const Request request = all_reduce_of(norm, group_.ranks);
  std::string why_not = cuda::why_not_fused(norm, tuning, cuda_->full_group());
  if (why_not.empty() && !group_.reach.why_no_kernels.empty())
    why_not = group_.reach.why_no_kernels;
  if (why_not.empty() && !wanted.strategy.empty() && !has_named)
    why_not = text("the strategy is {}", wanted.strategy);
  // PLAIT_ALGO is for all_reduce too, and demands no kernel.
  const bool is_demanded =
      (has_params || cuda::is_fused_strategy(options.strategy)) && group_.ranks > 1;
  if (!why_not.empty() && is_demanded)
    throw Error(ErrorCode::unsupported,
                text("all_reduce_rms_norm by {}: {}",
                     has_params ? "a kernel with parameters" : tuning.strategy, why_not));
  const bool is_fp8 = norm.output == DataType::fp8e4m3 && group_.ranks > 1;
  const bool is_fused = why_not.empty() && (has_named || has_params || is_fp8 ||
                                            cuda::is_faster_fused(norm, cuda_->full_group()));
  NormKey key{norm.rows,
              norm.hidden,
              static_cast<int>(norm.type),
              static_cast<int>(norm.output),
              std::bit_cast<std::uint32_t>(norm.epsilon),
              tuning.strategy,
              is_fused ? options.params : std::map<std::string, std::int64_t>{},
              CallTier::only,
              !is_fused};
  if (is_fused) {
    CountedCall counted(request, kByPlait, stream);
    return enqueue_fused(norm, tuning, std::move(key), buffers, stream);
  }
  if (is_fp8)
    throw Error(ErrorCode::unsupported,
                text("all_reduce_rms_norm with output of fp8e4m3 is one kernel, and {}", why_not));
  // Before the all_reduce, which replaces an input that is the output.
  cuda::NormCall& behind = prepared(norm, tuning, key, tier_of(false));
  RmsNormBuffers of_sums = buffers;
  if (group_.ranks > 1) {
    const bool has_engine = !options.strategy.empty() && options.strategy != cuda::kUnfused;
    enqueue(request, buffers.input, buffers.output, stream, has_engine ? options : CallOptions{});
    of_sums.input = buffers.output;
  }
  cuda_->run(behind, of_sums, stream);
}

}  // namespace plait
