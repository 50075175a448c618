// A libcuda.so.1 without a GPU, for the drop-in's own tests: device memory is a range of addresses
// that nobody can read or write, and its content lies elsewhere. So an MPI, or a rank of plait's,
// that touches device memory itself ends the process.
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

using Address = std::uint64_t;
constexpr Address kBytes = Address{1} << 36;
constexpr int kSuccess = 0, kNotInitialised = 3, kUnsupported = 801, kOnDevice = 2;
constexpr int kMemoryType = 2;

Address reserve(int protection) {
  void* const found =
      mmap(nullptr, kBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return reinterpret_cast<Address>(found);
}

struct Memory {
  Address device = reserve(PROT_NONE), content = reserve(PROT_READ | PROT_WRITE);
  std::atomic<Address> used{0};
};

Memory& memory() {
  static auto* const one = new Memory;
  return *one;
}

bool is_device(Address at) { return at - memory().device < kBytes; }

void* content_of(Address at) {
  return reinterpret_cast<void*>(is_device(at) ? at - memory().device + memory().content : at);
}

std::atomic<bool>& is_begun() {
  static std::atomic<bool> begun{std::getenv("TEST_CUDA_LATE") == nullptr};
  return begun;
}

int unsupported(...) { return kUnsupported; }
int succeeds(...) { return kSuccess; }

int one_device(int* count) { return *count = 1, kSuccess; }
int some_handle(void** handle, ...) { return *handle = handle, kSuccess; }

int name_of(int, const char** name) { return *name = "played", kSuccess; }

int pointer_attributes(unsigned count, int* attributes, void** values, Address at) {
  for (unsigned index = 0; index < count; ++index) {
    const bool type = attributes[index] == kMemoryType;
    *static_cast<int*>(values[index]) = type ? (is_device(at) ? kOnDevice : 0) : 0;
  }
  return kSuccess;
}

std::atomic<std::uint64_t> copies_to_host{0};

int copy(Address to, Address from, std::size_t bytes) {
  if (is_device(from) && !is_device(to)) ++copies_to_host;
  std::memcpy(content_of(to), content_of(from), bytes);
  return kSuccess;
}

int copy_async(Address to, Address from, std::size_t bytes, void*) { return copy(to, from, bytes); }

template <class Function>
void* shown(Function* function) {
  return reinterpret_cast<void*>(function);
}

void* find(const char* symbol) {
  struct Known {
    const char* symbol;
    void* function;
  };
  static const Known known[] = {
      {"cuDeviceGetCount", shown(one_device)},
      {"cuPointerGetAttributes", shown(pointer_attributes)},
      {"cuMemcpy", shown(copy)},
      {"cuMemcpyAsync", shown(copy_async)},
      {"cuDevicePrimaryCtxRetain", shown(some_handle)},
      {"cuStreamCreateWithPriority", shown(some_handle)},
      {"cuGetErrorName", shown(name_of)},
      {"cuGetErrorString", shown(name_of)},
      {"cuInit", shown(succeeds)},
      {"cuDeviceGet", shown(succeeds)},
      {"cuCtxPushCurrent", shown(succeeds)},
      {"cuCtxPopCurrent", shown(succeeds)},
      {"cuMemHostRegister", shown(succeeds)},
      {"cuStreamSynchronize", shown(succeeds)},
      {"cuThreadExchangeStreamCaptureMode", shown(succeeds)},
  };
  for (const Known& one : known)
    if (std::strcmp(one.symbol, symbol) == 0) return one.function;
  return shown(unsupported);
}

}  // namespace

extern "C" {

int cuGetProcAddress_v2(const char* symbol, void** function, int, std::uint64_t, int*) {
  *function = find(symbol);
  return kSuccess;
}

/// Before cuInit, which a program with TEST_CUDA_LATE calls late or never, it says so.
int cuDeviceGetCount(int* count) { return is_begun() ? one_device(count) : kNotInitialised; }

void played_begin() { is_begun() = true; }

std::uint64_t played_copies_to_host() { return copies_to_host.load(); }

/// Where a test reads and writes `bytes` of new device memory.
void* played_content(std::size_t bytes) {
  const Address whole = (bytes + 4095) / 4096 * 4096;
  return reinterpret_cast<void*>(memory().content + memory().used.fetch_add(whole));
}

/// The device memory behind such an address; others as they are.
void* played_device(const void* content) {
  const Address offset = reinterpret_cast<Address>(content) - memory().content;
  if (offset >= kBytes) return const_cast<void*>(content);
  return reinterpret_cast<void*>(memory().device + offset);
}

/// Gives memory back; true where it was device memory's.
int played_free(void* content, std::size_t bytes) {
  if (reinterpret_cast<Address>(content) - memory().content >= kBytes) return 0;
  madvise(content, (bytes + 4095) / 4096 * 4096, MADV_DONTNEED);
  return 1;
}
}
