// Device memory of the fake driver that only the driver can touch: a range of inaccessible
// addresses, with the content elsewhere. An MPI or a rank that touches device memory itself
// crashes. Kernels and all other work of a GPU are refused. Other processes may open device memory,
// unless TEST_LIBCUDA_IPC is "unshown" (export fails) or "unopened" (opening fails).
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "driver/cuda/api.hpp"

namespace plait_test::guarded {

namespace cuda = plait::cuda;
using cuda::Result, cuda::kSuccess;

using Address = cuda::DevicePointer;
constexpr Address kBytes = Address{1} << 36;
constexpr Result kInvalid = 1, kNotInitialised = 3, kUnsupported = 801;

inline Address reserve() {
  return reinterpret_cast<Address>(
      mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

inline Address mapped(int file) {
  return reinterpret_cast<Address>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0));
}

inline int new_file() {
  const int file = memfd_create("device", MFD_CLOEXEC);
  return ftruncate(file, static_cast<off_t>(kBytes)) == 0 ? file : -1;
}

struct DeviceMemory {
  int file = new_file();
  Address device = reserve(), content = mapped(file);
  std::atomic<Address> used{0};
};

/// Memory of another process, opened by this process.
struct OpenedMemory {
  int process;
  Address device, content;
};
inline std::vector<OpenedMemory>& opened() {
  static auto* const all = new std::vector<OpenedMemory>;
  return *all;
}

inline DeviceMemory& memory() {
  static auto* const one = new DeviceMemory;
  return *one;
}

inline bool is_device(Address at) { return at - memory().device < kBytes; }

inline void* content_of(Address at) {
  for (const OpenedMemory& one : opened())
    if (at - one.device < kBytes) return reinterpret_cast<void*>(at - one.device + one.content);
  return reinterpret_cast<void*>(is_device(at) ? at - memory().device + memory().content : at);
}

inline std::atomic<bool>& is_begun() {
  static std::atomic<bool> begun{std::getenv("TEST_CUDA_LATE") == nullptr};
  return begun;
}

inline bool fails(const char* what) {
  const char* const setting = std::getenv("TEST_LIBCUDA_IPC");
  return setting != nullptr && std::strcmp(setting, what) == 0;
}

/// Content of an IPC handle.
struct SharedMemory {
  int process, file;
};

inline Result ipc_get(cuda::IpcHandle* handle, Address base) {
  if (base != memory().device || fails("unshown")) return kUnsupported;
  const SharedMemory shared{getpid(), memory().file};
  std::memcpy(handle, &shared, sizeof shared);
  return kSuccess;
}

inline std::atomic<std::uint64_t> opens{0}, open_now{0};

inline Result ipc_open(Address* device, cuda::IpcHandle handle, unsigned) {
  SharedMemory shared{};
  std::memcpy(&shared, &handle, sizeof shared);
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", shared.process, shared.file);
  const int file = fails("unopened") ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return kUnsupported;
  opened().push_back({shared.process, reserve(), mapped(file)});
  close(file);
  ++opens;
  ++open_now;
  *device = opened().back().device;
  return kSuccess;
}

/// Reported size of the single allocation that holds all device memory of a process.
inline Address shown_bytes() {
  const char* const setting = std::getenv("TEST_LIBCUDA_BYTES");
  return setting != nullptr ? std::strtoull(setting, nullptr, 10) : Address{1} << 20;
}

/// Context of all device memory: of a memory pool, or with TEST_LIBCUDA_CONTEXT a context that is
/// not the primary.
inline const void* shown_context() {
  static const char other = 0;
  return std::getenv("TEST_LIBCUDA_CONTEXT") != nullptr ? &other : nullptr;
}

inline Result pointer_attributes(unsigned count, int* attributes, void** values, Address at) {
  for (unsigned index = 0; index < count; ++index) {
    void* const value = values[index];
    switch (attributes[index]) {
      case cuda::kPointerMemoryType:
        *static_cast<unsigned*>(value) = is_device(at) ? cuda::kMemoryOnDevice : 0;
        break;
      case cuda::kPointerContext: *static_cast<const void**>(value) = shown_context(); break;
      case cuda::kPointerBufferId: *static_cast<Address*>(value) = 1; break;
      case cuda::kPointerRangeStart: *static_cast<Address*>(value) = memory().device; break;
      case cuda::kPointerRangeBytes: *static_cast<Address*>(value) = shown_bytes(); break;
      default: *static_cast<int*>(value) = 0;
    }
  }
  return kSuccess;
}

inline std::atomic<std::uint64_t> copies_to_host{0}, waits{0};

/// Allocations of content(): a copy lies within a single allocation, as with CUDA.
struct Allocations {
  std::mutex mutex;
  std::map<Address, Address> ends;
  void add(Address begin, Address end) {
    const std::lock_guard lock(mutex);
    ends[begin] = end;
  }
  bool is_one(Address begin, std::size_t bytes) {
    const std::lock_guard lock(mutex);
    const auto after = ends.upper_bound(begin);
    return after != ends.begin() && begin + bytes <= std::prev(after)->second;
  }
};
inline Allocations& allocations() {
  static auto* const all = new Allocations;
  return *all;
}

inline Result copy(Address to, Address from, std::size_t bytes) {
  for (const Address one : {to, from})
    if (bytes > 0 && is_device(one) && !allocations().is_one(one - memory().device, bytes))
      return kInvalid;
  if (is_device(from) && !is_device(to)) ++copies_to_host;
  std::memcpy(content_of(to), content_of(from), bytes);
  return kSuccess;
}

/// The calling thread waits for the copy.
inline Result copy_now(Address to, Address from, std::size_t bytes) {
  ++waits;
  return copy(to, from, bytes);
}

/// Every second look finds an event's work done.
inline Result event_query(cuda::Event) {
  static std::atomic<unsigned> calls{0};
  return ++calls % 2 == 0 ? kSuccess : cuda::kNotReady;
}

template <class... Arguments>
void refuse(Result (*&field)(Arguments...)) {
  field = [](Arguments...) -> Result { return kUnsupported; };
}
template <class... Arguments>
void accept(Result (*&field)(Arguments...)) {
  field = [](Arguments...) -> Result { return kSuccess; };
}
template <class Handle, class... Arguments>
void give_handle(Result (*&field)(Handle*, Arguments...)) {
  field = [](Handle* handle, Arguments...) -> Result {
    *handle = reinterpret_cast<Handle>(handle);
    return kSuccess;
  };
}

/// Returns the driver's functions over guarded memory.
inline cuda::Api api() {
  cuda::Api made;
#define PLAIT_CUDA_FUNCTION(field, symbol, arguments) refuse(made.field);
#define PLAIT_CUDA_LATER_FUNCTION(version, field, symbol, arguments) refuse(made.field);
#include "driver/cuda/functions.def"
#include "driver/cuda/later_functions.def"
#undef PLAIT_CUDA_LATER_FUNCTION
#undef PLAIT_CUDA_FUNCTION
  made.device_count = [](int* count) { return *count = 1, kSuccess; };
  made.device_get = [](cuda::Device* device, int ordinal) { return *device = ordinal, kSuccess; };
  made.error_name = [](Result, const char** name) { return *name = "emulated", kSuccess; };
  made.error_string = made.error_name;
  made.pointer_attributes = pointer_attributes;
  made.memory_copy = copy_now;
  made.memory_copy_async = [](Address to, Address from, std::size_t bytes, cuda::Stream) {
    return copy(to, from, bytes);
  };
  made.ipc_get = ipc_get;
  made.ipc_open = ipc_open;
  made.ipc_close = [](Address) { return --open_now, kSuccess; };
  made.event_query = event_query;
  give_handle(made.primary_retain);
  give_handle(made.stream_create);
  give_handle(made.event_create);
  accept(made.init);
  accept(made.context_push);
  accept(made.context_pop);
  accept(made.host_register);
  accept(made.stream_synchronize);
  accept(made.exchange_capture_mode);
  accept(made.event_record);
  accept(made.event_destroy);
  return made;
}

}  // namespace plait_test::guarded
