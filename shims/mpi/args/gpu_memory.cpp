// Calls CUDA's driver only after the program has initialised CUDA: a process that forks before it
// uses CUDA must stay able to.
#include "shims/mpi/args/gpu_memory.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::mpi {

constinit std::atomic<bool> gpus_in_job{false};

namespace {

constexpr int kMostGpus = 64;
constexpr std::uint64_t kPage = 4096;

void* loaded_driver() { return ::dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY); }

struct GpuState {
  std::mutex mutex;
  cuda::Context context = nullptr;
  std::unique_ptr<GpuStream> copies;
};

GpuState& gpu_state(int gpu) {
  static auto* const all = new std::array<GpuState, kMostGpus>;
  return (*all)[static_cast<std::size_t>(gpu)];
}

/// Free blocks, kept for the life of the process: pinning memory takes longer than most calls.
struct BlockPool {
  std::mutex mutex;
  std::vector<HostBlock> blocks;
  std::size_t made = 0;  ///< including blocks in use
};

BlockPool& block_pool() {
  static auto* const all = new BlockPool;
  return *all;
}

/// Rounds up to a power of two, so that calls of many sizes share blocks.
HostBlock new_block(std::uint64_t bytes, bool is_pinned) {
  const std::uint64_t whole = std::bit_ceil(std::max(bytes, kPage));
  void* const memory = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw Error(ErrorCode::out_of_memory, text("no host memory to stage a call on device memory: "
                                               "wanted {} bytes; send in smaller parts",
                                               whole));
  // If this fails, copies are slower but correct.
  if (is_pinned) cuda::api().host_register(memory, whole, cuda::kHostRegisterPortable);
  return {static_cast<std::byte*>(memory), whole, is_pinned};
}

HostBlock take_block(std::uint64_t bytes, bool is_pinned) {
  {
    const std::lock_guard lock(block_pool().mutex);
    auto& blocks = block_pool().blocks;
    auto best = blocks.end();
    for (auto at = blocks.begin(); at != blocks.end(); ++at)
      if (at->is_pinned == is_pinned && at->bytes >= bytes &&
          (best == blocks.end() || at->bytes < best->bytes))
        best = at;
    if (best != blocks.end()) {
      const HostBlock found = *best;
      blocks.erase(best);
      return found;
    }
    // Reserves here, since reserve() may throw: return_block() runs in destructors.
    blocks.reserve(++block_pool().made);
  }
  return new_block(bytes, is_pinned);
}

void return_block(HostBlock block) {
  const std::lock_guard lock(block_pool().mutex);
  block_pool().blocks.push_back(block);
}

cuda::DevicePointer address(const void* pointer, std::intptr_t at) {
  return reinterpret_cast<cuda::DevicePointer>(pointer) + static_cast<cuda::DevicePointer>(at);
}

}  // namespace

bool sees_gpus() {
  return ::access("/dev/nvidiactl", F_OK) == 0 || ::access("/dev/dxg", F_OK) == 0 ||
         loaded_driver() != nullptr;
}

bool detect_gpu_use() {
  static std::atomic<bool> in_use{false};
  static std::atomic<std::uint64_t> seen{0};  // libraries at the last scan that found no CUDA
  static std::atomic<int (*)(int*)> count_devices{nullptr};
  if (in_use.load(std::memory_order_acquire)) return true;
  if (count_devices.load() == nullptr) {
    if (seen.load() == libraries_loaded()) return false;
    const link_map* const last = move_mark_last();
    const std::uint64_t now = libraries_loaded();
    void* const driver = loaded_driver();
    if (driver != nullptr)
      count_devices.store(reinterpret_cast<int (*)(int*)>(::dlsym(driver, "cuDeviceGetCount")));
    if (count_devices.load() == nullptr) {
      seen.store(now);
      set_mark(last);
      return false;
    }
    remove_mark();
  }
  int devices = 0;
  if (count_devices.load()(&devices) != cuda::kSuccess) return false;  // not initialised
  if (!cuda::why_no_cuda().empty()) return false;
  in_use.store(true, std::memory_order_release);
  return true;
}

int gpu_holding(const void* pointer) {
  unsigned memory = 0;
  int ordinal = -1;
  int attributes[] = {cuda::kPointerMemoryType, cuda::kPointerDeviceOrdinal};
  void* values[] = {&memory, &ordinal};
  const auto device_pointer = reinterpret_cast<cuda::DevicePointer>(pointer);
  if (cuda::api().pointer_attributes(2, attributes, values, device_pointer) != cuda::kSuccess)
    return -1;
  return memory == cuda::kMemoryOnDevice && ordinal < kMostGpus ? ordinal : -1;
}

