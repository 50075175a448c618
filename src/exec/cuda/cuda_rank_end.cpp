// How a rank comes to its end: what it still has under way, and the peers' memory.
#include <algorithm>
#include <atomic>

#include "base/threads.hpp"
#include "exec/cuda/cuda_rank.hpp"

namespace plait::cuda {

/// A driver that has shut down runs nothing any more; nor does a context that has failed.
bool CudaRank::has_ended(bool knows_calls) noexcept {
  if (options_.orders_calls) knows_calls = order_.knows_end();
  if (!knows_calls && !is_quiet()) return false;
  const BesideCaptures beside;
  if (api().context_push(context_) != kSuccess) return true;
  const auto are_busy = [](const std::vector<Stream>& streams) {
    return std::any_of(streams.begin(), streams.end(),
                       [](Stream one) { return api().stream_query(one) == kNotReady; });
  };
  const bool runs = marker_.is_ahead() || are_busy(upload_) || are_busy(engine_streams_) ||
                    are_busy(lane_streams_);
  Context popped = nullptr;
  api().context_pop(&popped);
  return !runs;
}

/// Since it was first asked for.
bool CudaRank::is_quiet() noexcept {
  if (quiet_ != nullptr) return quiet_->load();
  try {
    const auto quiet = std::make_shared<std::atomic<bool>>(false);
    quiet_thread([context = context_, quiet] {
      const BesideCaptures beside;
      Context popped = nullptr;
      if (api().context_push(context) == kSuccess) {
        api().context_synchronize();
        api().context_pop(&popped);
      }
      quiet->store(true);
    }).detach();
    quiet_ = quiet;
  } catch (const std::exception&) {  // no thread or no memory now: it is asked again
  }
  return false;
}

void CudaRank::unmap_peers() noexcept {
  if (lazy_arena_ != nullptr) lazy_arena_->stop();
  const BesideCaptures beside;
  if (api().context_push(context_) != kSuccess) return;
  api().context_synchronize();  // as long as anything runs, letting go keeps all launches waiting
  arena_->unmap_peers();
  if (large_arena_ != nullptr) large_arena_->unmap_peers();
  Context popped = nullptr;
  api().context_pop(&popped);
}

}  // namespace plait::cuda
