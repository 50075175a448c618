// The large arena of a rank: its steps are made by the first calls that need them, and go when no
// call has used them for a while. GpuCalls and the drop-in under NCCL reserve steps before calls.
#include <bit>

#include "base/log.hpp"
#include "base/text.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/rank/cuda_rank.hpp"
#include "gpu/select/all_resources.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr std::size_t kTilesAt = 1, kCopiesAt = 2, kLongAt = 3;
static_assert(kPacketStep == 1u && kTileStep == 1u << kTilesAt && kCopyStep == 1u << kCopiesAt &&
              kLongStep == 1u << kLongAt);

bool has(unsigned steps, std::size_t at) { return (steps >> at & 1u) != 0; }

std::size_t index_of(LargeStep step) {
  return static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(step)));
}

}  // namespace

/// Returns the parts of a step. If the arena is not made in steps: all parts but those of long
/// exchanges, which do without.
std::vector<const ArenaPart*> CudaRank::parts_of_step(std::size_t at) const {
  std::vector<const ArenaPart*> parts;
  for (const ArenaPart* const part : arena_contents().parts)
    if (is_in_steps() ? index_of(part->step) == at : part->step != kLongStep) parts.push_back(part);
  return parts;
}

std::uint64_t CudaRank::bytes_of_step(std::size_t at) const {
  return ArenaLayout(full_group_.tiers.large, parts_of_step(at), 0).total_bytes();
}

/// Copies go with rings and streams, which calls may need without slots.
void CudaRank::find_steps() {
  for (const ArenaPart* const part : arena_contents().parts)
    if (full_group_.tiers.large[*part] != 0) steps_ |= part->step;
}

/// Returns the members of `large_` that calls with these steps use, as bits.
unsigned CudaRank::used_steps(unsigned steps) const {
  return is_in_steps() ? steps & steps_ : steps != 0 ? 1u : 0u;
}

/// Calls by copy engines use slots of tiles and the slots behind as one range, so a step of each
/// has addresses in one reservation.
std::unique_ptr<DeviceArena> CudaRank::make_large_arena(std::size_t at) const {
  ArenaPlace place;
  if (is_in_steps() && at == kTilesAt) place.behind_bytes = bytes_of_step(kCopiesAt);
  if (is_in_steps() && at == kCopiesAt && bytes_of_step(kTilesAt) != 0) {
    const LargeArena& tiles = large_[kTilesAt];
    if (!tiles.is_shared.load())
      throw Error(ErrorCode::internal, "slots of copy engines begun before those of tiles");
    place.front = tiles.arena.get();
  }
  return std::make_unique<DeviceArena>(options_.rank, full_group_.tiers.large,
                                       ArenaContents{{}, parts_of_step(at)},
                                       options_.arenas_in_host, options_.islands,
                                       arena_->is_fixed() ? options_.files : nullptr, place);
}

void CudaRank::share_large_arena(std::size_t at, const Exchange& exchange, Stream stream) {
  if (bytes_of_step(at) == 0) return;  // rings and streams alone
  LargeArena& large = large_[at];
  if (large.arena == nullptr) large.arena = make_large_arena(at);
  large.count();
  count_memory();
  large.arena->share(context_, options_.device, exchange, stream);
  large.is_fixed.store(large.arena->is_fixed());
  large.is_shared.store(true);
  large.count();
  count_memory();
}

/// Runs in LazyArena's thread, concurrently with the program, on a separate stream. If a rank
/// fails, the finished parts stay for the next attempt or until the communicator closes. Every step
/// that may fail happens here, before any rank reports ready: from then on all ranks count on the
/// arena.
void CudaRank::allocate_large_arena(std::size_t at, const Exchange& exchange) {
  const RelaxedCaptureMode relaxed;
  const Current current(context_);
  Stream stream = nullptr;
  PLAIT_CUDA_CALL(stream_create, &stream, kStreamNonBlocking, 0);
  try {
    share_large_arena(at, exchange, stream);
    const bool is_for_copies = !is_in_steps() || at == kCopiesAt;
    if (is_for_copies && !has_copy_path_) {  // Else calls have both since before a trim.
      make_rings(exchange);
      make_copy_streams();
    }
  } catch (...) {
    api().stream_destroy(stream);
    throw;
  }
  api().stream_destroy(stream);
}

