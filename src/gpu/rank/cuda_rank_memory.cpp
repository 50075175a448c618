// Memory of a rank: what it holds by part, its rings, and how its arenas go and come back.
#include "base/log.hpp"
#include "base/text.hpp"
#include "gpu/arena/pinned_memory.hpp"
#include "gpu/device/neighbours.hpp"
#include "gpu/rank/cuda_rank.hpp"
#include "gpu/select/all_resources.hpp"
#include "plait/error.hpp"

namespace plait::cuda {

void CudaRank::LargeArena::count() noexcept {
  if (arena == nullptr) return;
  const std::uint64_t gpu = arena->gpu_bytes();
  const bool is_made = arena->is_made(), has_fixed = arena->is_fixed();
  gpu_bytes.store(is_made ? gpu : 0);
  host_bytes.store(arena->host_bytes());
  staying.store(is_made && !has_fixed ? gpu : 0);
  suspendable.store((is_made || is_suspended) && has_fixed ? gpu : 0);
}

/// Threads of several steps of the large arena may count at once.
void CudaRank::count_memory() noexcept {
  const std::lock_guard<std::mutex> hold(counting_);
  std::uint64_t small = 0, large = 0, host = 0, staying = 0, suspendable = 0;
  if (arena_ != nullptr) {
    const std::uint64_t gpu = arena_->gpu_bytes();
    small = arena_->is_made() ? gpu : 0;
    host = arena_->host_bytes();
    if (arena_->is_made() || is_suspended_) (arena_->is_fixed() ? suspendable : staying) = gpu;
  }
  for (const LargeArena& step : large_) {
    large += step.gpu_bytes.load();
    host += step.host_bytes.load();
    staying += step.staying.load();
    suspendable += step.suspendable.load();
  }
  held_.set(MemoryPart::small_arena, small);
  held_.set(MemoryPart::large_arena, large);
  held_.set(MemoryPart::host_arenas, host);
  staying_.store(staying);
  suspendable_.store(suspendable);
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
  for (LargeArena& large : large_)
    if (large.lazy != nullptr) large.lazy->pause();
  neighbours().remove(device_, arena_->state(), upload());
  api().stream_synchronize(upload());
  arena_->give_up(DeviceArena::Contents::kept, upload());
  // Packets of a new arena are right at any number of calls: flags are in the small one.
  for (LargeArena& large : large_) {
    large.is_suspended = large.arena != nullptr && large.arena->is_made();
    if (large.arena != nullptr) large.arena->give_up(DeviceArena::Contents::dropped, upload());
    large.count();
  }
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
  for (const LargeArena& large : large_)
    if (large.arena != nullptr && large.lazy->is_ready() && large.arena->is_fixed())
      large.arena->share(context_, options_.device, exchange, upload());
  neighbours().add(device_, arena_->state(), upload());
  PLAIT_CUDA_CALL(stream_synchronize, upload());
  exchange("resumed");
  is_suspended_ = false;
  for (LargeArena& large : large_) {
    large.is_suspended = false;
    large.count();
  }
  count_memory();
  for (LargeArena& large : large_)
    if (large.lazy != nullptr) large.lazy->unpause();
}

void CudaRank::throw_suspended() const {
  throw Error(ErrorCode::invalid_argument,
              text("{} is suspended: resume the communicator before its next call",
                   rank_name(static_cast<std::size_t>(options_.rank))));
}

}  // namespace plait::cuda
