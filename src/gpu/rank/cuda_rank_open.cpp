// Opens a rank: ranks agree on their group, then allocate and share the arena, and prove the paths.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/env.hpp"
#include "base/lap.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "gpu/arena/pinned_memory.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/device/neighbours.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/lanes/plan_memory.hpp"
#include "gpu/ll/ll_memory.hpp"
#include "gpu/path_check/path_check.hpp"
#include "gpu/path_check/proved_paths.hpp"
#include "gpu/rank/cuda_rank.hpp"
#include "gpu/select/all_resources.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

/// Threads for CPU reductions: half of this rank's share of the cores.
int host_threads(int ranks) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / (2 * ranks), 1, 8);
}

/// CUDA_DEVICE_MAX_CONNECTIONS, or the driver's default if the value is invalid. With a single
/// hardware queue, a wait for an event blocks all other streams.
unsigned connections_of_process() {
  constexpr unsigned kDefault = 8;
  constexpr int kMost = 32;
  const int said = std::atoi(foreign_env("CUDA_DEVICE_MAX_CONNECTIONS").c_str());
  return said < 1 || said > kMost ? kDefault : static_cast<unsigned>(said);
}

}  // namespace

/// Runs once all ranks know the kernels that all GPUs can run, so no memory is reserved for kernels
/// that some GPU lacks.
void CudaRank::agree_on_group() {
  full_group_.ranks = options_.ranks;
  full_group_.most_blocks = options_.most_blocks;
  full_group_.overlap_compute = options_.overlap_compute;
  full_group_.sum_order = options_.sum_order;
  full_group_.multiprocessors = families_->least_multiprocessors();
  full_group_.most_whole_sm_blocks =
      whole_sm_blocks(full_group_.multiprocessors, options_.overlap_compute);
  full_group_.why_not = families_->lacks();
  if (!options_.norms) full_group_.why_not.add(kNormKernels, "its kernels are not loaded");
  if (!options_.factors) full_group_.why_not.add(kScaleKernels, "its kernel is not loaded");
  full_group_.through_host = options_.arenas_in_host != nullptr;
  full_group_.has_islands = full_group_.through_host && !options_.islands.empty();
  if (options_.messages && full_group_.runs(kMessageKernels)) {
    const unsigned tier = families_->blocks_at_once(kMessageKernels);
    full_group_.most_message_blocks =
        options_.most_blocks == 0 ? tier : std::min(options_.most_blocks, tier);
  }
  full_group_.sizes = options_.sizes;
  // A second tier needs kernels with LL packets, since calls that continue in the small arena use
  // LL packets.
  const bool has_trees = !is_tree(options_.sum_order) || full_group_.runs(kDirectLlTreeKernels);
  const bool two_tiers = options_.lazy_arena != nullptr && options_.ranks > 1 && has_trees &&
                         full_group_.runs(kShotKernels) && full_group_.runs(kDirectLlKernels);
  options_.memory.two_tiers = two_tiers;
  lay_out_arena(full_group_, options_.memory);
  find_steps();
  LaneLaunchConfig& config = options_.config;
  if (full_group_.runs(kLaneKernels)) {
    const unsigned at_once = families_->blocks_at_once(kLaneKernels);
    const unsigned most = options_.most_blocks == 0 ? std::max(1u, at_once / 2) : at_once;
    config.most_blocks = std::min(config.most_blocks, most);
  }
}

/// Returns whether all ranks have proved the paths, and may open later.
bool CudaRank::agree_on_processes(const Exchange& exchange) {
  struct ProcessRecord {
    unsigned connections;
    unsigned may_open_later;
  };
  const bool knows_paths = !options_.proves_paths || are_paths_proved(options_.gpus);
  const ProcessRecord mine{connections_of_process(),
                           options_.first_arena != nullptr && knows_paths ? 1u : 0u};
  bool may_open_later = true;
  for (const std::string& shown :
       exchange(std::string(reinterpret_cast<const char*>(&mine), sizeof mine))) {
    ProcessRecord one{};
    if (shown.size() != sizeof one)
      throw Error(ErrorCode::mismatch, text("record of a rank's process has {} bytes, wanted {}",
                                            shown.size(), sizeof one));
    std::memcpy(&one, shown.data(), sizeof one);
    full_group_.hardware_queues = std::min(full_group_.hardware_queues, one.connections);
    may_open_later = may_open_later && one.may_open_later != 0;
  }
  return may_open_later;
}