/// Publishes slots, rings and streams of copy engines.
void CudaRank::use_copy_path() {
  EnginePath path = engine_path_;
  path.events.assign(large_arena_events_.begin(), large_arena_events_.begin() + kEngineEvents);
  path.host_events.assign(large_arena_events_.begin() + kEngineEvents, large_arena_events_.end());
  const auto host = large_arena_streams_.begin() + kEngineStreams;
  path.streams.assign(large_arena_streams_.begin(), host);
  path.host_streams.assign(host, large_arena_streams_.end());
  // Without slots and a host path no call uses copy engines.
  path.inbox_bytes = inbox_bytes(full_group_);
  path.slot_bytes = slot_bytes(full_group_);
  path.borrowed_bytes = borrowed_bytes(full_group_);
  path.blocks = full_group_.blocks();
  path.moving_blocks = blocks_that_move(full_group_);
  for (int rank = 0; rank < options_.ranks; ++rank) {
    path.slots.push_back(arena_of(kCopyMemory).at(kCopyMemory, rank));
    path.borrowed.push_back(arena_of(kTileMemory).at(kTileMemory, rank));
    path.staging.push_back(arena_of(kChunkStaging).at(kChunkStaging, rank));
    const std::uint64_t apart = rounded_to_page(path.borrowed_bytes);
    if (path.borrowed_bytes != 0 && path.slots.back() != path.borrowed.back() + apart)
      throw Error(ErrorCode::internal, "slots of copy engines do not follow those of tiled calls");
  }
  if (full_group_.host_bytes != 0) {
    path.ring_bytes = full_group_.host_bytes;
    for (const DevicePointer ring : rings_) path.rings.push_back(reinterpret_cast<char*>(ring));
    for (std::byte* ring : host_rings_) path.host_rings.push_back(reinterpret_cast<char*>(ring));
  }
  engine_path_ = std::move(path);
  engine_streams_.swap(large_arena_streams_);
  has_copy_path_ = true;  // Last: an exception above must not leave a path without streams.
}

/// Steps are asked for one after the other, since slots of copy engines lie behind those of tiles.
/// Behind a refused step the rest are only counted. A program that captures its calls makes some
/// eager call before, of any size, so captures wait for further steps. A captured call pins its
/// steps once all are granted: no graph holds a refused call.
bool CudaRank::reserve_large_arena(CallMode call, unsigned steps) {
  reserved_as_ = call;
  if (call == CallMode::captured && granted_.load() != 0) call = CallMode::captured_waiting;
  const unsigned used = used_steps(steps);
  unsigned granted = 0;
  for (std::size_t at = 0; at < large_.size(); ++at)
    if (has(used, at) &&
        large_[at].lazy->next(granted == (used & ((1u << at) - 1)) ? call : CallMode::counted))
      granted |= 1u << at;
  if (granted != used) {
    for (std::size_t at = 0; at < large_.size(); ++at)
      if (has(granted, at)) large_[at].lazy->end_call();
    return false;
  }
  for (std::size_t at = 0; is_of_capture(call) && at < large_.size(); ++at)
    if (has(used, at)) large_[at].lazy->pin();
  const unsigned first = used & ~granted_.fetch_or(used);
  for (std::size_t at = 0; at < large_.size(); ++at)
    if (has(first, at) && large_[at].arena != nullptr)
      log(LogLevel::info, options_.rank,
          text("arena for large calls: {} MiB of GPU {}", large_[at].arena->bytes() >> 20,
               options_.device));
  const bool has_copies = has(used, is_in_steps() ? kCopiesAt : 0);
  if (has_copies && !has_copy_path_) use_copy_path();
  return true;
}

