// A libcuda.so.1 without a GPU for tests of the drop-in. Device memory is a range of inaccessible
// addresses, with the content elsewhere: an MPI or a rank that touches device memory itself
// crashes. Other processes may open device memory, unless TEST_LIBCUDA_IPC is "unshown" (export
// fails) or "unopened" (opening fails).
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

namespace {

using Address = std::uint64_t;
constexpr Address kBytes = Address{1} << 36;
constexpr int kSuccess = 0, kInvalid = 1, kNotInitialised = 3, kNotReady = 600, kUnsupported = 801,
              kOnDevice = 2;
constexpr int kMemoryType = 2, kBufferId = 7, kRangeStart = 11, kRangeBytes = 12;

Address reserve() {
  return reinterpret_cast<Address>(
      mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

Address mapped(int file) {
  return reinterpret_cast<Address>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0));
}

int new_file() {
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
std::vector<OpenedMemory>& opened() {
  static auto* const all = new std::vector<OpenedMemory>;
  return *all;
}

DeviceMemory& memory() {
  static auto* const one = new DeviceMemory;
  return *one;
}

bool is_device(Address at) { return at - memory().device < kBytes; }

void* content_of(Address at) {
  for (const OpenedMemory& one : opened())
    if (at - one.device < kBytes) return reinterpret_cast<void*>(at - one.device + one.content);
  return reinterpret_cast<void*>(is_device(at) ? at - memory().device + memory().content : at);
}

std::atomic<bool>& is_begun() {
  static std::atomic<bool> begun{std::getenv("TEST_CUDA_LATE") == nullptr};
  return begun;
}

bool fails(const char* what) {
  const char* const setting = std::getenv("TEST_LIBCUDA_IPC");
  return setting != nullptr && std::strcmp(setting, what) == 0;
}

struct FakeIpcHandle {
  int process, file;
  char rest[56];
};

int ipc_get(FakeIpcHandle* handle, Address base) {
  if (base != memory().device || fails("unshown")) return kUnsupported;
  *handle = {getpid(), memory().file, {}};
  return kSuccess;
}

std::atomic<std::uint64_t> opens{0}, open_now{0};

int ipc_open(Address* device, FakeIpcHandle handle, unsigned) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
  const int file = fails("unopened") ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return kUnsupported;
  opened().push_back({handle.process, reserve(), mapped(file)});
  close(file);
  ++opens;
  ++open_now;
  *device = opened().back().device;
  return kSuccess;
}

int ipc_close(Address) {
  --open_now;
  return kSuccess;
}

int event_query(void*) {
  static std::atomic<unsigned> calls{0};
  return ++calls % 2 == 0 ? kSuccess : kNotReady;
}

int unsupported(...) { return kUnsupported; }
int succeeds(...) { return kSuccess; }

int one_device(int* count) { return *count = 1, kSuccess; }
int some_handle(void** handle, ...) { return *handle = handle, kSuccess; }

int name_of(int, const char** name) { return *name = "emulated", kSuccess; }

/// Reported size of the single allocation that holds all device memory of a process.
Address shown_bytes() {
  const char* const setting = std::getenv("TEST_LIBCUDA_BYTES");
  return setting != nullptr ? std::strtoull(setting, nullptr, 10) : Address{1} << 20;
}

int pointer_attributes(unsigned count, int* attributes, void** values, Address at) {
  for (unsigned index = 0; index < count; ++index) {
    void* const value = values[index];
    switch (attributes[index]) {
      case kMemoryType: *static_cast<int*>(value) = is_device(at) ? kOnDevice : 0; break;
      case kBufferId: *static_cast<Address*>(value) = 1; break;
      case kRangeStart: *static_cast<Address*>(value) = memory().device; break;
      case kRangeBytes: *static_cast<Address*>(value) = shown_bytes(); break;
      default: *static_cast<int*>(value) = 0;
    }
  }
  return kSuccess;
}

std::atomic<std::uint64_t> copies_to_host{0}, waits{0};

/// Allocations of emulated_content(): a copy lies within a single allocation, as with CUDA.
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
Allocations& allocations() {
  static auto* const all = new Allocations;
  return *all;
}

int copy(Address to, Address from, std::size_t bytes) {
  for (const Address one : {to, from})
    if (bytes > 0 && is_device(one) && !allocations().is_one(one - memory().device, bytes))
      return kInvalid;
  if (is_device(from) && !is_device(to)) ++copies_to_host;
  std::memcpy(content_of(to), content_of(from), bytes);
  return kSuccess;
}

/// The calling thread waits for the copy.
int copy_now(Address to, Address from, std::size_t bytes) {
  ++waits;
  return copy(to, from, bytes);
}

int copy_async(Address to, Address from, std::size_t bytes, void*) { return copy(to, from, bytes); }

template <class Function>
void* shown(Function* function) {
  return reinterpret_cast<void*>(function);
}

void* find(const char* symbol) {
  struct DriverFunction {
    const char* symbol;
    void* function;
  };
  static const DriverFunction functions[] = {
      {"cuDeviceGetCount", shown(one_device)},
      {"cuPointerGetAttributes", shown(pointer_attributes)},
      {"cuMemcpy", shown(copy_now)},
      {"cuMemcpyAsync", shown(copy_async)},
      {"cuDevicePrimaryCtxRetain", shown(some_handle)},
      {"cuStreamCreateWithPriority", shown(some_handle)},
      {"cuGetErrorName", shown(name_of)},
      {"cuGetErrorString", shown(name_of)},
      {"cuInit", shown(succeeds)},
      {"cuDeviceGet", shown(succeeds)},
      {"cuIpcGetMemHandle", shown(ipc_get)},
      {"cuIpcOpenMemHandle", shown(ipc_open)},
      {"cuIpcCloseMemHandle", shown(ipc_close)},
      {"cuEventCreate", shown(some_handle)},
      {"cuEventRecord", shown(succeeds)},
      {"cuEventQuery", shown(event_query)},
      {"cuEventDestroy", shown(succeeds)},
      {"cuCtxPushCurrent", shown(succeeds)},
      {"cuCtxPopCurrent", shown(succeeds)},
      {"cuMemHostRegister", shown(succeeds)},
      {"cuStreamSynchronize", shown(succeeds)},
      {"cuThreadExchangeStreamCaptureMode", shown(succeeds)},
  };
  for (const DriverFunction& one : functions)
    if (std::strcmp(one.symbol, symbol) == 0) return one.function;
  return shown(unsupported);
}

}  // namespace

