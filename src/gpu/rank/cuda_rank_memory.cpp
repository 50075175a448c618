// Memory of a rank: what it holds by part, its rings, and how its arenas go and come back.
#include "base/log.hpp"
#include "base/text.hpp"
#include "gpu/arena/pinned_memory.hpp"
#include "gpu/device/neighbours.hpp"
#include "gpu/rank/cuda_rank.hpp"
#include "gpu/select/all_resources.hpp"
#include "plait/error.hpp"

namespace plait::cuda {

void CudaRank::count_memory() noexcept {
  const auto gpu = [](const std::unique_ptr<DeviceArena>& arena) {
    return arena != nullptr && arena->is_made() ? arena->gpu_bytes() : 0;
  };
  const auto host = [](const std::unique_ptr<DeviceArena>& arena) {
    return arena != nullptr ? arena->host_bytes() : 0;
  };
  held_.set(MemoryPart::small_arena, gpu(arena_));
  held_.set(MemoryPart::large_arena, gpu(large_arena_));
  held_.set(MemoryPart::host_arenas, host(arena_) + host(large_arena_));
  std::uint64_t bytes[2] = {};
  const auto add = [&](const std::unique_ptr<DeviceArena>& arena, bool is_suspended) {
    if (arena != nullptr && (arena->is_made() || is_suspended))
      bytes[arena->is_fixed() ? 1 : 0] += arena->gpu_bytes();
  };
  add(arena_, is_suspended_);
  add(large_arena_, is_suspended_ && suspended_large_);
  staying_.store(bytes[0]);
  suspendable_.store(bytes[1]);
}

void CudaRank::make_rings(const Exchange& exchange) {
  if (!options_.rings) return;
  forget_rings();  // Left by a failed attempt.
  for (std::byte* ring : options_.rings(exchange)) {
    register_pinned(ring, options_.ring_bytes + options_.exchange_ring_bytes);
    host_rings_.push_back(ring);
    rings_.push_back(pinned_on_device(ring));
  }
  held_.set(MemoryPart::host_rings, options_.ring_bytes + options_.exchange_ring_bytes);
}

void CudaRank::forget_rings() noexcept {
  for (std::byte* ring : host_rings_) unregister_pinned(ring);
  host_rings_.clear();
  rings_.clear();
  held_.set(MemoryPart::host_rings, 0);
}

/// Runs in LazyArena's thread, once no call of any rank uses the arena, or after a failed attempt.
void CudaRank::give_up_large_arena() noexcept {
  const RelaxedCaptureMode relaxed;
  if (large_arena_ == nullptr || !large_arena_->is_fixed() || !large_arena_->is_made()) return;
  if (api().context_push(context_) != kSuccess) return;
  large_arena_->give_up(DeviceArena::Contents::dropped, nullptr);
  count_memory();
  Context popped = nullptr;
  api().context_pop(&popped);
  log(LogLevel::info, options_.rank,
      text("arena for large calls of GPU {} given up", options_.device));
}

/// Frees what a failed opening has made, since no attempt follows. Memory by CUDA IPC stays until
/// the communicator is closed: peers may map it, and a free would wait for kernels.
void CudaRank::drop_first_arena() noexcept {
  if (arena_ == nullptr || !arena_->is_fixed()) return;
  neighbours().remove(device_, arena_->state(), upload());
  api().stream_synchronize(upload());
  arena_.reset();
  count_memory();
}

/// Ends an opening that some rank has begun. Returns whether there is an arena, the same on all
/// ranks.
bool CudaRank::end_opening() noexcept {
  if (opening_ == nullptr) return true;
  try {
    return opening_->await();
  } catch (const std::exception&) {  // The communicator ends.
    return false;
  }
}

void CudaRank::suspend() noexcept {
  if (is_suspended_ || !end_opening() || !arena_->is_fixed()) return;
  const RelaxedCaptureMode relaxed;
  if (api().context_push(context_) != kSuccess) return;
  if (lazy_arena_ != nullptr) lazy_arena_->pause();
  neighbours().remove(device_, arena_->state(), upload());
  api().stream_synchronize(upload());
  suspended_large_ = large_arena_ != nullptr && large_arena_->is_made();
  arena_->give_up(DeviceArena::Contents::kept, upload());
  // Packets of a new arena are right at any number of calls: flags are in the small one.
  if (large_arena_ != nullptr) large_arena_->give_up(DeviceArena::Contents::dropped, upload());
  is_suspended_ = true;
  count_memory();
  Context popped = nullptr;
  api().context_pop(&popped);
}

void CudaRank::resume(const Exchange& exchange) {
  if (!is_suspended_) return;
  const RelaxedCaptureMode relaxed;
  const Current current(context_);
  exchange("resumes");  // From here on no rank begins a large arena until all have resumed.
  arena_->share(context_, options_.device, exchange, upload());
  const bool has_large = lazy_arena_ == nullptr || lazy_arena_->is_ready();
  if (large_arena_ != nullptr && has_large && large_arena_->is_fixed())
    large_arena_->share(context_, options_.device, exchange, upload());
  neighbours().add(device_, arena_->state(), upload());
  PLAIT_CUDA_CALL(stream_synchronize, upload());
  exchange("resumed");
  is_suspended_ = false;
  count_memory();
  if (lazy_arena_ != nullptr) lazy_arena_->unpause();
}

void CudaRank::throw_suspended() const {
  throw Error(ErrorCode::invalid_argument,
              text("{} is suspended: resume the communicator before its next call",
                   rank_name(static_cast<std::size_t>(options_.rank))));
}

}  // namespace plait::cuda