/// Begins to make the inbox, and goes without meanwhile: a wait here would hold up calls that the
/// thread makes for peers. A captured call waits, since its replays would go without for good.
/// A captured call of a group neither begins nor waits.
bool CudaRank::reserve_long_inbox(Stream stream) {
  LargeArena& large = large_[kLongAt];
  if (!has_lazy_arena() || !is_in_steps() || full_group_.tiers.large[kLongInbox] == 0) return false;
  const bool is_captured = is_capturing(stream);
  const CallMode inside = reserved_as_ == CallMode::captured_grouped ? CallMode::captured_grouped
                                                                     : CallMode::captured_waiting;
  if (!large.lazy->next(is_captured ? inside : CallMode::grouped)) return false;
  if (is_captured) large.lazy->pin();
  if (engine_path_.long_slots.empty())
    for (int rank = 0; rank < options_.ranks; ++rank)
      engine_path_.long_slots.push_back(large.arena->at(kLongInbox, rank));
  return true;
}

void CudaRank::end_long_inbox() { large_[kLongAt].lazy->end_call(); }

void CudaRank::cancel_reservation(unsigned steps, bool is_granted) {
  const unsigned used = used_steps(steps);
  for (std::size_t at = 0; at < large_.size(); ++at)
    if (has(used, at)) large_[at].lazy->cancel_last(is_granted);
}

void CudaRank::end_large_call(unsigned steps) {
  if (!has_lazy_arena()) return;
  const unsigned used = used_steps(steps);
  for (std::size_t at = 0; at < large_.size(); ++at)
    if (has(used, at)) large_[at].lazy->end_call();
}

std::string CudaRank::why_no_large_arena() const {
  for (std::size_t at = 0; at < kLongAt; ++at)
    if (const std::string failure = large_[at].lazy->failure(); !failure.empty())
      return text("{}; free memory there: a later call outside a capture tries again", failure);
  return "it is not there yet on all ranks, and comes with calls outside captures";
}

unsigned CudaRank::wanted_steps() const {
  unsigned wanted = 0;
  for (std::size_t at = 0; at < large_.size(); ++at)
    if (large_[at].lazy != nullptr && large_[at].lazy->is_wanted()) wanted |= 1u << at;
  return wanted;
}

void CudaRank::begin_large_arena(unsigned steps) {
  for (std::size_t at = 0; at < large_.size(); ++at)
    if (has(steps, at)) large_[at].lazy->begin();
}

bool CudaRank::wants_trim() const noexcept {
  for (const LargeArena& large : large_)
    if (large.is_fixed.load() && large.lazy->wants_trim()) return true;
  return false;
}

void CudaRank::trim(const std::function<bool()>& have_ended) {
  for (LargeArena& large : large_)
    if (large.is_fixed.load()) large.lazy->trim(have_ended);
}

/// Runs in LazyArena's thread, once no call of any rank uses the arena, or after a failed attempt.
void CudaRank::give_up_large_arena(LargeArena& large) noexcept {
  const RelaxedCaptureMode relaxed;
  if (large.arena == nullptr || !large.arena->is_fixed() || !large.arena->is_made()) return;
  if (api().context_push(context_) != kSuccess) return;
  const std::uint64_t bytes = large.arena->gpu_bytes();
  large.arena->give_up(DeviceArena::Contents::dropped, nullptr);
  large.count();
  count_memory();
  Context popped = nullptr;
  api().context_pop(&popped);
  log(LogLevel::info, options_.rank,
      text("{} MiB for large calls of GPU {} given up", bytes >> 20, options_.device));
}

/// Returns the arena that holds the part once some call has got the large arena.
const DeviceArena& CudaRank::arena_of(const ArenaPart& part) const {
  if (granted_.load() == 0 || full_group_.tiers.large[part] == 0) return *arena_;
  const std::size_t at = is_in_steps() ? index_of(part.step) : 0;
  if (!has(granted_.load(), at))
    throw Error(ErrorCode::internal, text("{} used before a call had got them", part.what));
  return *large_[at].arena;
}

char* CudaRank::at(const ArenaPart& part, int owner) const {
  return (tier_ == ArenaTier::full ? arena_of(part) : *arena_).at(part, owner);
}

}  // namespace plait::cuda