void CudaRank::open(const Exchange& exchange) {
  const Current current(context_);
  Lap lap;
  kernels_ = std::make_unique<Kernels>();
  (void)kernels_->find("plait_path_check");  // Load the kernel before any rank launches a check.
  full_group_.hardware_queues = ~0u;
  const bool may_open_later = agree_on_processes(exchange);
  std::vector<const KernelFamily*> families = kernel_families();
  if (!options_.norms)
    for (const KernelFamily* const family : norm_resources().families) std::erase(families, family);
  if (!options_.factors) std::erase(families, &kScaleKernels);
  if (!is_tree(options_.sum_order))
    std::erase_if(families, [](const KernelFamily* family) { return family->sums_in_trees; });
  const auto stream = [this] {
    make_streams(upload_, 1);
    return upload();
  };
  families_ = std::make_unique<KernelFamilies>(*kernels_, families, device_, options_.rank,
                                               options_.ranks, stream, may_open_later, exchange);
  const double kernels_ms = lap.ms();
  agree_on_group();
  agree_on_host_path();
  marker_.open();
  map_stop_page();
  for (std::size_t at = 0; options_.memory.two_tiers && at < large_.size(); ++at)
    large_[at].lazy = std::make_unique<LazyArena>(
        options_.lazy_arena->steps[at], options_.rank, options_.ranks, options_.large_arena_wait_s,
        [this, at](const Exchange& in_memory) { allocate_large_arena(at, in_memory); });
  // Only two ranks make a message, so the first one could not have all ranks open: it would wait on
  // the host for ranks whose allocation may wait for kernels that wait for this rank.
  if (may_open_later && options_.memory.two_tiers && !takes_messages()) return open_later();
  const double agreed_ms = lap.ms();
  share_arena(exchange);
  const double arena_ms = lap.ms();
  full_group_.in_processes = arena_->in_processes();
  if (options_.ranks > 1 && options_.proves_paths && !may_open_later) prove_paths(exchange);
  const double paths_ms = lap.ms();
  open_memory();
  log(LogLevel::info, options_.rank,
      text("opened GPU {}: kernels {} ms, agreement {}, arena of {} MiB {}, paths {}, the rest {}",
           options_.device, kernels_ms, agreed_ms, arena_->bytes() >> 20, arena_ms, paths_ms,
           lap.ms()));
  small_group_ = small_arena_group_of(full_group_);
  if (has_lazy_arena()) return;
  make_rings(exchange);
  make_copy_streams();
  use_copy_path();
}

/// The first call opens the rank, in a thread, concurrently with the program. Later calls without
/// an arena would be few, so a failed attempt leaves all calls without.
void CudaRank::open_later() {
  full_group_.in_processes = true;
  small_group_ = small_arena_group_of(full_group_);
  opening_ = std::make_unique<LazyArena>(
      *options_.first_arena, options_.rank, options_.ranks, options_.first_arena_wait_s,
      [this](const Exchange& exchange) {
        const RelaxedCaptureMode relaxed;
        const Current current(context_);
        try {
          share_arena(exchange);
          open_memory();
          exchange("opened");  // A rank that has failed fails all.
        } catch (...) {
          drop_first_arena();
          throw;
        }
      },
      LazyArena::kNoRetryS);
}

bool CudaRank::reserve_arena() {
  if (is_open()) return true;
  is_open_ = opening_->next(CallMode::alone);
  if (is_open_) {
    log(LogLevel::info, options_.rank,
        text("opened at the first call: {} MiB of GPU {}", arena_->gpu_bytes() >> 20,
             options_.device));
  } else if (const std::string why = opening_->failure(); !why.empty() && !has_told_failure_) {
    has_told_failure_ = true;
    log(options_.rank == 0 ? LogLevel::warn : LogLevel::info, options_.rank,
        text("no arena on GPU {}: {}", options_.device, why));
  }
  return is_open_;
}

void CudaRank::cancel_arena() {
  opening_->cancel_last();
  is_open_ = opening_->is_on();
}

void CudaRank::share_arena(const Exchange& exchange) {
  make_streams(upload_, 1);
  if (arena_ == nullptr)
    arena_ =
        std::make_unique<DeviceArena>(options_.rank, full_group_.tiers.small, arena_contents(),
                                      options_.arenas_in_host, options_.islands, options_.files);
  count_memory();
  arena_->share(context_, options_.device, exchange, upload());
  count_memory();
}

/// Makes what calls need beside the arena.
void CudaRank::open_memory() {
  for (Event* const event : {&fork_, &uploaded_})
    if (*event == nullptr) PLAIT_CUDA_CALL(event_create, event, kEventDisableTiming);
  open_engine_path();
  Lap lap;
  open_message_slots();
  const double slots_ms = lap.ms();
  if (options_.rings)
    agreed_share_.open(options_.share_page, options_.rank, options_.ranks, options_.wait_s);
  neighbours().add(device_, arena_->state(), upload());
  log(LogLevel::info, options_.rank,
      text("slots of messages {} ms, neighbours {}", slots_ms, lap.ms()));
  if (options_.trim_s > 0 && has_lazy_arena()) {
    if (arena_->is_fixed())
      for (LargeArena& large : large_)
        large.lazy->allow_trim(options_.trim_s, [this, &large] { give_up_large_arena(large); });
    else
      log(LogLevel::info, options_.rank,
          "PLAIT_TRIM_S has no effect: arenas are not at fixed addresses");
  }
  is_made_.store(true);
}

