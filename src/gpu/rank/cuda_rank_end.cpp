// End of a rank: detects pending work and unmaps the peers' memory.
#include <algorithm>
#include <atomic>

#include "base/threads.hpp"
#include "gpu/rank/cuda_rank.hpp"

namespace plait::cuda {

/// A driver that has shut down, or a context that has failed, runs nothing any more.
bool CudaRank::has_ended(bool knows_calls) noexcept {
  if (options_.orders_calls) knows_calls = order_.knows_end();
  if (!knows_calls && !is_quiet()) return false;
  const RelaxedCaptureMode relaxed;
  if (api().context_push(context_) != kSuccess) return true;
  const auto are_busy = [](const std::vector<Stream>& streams) {
    return std::any_of(streams.begin(), streams.end(),
                       [](Stream one) { return api().stream_query(one) == kNotReady; });
  };
  const bool has_streams = is_made_.load();  // else the thread that opens may make one now
  const bool runs = marker_.is_ahead() || (has_streams && are_busy(upload_)) ||
                    (has_copy_path_ && are_busy(engine_streams_)) ||
                    (has_lane_streams_ && are_busy(lane_streams_));
  Context popped = nullptr;
  api().context_pop(&popped);
  return !runs;
}

/// Returns true once the GPU has been idle since the first query. A detached thread waits for the
/// GPU.
bool CudaRank::is_quiet() noexcept {
  if (quiet_ != nullptr) return quiet_->load();
  try {
    const auto quiet = std::make_shared<std::atomic<bool>>(false);
    quiet_thread([context = context_, quiet] {
      const RelaxedCaptureMode relaxed;
      Context popped = nullptr;
      if (api().context_push(context) == kSuccess) {
        api().context_synchronize();
        api().context_pop(&popped);
      }
      quiet->store(true);
    }).detach();
    quiet_ = quiet;
  } catch (const std::exception&) {  // No thread or memory now: the next query tries again.
  }
  return false;
}

void CudaRank::unmap_peers() noexcept {
  if (opening_ != nullptr) opening_->stop();
  for (LargeArena& large : large_)
    if (large.lazy != nullptr) large.lazy->stop();
  const RelaxedCaptureMode relaxed;
  if (api().context_push(context_) != kSuccess) return;
  api().context_synchronize();  // While work runs, unmapping would block all launches.
  if (arena_ != nullptr) arena_->unmap_peers();
  for (LargeArena& large : large_)
    if (large.arena != nullptr) large.arena->unmap_peers();
  Context popped = nullptr;
  api().context_pop(&popped);
}

}  // namespace plait::cuda