extern "C" {

int cuGetProcAddress_v2(const char* symbol, void** function, int, std::uint64_t, int*) {
  *function = find(symbol);
  return kSuccess;
}

/// Returns kNotInitialised before cuInit. A program with TEST_CUDA_LATE calls cuInit late or never.
int cuDeviceGetCount(int* count) { return is_begun() ? one_device(count) : kNotInitialised; }

void emulated_begin() { is_begun() = true; }

std::uint64_t emulated_opens() { return opens.load(); }
std::uint64_t emulated_open_now() { return open_now.load(); }
std::uint64_t emulated_waits() { return waits.load(); }
std::uint64_t emulated_copies_to_host() { return copies_to_host.load(); }

/// Allocates device memory; returns the address at which a test reads and writes the content.
void* emulated_content(std::size_t bytes) {
  const Address whole = (bytes + 4095) / 4096 * 4096;
  const Address begin = memory().used.fetch_add(whole);
  allocations().add(begin, begin + whole);
  return reinterpret_cast<void*>(memory().content + begin);
}

/// Returns the device address of such an address; other addresses unchanged.
void* emulated_device(const void* content) {
  const Address offset = reinterpret_cast<Address>(content) - memory().content;
  if (offset >= kBytes) return const_cast<void*>(content);
  return reinterpret_cast<void*>(memory().device + offset);
}

/// Frees memory; returns true if it was device memory.
int emulated_free(void* content, std::size_t bytes) {
  if (reinterpret_cast<Address>(content) - memory().content >= kBytes) return 0;
  madvise(content, (bytes + 4095) / 4096 * 4096, MADV_REMOVE);
  return 1;
}
}