void CudaRank::open_engine_path() {
  EnginePath& path = engine_path_;
  path.flags.clear();
  for (int rank = 0; rank < options_.ranks; ++rank) path.flags.push_back(flags(kEngineFlags, rank));
  if (full_group_.has_host_reducer) open_host_path();
  queue_ = std::make_unique<DriverQueue>(*kernels_, host_reducer_.get());
}

/// Returns the first fault on paths among the members, in arenas or in an island's GPU memory. The
/// signal lies in the StopPage's page, behind the StopPage.
std::string CudaRank::broken_path_of(const std::vector<int>& members, bool of_island,
                                     const Exchange& exchange) {
  constexpr std::uint64_t kSignalAt = 1024;
  static_assert(sizeof(StopPage) <= kSignalAt && kSignalAt + sizeof(PathSignal) <= kStopPageBytes);
  const std::uint64_t nonce = arena_->nonce() + (of_island ? 2 : 0);  // a check may count on by 1
  PathPlace place{};
  place.kernels = kernels_.get();
  place.stream = upload();
  place.signal = reinterpret_cast<PathSignal*>(reinterpret_cast<char*>(stop_page_) + kSignalAt);
  place.device_signal = device_stop_page_ + kSignalAt;
  place.ranks = static_cast<int>(members.size());
  for (const int member : members) {
    if (member == options_.rank) place.rank = static_cast<int>(place.inboxes.size());
    place.inboxes.push_back(of_island
                                ? reinterpret_cast<PathInbox*>(arena_->at(kIslandPaths, member))
                                : arena_->flags(kPathFlags, member));
  }
  const std::unique_ptr<PathSide> side = path_side(place, nonce);
  if (of_island) side->reset(nonce);  // the signal has been used
  return broken_path(*side, exchange, place.rank, place.ranks, nonce, {}, members);
}

/// Runs before any call uses the paths.
void CudaRank::prove_paths(const Exchange& exchange) {
  const auto began = std::chrono::steady_clock::now();
  std::vector<int> all, island;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const auto at = [&](int one) { return options_.islands[static_cast<std::size_t>(one)]; };
    all.push_back(rank);
    if (full_group_.has_islands && at(rank) == at(options_.rank)) island.push_back(rank);
  }
  std::string broken = broken_path_of(all, false, exchange);
  if (!broken.empty() && full_group_.through_host)
    throw Error(ErrorCode::driver_error, text("in arenas in host memory, {}", broken));
  if (full_group_.has_islands) broken = broken_path_of(island, true, exchange);
  if (!broken.empty()) {
    PLAIT_CUDA_CALL(stream_synchronize, upload());
    arena_->leave_peers(exchange);
    throw NoDirectAccess(ErrorCode::driver_error, broken, true);
  }
  if (!full_group_.through_host) note_proved_paths(options_.gpus);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  log(LogLevel::info, options_.rank,
      text("paths between {} GPUs proved in {} ms", options_.ranks, took.count()));
}

/// Adds the capabilities of rings to the group.
void CudaRank::agree_on_host_path() {
  if (!options_.rings || !has_copy_engines(full_group_)) return;
  full_group_.host_bytes = options_.ring_bytes + options_.exchange_ring_bytes;
  full_group_.has_host_reducer = options_.host_flags != nullptr;
}

/// Maps the flags through which GPUs and CPU cores synchronize.
void CudaRank::open_host_path() {
  auto* const flags = reinterpret_cast<std::byte*>(options_.host_flags);
  if (!words_registered_) register_pinned(flags, kHostFlagsBytes);
  words_registered_ = true;
  engine_path_.host_flags = reinterpret_cast<HostFlags*>(pinned_on_device(flags));
  host_reducer_ =
      std::make_unique<HostReducer>(*options_.host_flags, options_.rank,
                                    host_threads(options_.ranks), *stop_page_, options_.wait_s);
}

/// Both ranks open the slots or neither does: every value checked here was agreed on.
void CudaRank::open_message_slots() {
  if (options_.message_slots == nullptr || !takes_messages()) return;
  if (!has_host_channels(options_.ranks, full_group_.most_message_blocks)) return;
  if (!slots_registered_) register_pinned(options_.message_slots, kMessageHostBytes);
  slots_registered_ = true;
  message_slots_ = pinned_on_device(options_.message_slots);
}

void CudaRank::map_stop_page() {
  stop_memory_ = std::make_unique<PinnedPages>(kStopPageBytes);
  stop_page_ = reinterpret_cast<StopPage*>(stop_memory_->on_host());
  device_stop_page_ = stop_memory_->on_device();
}

}  // namespace plait::cuda
