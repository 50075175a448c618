// A spare's thread makes its parts, waits for the spare's end, and frees the rest.
#include "gpu/arena/spare_arena.hpp"

#include <map>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "driver/cuda/primary.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

/// Bytes by the GPU's ordinal and the number of ranks.
struct NotedBytes {
  std::mutex guard;
  std::map<std::pair<int, int>, std::uint64_t> by_ranks;
};

/// A single object per process, never destroyed.
NotedBytes& noted() {
  static auto* const only = new NotedBytes;
  return *only;
}

Stream make_stream() {
  int least = 0, greatest = 0;
  PLAIT_CUDA_CALL(stream_priority_range, &least, &greatest);
  Stream made = nullptr;
  PLAIT_CUDA_CALL(stream_create, &made, kStreamNonBlocking, greatest);
  return made;
}

void require_free_memory() {
  std::size_t free_bytes = 0, all_bytes = 0;
  PLAIT_CUDA_CALL(memory_info, &free_bytes, &all_bytes);
  if (free_bytes < SpareArena::kLeastFreeBytes)
    throw Error(ErrorCode::out_of_memory,
                text("the GPU has {} MiB free, wanted {}", free_bytes >> 20,
                     SpareArena::kLeastFreeBytes >> 20));
}

}  // namespace

void SpareArena::note(int ordinal, int ranks, std::uint64_t bytes) noexcept {
  try {
    const std::lock_guard<std::mutex> hold(noted().guard);
    noted().by_ranks[{ordinal, ranks}] = bytes > kMostBytes ? 0 : bytes;
  } catch (const std::exception&) {  // Out of memory: no spare.
  }
}

std::unique_ptr<SpareArena> SpareArena::begin(int ordinal, int ranks) noexcept {
  try {
    std::uint64_t bytes = 0;
    {
      const std::lock_guard<std::mutex> hold(noted().guard);
      bytes = noted().by_ranks[{ordinal, ranks}];
    }
    return bytes == 0 ? nullptr : std::make_unique<SpareArena>(ordinal, bytes);
  } catch (const std::exception& error) {
    log(LogLevel::info, -1, text("no spare arena on GPU {}: {}", ordinal, error.what()));
    return nullptr;
  }
}

SpareArena::SpareArena(int ordinal, std::uint64_t bytes) : parts_(std::make_shared<SpareParts>()) {
  parts_->bytes = bytes;
  quiet_thread([parts = parts_, ordinal] { make(*parts, ordinal); }).detach();
}

SpareArena::~SpareArena() {
  {
    const std::lock_guard<std::mutex> hold(parts_->guard);
    parts_->is_dropped = true;
  }
  parts_->changed.notify_all();
}

/// The members are this thread's until is_made, and again from is_dropped on.
void SpareArena::make(SpareParts& parts, int ordinal) noexcept {
  const auto end_making = [&parts] {
    const std::lock_guard<std::mutex> hold(parts.guard);
    parts.is_made = true;
    parts.changed.notify_all();
  };
  try {
    const RelaxedCaptureMode relaxed;
    const Primary primary(ordinal);
    const Current current(primary.context());
    try {
      PLAIT_CUDA_CALL(device_get, &parts.device, ordinal);
      require_free_memory();
      parts.stream = make_stream();
      if (FixedMemory::why_none(parts.device).empty())
        parts.memory = std::make_unique<FixedMemory>(parts.device, parts.bytes);
    } catch (const std::exception& error) {
      log(LogLevel::info, -1, text("no spare arena on GPU {}: {}", ordinal, error.what()));
    }
    end_making();
    {
      std::unique_lock<std::mutex> hold(parts.guard);
      await(parts.changed, hold, [&parts] { return parts.is_dropped; });
    }
    parts.memory.reset();
    if (parts.stream != nullptr) api().stream_destroy(parts.stream);
  } catch (const std::exception& error) {
    log(LogLevel::info, -1, text("no spare arena on GPU {}: {}", ordinal, error.what()));
    end_making();
  }
}

std::unique_ptr<FixedMemory> SpareArena::take_memory(Device device, std::uint64_t bytes) {
  std::unique_lock<std::mutex> hold(parts_->guard);
  await(parts_->changed, hold, [this] { return parts_->is_made; });
  if (parts_->device != device || parts_->bytes != bytes) return nullptr;
  return std::move(parts_->memory);
}

Stream SpareArena::take_stream(Device device) {
  std::unique_lock<std::mutex> hold(parts_->guard);
  await(parts_->changed, hold, [this] { return parts_->is_made; });
  return parts_->device == device ? std::exchange(parts_->stream, nullptr) : nullptr;
}

}  // namespace plait::cuda