MemoryOwner owner_of(const void* pointer) {
  if (pointer == nullptr || !uses_gpus()) return {};
  unsigned memory = 0;
  int ordinal = -1;
  cuda::Context context = nullptr;
  int attributes[] = {cuda::kPointerMemoryType, cuda::kPointerDeviceOrdinal, cuda::kPointerContext};
  void* values[] = {&memory, &ordinal, static_cast<void*>(&context)};
  const auto device_pointer = reinterpret_cast<cuda::DevicePointer>(pointer);
  if (cuda::api().pointer_attributes(3, attributes, values, device_pointer) != cuda::kSuccess)
    return {};
  if (memory != cuda::kMemoryOnDevice || ordinal < 0 || ordinal >= kMostGpus) return {};
  return {ordinal, context == nullptr || context == context_of(ordinal)};
}

cuda::Context context_of(int gpu) {
  GpuState& one = gpu_state(gpu);
  const std::lock_guard lock(one.mutex);
  if (one.context == nullptr) {
    cuda::Device device = 0;
    PLAIT_CUDA_CALL(device_get, &device, gpu);
    PLAIT_CUDA_CALL(primary_retain, &one.context, device);
  }
  return one.context;
}

GpuStream::GpuStream(int gpu) : gpu_(gpu) {
  const cuda::Current current(context_of(gpu));
  PLAIT_CUDA_CALL(stream_create, &stream_, cuda::kStreamNonBlocking, 0);
}

GpuStream::~GpuStream() {
  const cuda::RelaxedCaptureMode relaxed;  // plait's thread may end the last user
  const cuda::Current current(context_of(gpu_));
  cuda::api().stream_destroy(stream_);
}

cuda::Stream copy_stream(int gpu) {
  GpuState& one = gpu_state(gpu);
  static std::mutex making;
  const std::lock_guard lock(making);
  if (one.copies == nullptr) one.copies = std::make_unique<GpuStream>(gpu);
  return one.copies->stream();
}

CopyEvent::CopyEvent(int gpu) : gpu_(gpu) {
  const cuda::Stream stream = copy_stream(gpu);
  const cuda::Current current(context_of(gpu));
  PLAIT_CUDA_CALL(event_create, &event_, cuda::kEventDisableTiming);
  const cuda::Result result = cuda::api().event_record(event_, stream);
  if (result != cuda::kSuccess) cuda::api().event_destroy(event_);
  cuda::require(result, "event_record");
}

CopyEvent::~CopyEvent() {
  const cuda::Current current(context_of(gpu_));
  cuda::api().event_destroy(event_);
}

bool CopyEvent::has_ended() const {
  const cuda::Current current(context_of(gpu_));
  const cuda::Result result = cuda::api().event_query(event_);
  if (result == cuda::kNotReady) return false;
  cuda::require(result, "event_query");
  return true;
}

StagingBuffer::StagingBuffer(int gpu, const void* buffer, ByteRange whole, bool is_pinned)
    : gpu_(gpu), buffer_(buffer), whole_(whole) {
  const cuda::Current current(context_of(gpu));
  block_ = take_block(std::max<std::uint64_t>(whole.bytes, 1), is_pinned);
}

StagingBuffer::StagingBuffer(StagingBuffer&& other) noexcept
    : gpu_(other.gpu_),
      buffer_(other.buffer_),
      whole_(other.whole_),
      block_(std::exchange(other.block_, {})) {}

StagingBuffer::~StagingBuffer() {
  if (block_.memory != nullptr) return_block(block_);
}

void StagingBuffer::fetch() {
  if (whole_.bytes == 0) return;
  const cuda::Current current(context_of(gpu_));
  PLAIT_CUDA_CALL(memory_copy, reinterpret_cast<cuda::DevicePointer>(block_.memory),
                  address(buffer_, whole_.at), whole_.bytes);
}

void StagingBuffer::fetch(const std::vector<ByteRange>& pieces) {
  const cuda::Stream stream = copy_stream(gpu_);
  const cuda::Current current(context_of(gpu_));
  for (const ByteRange& piece : pieces)
    PLAIT_CUDA_CALL(memory_copy_async, reinterpret_cast<cuda::DevicePointer>(host() + piece.at),
                    address(buffer_, piece.at), piece.bytes, stream);
  PLAIT_CUDA_CALL(stream_synchronize, stream);
}

void StagingBuffer::begin_fetch() {
  if (whole_.bytes == 0) return;
  const cuda::Stream stream = copy_stream(gpu_);
  const cuda::Current current(context_of(gpu_));
  PLAIT_CUDA_CALL(memory_copy_async, reinterpret_cast<cuda::DevicePointer>(block_.memory),
                  address(buffer_, whole_.at), whole_.bytes, stream);
}

void StagingBuffer::put(const std::vector<ByteRange>& pieces) {
  const cuda::Stream stream = copy_stream(gpu_);
  const cuda::Current current(context_of(gpu_));
  for (const ByteRange& piece : pieces)
    PLAIT_CUDA_CALL(memory_copy_async, address(buffer_, piece.at),
                    reinterpret_cast<cuda::DevicePointer>(host() + piece.at), piece.bytes, stream);
  PLAIT_CUDA_CALL(stream_synchronize, stream);
  if (!block_.is_pinned) ::madvise(block_.memory, block_.bytes, MADV_DONTNEED);
}

}  // namespace plait::mpi
