// Buffers in host memory or, by chance, on an emulated GPU (tests/fake_cuda): each rank chooses for
// itself, as programs may. The test reads and writes a buffer as host memory, and passes
// device_ptr(buffer) to MPI.
#pragma once
#include <dlfcn.h>

#include <cstdlib>
#include <new>
#include <vector>

#include "program.hpp"

/// The GPU of the library named by TEST_LIBCUDA; without a library, all memory is host memory.
struct EmulatedCuda {
  void* (*content)(std::size_t) = nullptr;
  void* (*device)(const void*) = nullptr;
  int (*free)(void*, std::size_t) = nullptr;
  void (*use)() = nullptr;  ///< initialises CUDA, if TEST_CUDA_LATE
  Dice chance{0};

  /// Begun before MPI_Init, like a program that has initialised CUDA.
  static EmulatedCuda& now() {
    static EmulatedCuda gpu;
    return gpu;
  }
  void begin(std::uint64_t seed) {
    const char* const path = std::getenv("TEST_LIBCUDA");
    if (path == nullptr) return;
    void* const library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) std::abort();
    content = reinterpret_cast<void* (*)(std::size_t)>(dlsym(library, "emulated_content"));
    device = reinterpret_cast<void* (*)(const void*)>(dlsym(library, "emulated_device"));
    free = reinterpret_cast<int (*)(void*, std::size_t)>(dlsym(library, "emulated_free"));
    use = reinterpret_cast<void (*)()>(dlsym(library, "emulated_begin"));
    chance = Dice(seed);
  }
};

template <class T>
struct HostOrGpuAllocator {
  using value_type = T;
  HostOrGpuAllocator() = default;
  template <class U>
  HostOrGpuAllocator(const HostOrGpuAllocator<U>&) {}
  T* allocate(std::size_t count) {
    EmulatedCuda& gpu = EmulatedCuda::now();
    if (gpu.content != nullptr && !gpu.chance.one_in(3))
      return static_cast<T*>(gpu.content(count * sizeof(T)));
    return static_cast<T*>(::operator new(count * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t count) {
    const EmulatedCuda& gpu = EmulatedCuda::now();
    if (gpu.free != nullptr && gpu.free(memory, count * sizeof(T)) != 0) return;
    ::operator delete(memory);
  }
  bool operator==(const HostOrGpuAllocator&) const { return true; }
  bool operator!=(const HostOrGpuAllocator&) const { return false; }
};

template <class T>
using HostOrGpuVector = std::vector<T, HostOrGpuAllocator<T>>;

template <class T>
T* device_ptr(T* buffer) {
  const EmulatedCuda& gpu = EmulatedCuda::now();
  return gpu.device == nullptr || buffer == nullptr ? buffer : static_cast<T*>(gpu.device(buffer));
}
