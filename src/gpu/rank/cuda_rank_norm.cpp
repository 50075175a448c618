// Prepares and enqueues calls of all_reduce_rms_norm in the order of the rank's other calls.
#include "base/text.hpp"
#include "gpu/rank/cuda_rank.hpp"
#include "plait/error.hpp"

namespace plait::cuda {

std::unique_ptr<NormCall> CudaRank::prepare(const RmsNorm& norm, const NormTuning& tuning,
                                            bool alone, ArenaTier tier) {
  const TierScope scope(*this, tier);
  const std::string why =
      alone ? group().lacks(kNormKernels) : why_not_fused(norm, tuning, group());
  if (!why.empty())
    throw Error(ErrorCode::unsupported,
                text("all_reduce_rms_norm of {} rows of {}: {}", norm.rows, norm.hidden, why));
  const Current current(context_);
  return std::make_unique<NormCall>(norm, tuning, *this, alone);
}

void CudaRank::run(NormCall& call, const RmsNormBuffers& buffers, Stream stream) {
  const Current current(context_);
  in_order(stream, [&] { call.enqueue(buffers, stream); });
}

}  // namespace plait::cuda
