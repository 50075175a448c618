// Caches opened allocations for later messages. If an owner frees an allocation and makes another
// at the same address, the new allocation has another number: the old one is closed first. Freed
// memory stays allocated while open here, hence the cache is bounded.
#include "shims/mpi/p2p/pull.hpp"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "shims/mpi/args/gpu_memory.hpp"
#include "shims/mpi/args/settings.hpp"

namespace plait::mpi {

/// Another process's allocation, mapped into this process.
struct OpenedAllocation {
  cuda::DevicePointer base = 0;
  std::uint64_t allocation = 0, bytes = 0;
  int users = 0;
  std::uint64_t last_use = 0;
};

namespace {

constexpr std::size_t kMostOpened = 64;
constexpr std::uint64_t kMostOpenedBytes = std::uint64_t{4} << 30;  ///< or 1 larger allocation

struct OpenedTable {
  std::mutex mutex;
  std::map<std::tuple<int, int, std::string>, OpenedAllocation>
      by_handle;  ///< by process, GPU here, handle
  std::uint64_t uses = 0, bytes = 0;
};
using At = decltype(OpenedTable::by_handle)::iterator;

OpenedTable& opened_table() {
  static auto* const one = new OpenedTable;
  return *one;
}

void close(At at) {
  const cuda::Current current(context_of(std::get<1>(at->first)));
  cuda::api().ipc_close(at->second.base);
  opened_table().bytes -= at->second.bytes;
  opened_table().by_handle.erase(at);
}

/// Closes the allocations that are unused for longest until `bytes` fit.
void evict(std::uint64_t bytes) {
  auto& opened = opened_table().by_handle;
  while (opened.size() >= kMostOpened || opened_table().bytes + bytes > kMostOpenedBytes) {
    At oldest = opened.end();
    for (At at = opened.begin(); at != opened.end(); ++at)
      if (at->second.users == 0 &&
          (oldest == opened.end() || at->second.last_use < oldest->second.last_use))
        oldest = at;
    if (oldest == opened.end()) return;
    close(oldest);
  }
}

/// The GPU's context must be current.
OpenedAllocation* open(int process, const ExportedMemory& from, int gpu) {
  const std::lock_guard lock(opened_table().mutex);
  const auto key =
      std::tuple(process, gpu, std::string(from.handle.bytes, sizeof from.handle.bytes));
  auto at = opened_table().by_handle.find(key);
  if (at != opened_table().by_handle.end() && at->second.allocation != from.allocation) {
    if (at->second.users != 0) return nullptr;
    close(at);
    at = opened_table().by_handle.end();
  }
  if (at == opened_table().by_handle.end()) {
    evict(from.bytes);
    OpenedAllocation made;
    made.allocation = from.allocation;
    made.bytes = from.bytes;
    const auto opened = cuda::api().ipc_open(&made.base, from.handle, cuda::kIpcLazyPeerAccess);
    if (opened != cuda::kSuccess) return nullptr;
    at = opened_table().by_handle.emplace(key, made).first;
    opened_table().bytes += made.bytes;
  }
  ++at->second.users;
  at->second.last_use = ++opened_table().uses;
  return &at->second;
}

void release_opened(OpenedAllocation* opened) {
  const std::lock_guard lock(opened_table().mutex);
  --opened->users;
}

}  // namespace

bool export_memory(int gpu, const void* memory, ExportedMemory& exported) {
  const cuda::Current current(context_of(gpu));
  std::uint64_t base = 0;
  int attributes[] = {cuda::kPointerBufferId, cuda::kPointerRangeStart, cuda::kPointerRangeBytes};
  void* values[] = {&exported.allocation, &base, &exported.bytes};
  const auto address = reinterpret_cast<cuda::DevicePointer>(memory);
  if (cuda::api().pointer_attributes(3, attributes, values, address) != cuda::kSuccess)
    return false;
  if (base == 0 || base > address) return false;
  exported.at = address - base;
  exported.address = address;
  return cuda::api().ipc_get(&exported.handle, base) == cuda::kSuccess;
}

std::unique_ptr<Pull> Pull::begin(int process, const ExportedMemory& from, int gpu, void* to,
                                  std::uint64_t bytes) {
  const cuda::Stream stream = copy_stream(gpu);
  const cuda::Current current(context_of(gpu));
  std::unique_ptr<Pull> made(new Pull);
  cuda::DevicePointer source = from.address;
  if (process != ::getpid()) {
    if (!settings().maps_gpus) return nullptr;
    made->opened_ = open(process, from, gpu);
    if (made->opened_ == nullptr) return nullptr;
    source = made->opened_->base + from.at;
  }
  PLAIT_CUDA_CALL(memory_copy_async, reinterpret_cast<cuda::DevicePointer>(to), source, bytes,
                  stream);
  made->copied_.emplace(gpu);
  return made;
}

Pull::~Pull() {
  copied_.reset();
  if (opened_ != nullptr) release_opened(opened_);
}

bool Pull::has_ended() { return copied_->has_ended(); }

void close_opened() {
  const std::lock_guard lock(opened_table().mutex);
  auto& opened = opened_table().by_handle;
  for (At at = opened.begin(); at != opened.end();) {
    const At next = std::next(at);
    if (at->second.users == 0) close(at);
    at = next;
  }
}

}  // namespace plait::mpi
