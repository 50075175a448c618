// Virtual memory of the fake driver: physical memory is a memfd, and mapped addresses are real, so
// processes see each other's writes, and an access to memory that was given up ends the process.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "fake_cuda/fake_gpu.hpp"

namespace plait_test {

struct FakePhysical {
  int file;
  std::size_t bytes;
  bool is_own;               ///< made by this process
  std::vector<int> shown{};  ///< descriptors by which it was shown
};

struct FakeMapping {
  std::mutex guard;
  std::map<plait::cuda::PhysicalMemory, FakePhysical> physical;
  std::map<plait::cuda::DevicePointer, std::size_t> mapped;
  plait::cuda::PhysicalMemory last = 0;
  /// The thread sanitizer lets programs map addresses below 2^39, and none around 2^43.
  plait::cuda::DevicePointer next = plait::cuda::DevicePointer{1} << 38;

  /// True if the bytes lie in mapped memory.
  bool holds(plait::cuda::DevicePointer at, std::size_t bytes) {
    const std::lock_guard<std::mutex> hold(guard);
    const auto after = mapped.upper_bound(at);
    if (after == mapped.begin()) return false;
    const auto& [base, size] = *std::prev(after);
    return at + bytes <= base + size;
  }
};

inline FakeMapping& fake_mapping() {
  static FakeMapping one;
  return one;
}

namespace mapping {

using plait::cuda::DevicePointer, plait::cuda::PhysicalMemory, plait::cuda::Result,
    plait::cuda::kSuccess;
constexpr Result kInvalid = 1, kNoMemory = 2;

inline void* address(DevicePointer at) { return reinterpret_cast<void*>(at); }

/// Makes the addresses inaccessible, and keeps them.
inline bool close_addresses(DevicePointer at, std::size_t bytes, int flags) {
  return ::mmap(address(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags,
                -1, 0) == address(at);
}

inline PhysicalMemory add(int file, std::size_t bytes, bool is_own) {
  const std::lock_guard<std::mutex> hold(fake_mapping().guard);
  fake_mapping().physical[++fake_mapping().last] = {file, bytes, is_own};
  return fake_mapping().last;
}

/// True if a descriptor that shows the memory is still open: the driver keeps the memory then.
inline bool is_kept(const FakePhysical& memory) {
  struct stat mine{}, shown{};
  ::fstat(memory.file, &mine);
  for (const int file : memory.shown)
    if (::fstat(file, &shown) == 0 && shown.st_ino == mine.st_ino && shown.st_dev == mine.st_dev)
      return true;
  return false;
}

inline void count(std::size_t more) {
  const std::lock_guard<std::mutex> hold(fake_cuda().memory.guard);
  fake_cuda().memory.bytes += more;
}

inline void emulate_physical(plait::cuda::Api& api) {
  api.physical_granularity = [](std::size_t* bytes, const plait::cuda::MemoryProperties*, int) {
    return *bytes = 2 << 20, kSuccess;
  };
  api.physical_create = [](PhysicalMemory* memory, std::size_t bytes,
                           const plait::cuda::MemoryProperties*, unsigned long long) {
    {
      const std::lock_guard<std::mutex> hold(fake_cuda().memory.guard);
      if (fake_cuda().memory.bytes + bytes > fake_cuda().memory.most) return kNoMemory;
    }
    const int file = ::memfd_create("physical", MFD_CLOEXEC);
    if (::ftruncate(file, static_cast<off_t>(bytes)) != 0) return kNoMemory;
    count(bytes);
    return *memory = add(file, bytes, true), kSuccess;
  };
  api.physical_release = [](PhysicalMemory memory) {
    FakePhysical found{};
    {
      const std::lock_guard<std::mutex> hold(fake_mapping().guard);
      const auto at = fake_mapping().physical.find(memory);
      if (at == fake_mapping().physical.end()) return kInvalid;
      found = at->second;
      fake_mapping().physical.erase(at);
    }
    const bool is_gone = found.is_own && !is_kept(found);
    ::close(found.file);
    if (is_gone) count(~found.bytes + 1);
    if (!found.is_own) --fake_cuda().opened;
    return kSuccess;
  };
  api.physical_show = [](void* handle, PhysicalMemory memory, int, unsigned long long) {
    const std::lock_guard<std::mutex> hold(fake_mapping().guard);
    const auto at = fake_mapping().physical.find(memory);
    if (at == fake_mapping().physical.end()) return kInvalid;
    const int file = ::fcntl(at->second.file, F_DUPFD_CLOEXEC, 0);
    at->second.shown.push_back(file);
    return *static_cast<int*>(handle) = file, kSuccess;
  };
  api.physical_open = [](PhysicalMemory* memory, void* handle, int) {
    const int file =
        ::fcntl(static_cast<int>(reinterpret_cast<std::intptr_t>(handle)), F_DUPFD_CLOEXEC, 0);
    if (file < 0) return kInvalid;
    ++fake_cuda().opened;
    return *memory = add(file, static_cast<std::size_t>(::lseek(file, 0, SEEK_END)), false),
           kSuccess;
  };
}

inline void emulate_addresses(plait::cuda::Api& api) {
  api.address_reserve = [](DevicePointer* pointer, std::size_t bytes, std::size_t, DevicePointer,
                           unsigned long long) {
    const std::lock_guard<std::mutex> hold(fake_mapping().guard);
    *pointer = fake_mapping().next;
    fake_mapping().next += bytes + (2 << 20);
    return close_addresses(*pointer, bytes, MAP_FIXED_NOREPLACE) ? kSuccess : kNoMemory;
  };
  api.address_free = [](DevicePointer at, std::size_t bytes) {
    const std::lock_guard<std::mutex> hold(fake_mapping().guard);
    return fake_mapping().mapped.contains(at) || ::munmap(address(at), bytes) != 0 ? kInvalid
                                                                                   : kSuccess;
  };
  api.memory_map = [](DevicePointer at, std::size_t bytes, std::size_t, PhysicalMemory memory,
                      unsigned long long) {
    const std::lock_guard<std::mutex> hold(fake_mapping().guard);
    const auto found = fake_mapping().physical.find(memory);
    if (found == fake_mapping().physical.end() || found->second.bytes != bytes ||
        !fake_mapping().mapped.emplace(at, bytes).second)
      return kInvalid;
    return ::mmap(address(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, found->second.file, 0) ==
                   address(at)
               ? kSuccess
               : kInvalid;
  };
  api.memory_unmap = [](DevicePointer at, std::size_t bytes) {
    const std::lock_guard<std::mutex> hold(fake_mapping().guard);
    if (fake_mapping().mapped.erase(at) == 0) return kInvalid;
    return close_addresses(at, bytes, MAP_FIXED) ? kSuccess : kInvalid;
  };
  api.memory_set_access = [](DevicePointer at, std::size_t bytes,
                             const plait::cuda::MemoryAccessRights*, std::size_t) {
    return ::mprotect(address(at), bytes, PROT_READ | PROT_WRITE) == 0 ? kSuccess : kInvalid;
  };
}

/// Copies and fills of mapped memory happen at once.
inline void move_bytes(plait::cuda::Api& api) {
  static const plait::cuda::Api before = api;
  api.memory_copy_async = [](DevicePointer dst, DevicePointer src, std::size_t bytes,
                             plait::cuda::Stream stream) {
    if (!fake_mapping().holds(dst, bytes) && !fake_mapping().holds(src, bytes))
      return before.memory_copy_async(dst, src, bytes, stream);
    std::memcpy(address(dst), address(src), bytes);
    return kSuccess;
  };
  api.memory_set_async = [](DevicePointer dst, unsigned char value, std::size_t bytes,
                            plait::cuda::Stream stream) {
    if (!fake_mapping().holds(dst, bytes))
      return before.memory_set_async(dst, value, bytes, stream);
    fill_pages(address(dst), value, bytes);
    return kSuccess;
  };
}

}  // namespace mapping

/// FakeGpu::maps_memory says whether the GPU has it.
inline void emulate_mapping(plait::cuda::Api& api) {
  mapping::emulate_physical(api);
  mapping::emulate_addresses(api);
  mapping::move_bytes(api);
}

}  // namespace plait_test
