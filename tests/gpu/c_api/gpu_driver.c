/* Opens libcuda.so.1 by dlopen, so that the test builds and starts without a GPU. */
#include "gpu_driver.h"

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

enum { kNoDriver = 9999, kRelaxed = 2 };

static void* driver(void) {
  static void* opened;
  if (opened == NULL) opened = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return opened;
}

/* ISO C has no cast from an object pointer to a function pointer. */
#define FIND(function, symbol)                                             \
  do {                                                                     \
    void* const found = driver() == NULL ? NULL : dlsym(driver(), symbol); \
    if (found == NULL) return kNoDriver;                                   \
    memcpy(&function, &found, sizeof function);                            \
  } while (0)
#define CALL(symbol, types, ...)              \
  do {                                        \
    int(*function) types = NULL;              \
    FIND(function, symbol);                   \
    const int result = function(__VA_ARGS__); \
    if (result != 0) return result;           \
  } while (0)

static int count_into(int* count) {
  CALL("cuInit", (unsigned), 0u);
  CALL("cuDeviceGetCount", (int*), count);
  return 0;
}

int gpu_count(void) {
  int count = 0;
  return count_into(&count) == 0 ? count : 0;
}

int gpu_open(int ordinal, void** stream) {
  int device = 0;
  void* context = NULL;
  CALL("cuInit", (unsigned), 0u);
  CALL("cuDeviceGet", (int*, int), &device, ordinal);
  CALL("cuDevicePrimaryCtxRetain", (void**, int), &context, device);
  CALL("cuCtxSetCurrent", (void*), context);
  CALL("cuStreamCreate", (void**, unsigned), stream, 1u);
  return 0;
}

int gpu_allocate(void** memory, size_t bytes) {
  uint64_t address = 0;
  CALL("cuMemAlloc_v2", (uint64_t*, size_t), &address, bytes);
  *memory = (void*)(uintptr_t)address;
  return 0;
}

int gpu_release(void* memory) {
  CALL("cuMemFree_v2", (uint64_t), (uint64_t)(uintptr_t)memory);
  return 0;
}

int gpu_fill(void* dst, unsigned char value, size_t bytes) {
  CALL("cuMemsetD8_v2", (uint64_t, unsigned char, size_t), (uint64_t)(uintptr_t)dst, value, bytes);
  return gpu_wait_all();
}

int gpu_write(void* dst, const void* src, size_t bytes) {
  CALL("cuMemcpyHtoD_v2", (uint64_t, const void*, size_t), (uint64_t)(uintptr_t)dst, src, bytes);
  return gpu_wait_all();
}

int gpu_read(void* dst, const void* src, size_t bytes) {
  CALL("cuMemcpyDtoH_v2", (void*, uint64_t, size_t), dst, (uint64_t)(uintptr_t)src, bytes);
  return 0;
}

int gpu_wait(void* stream) {
  CALL("cuStreamSynchronize", (void*), stream);
  return 0;
}

int gpu_wait_all(void) {
  int (*function)(void) = NULL;
  FIND(function, "cuCtxSynchronize");
  return function();
}

int gpu_free_bytes(size_t* bytes) {
  size_t total = 0;
  CALL("cuMemGetInfo_v2", (size_t*, size_t*), bytes, &total);
  return 0;
}

int gpu_begin_capture(void* stream) {
  CALL("cuStreamBeginCapture_v2", (void*, int), stream, kRelaxed);
  return 0;
}

int gpu_end_capture(void* stream, void** graph) {
  void* captured = NULL;
  CALL("cuStreamEndCapture", (void*, void**), stream, &captured);
  CALL("cuGraphInstantiateWithFlags", (void**, void*, unsigned long long), graph, captured, 0ull);
  CALL("cuGraphDestroy", (void*), captured);
  return 0;
}

int gpu_replay(void* graph, void* stream) {
  CALL("cuGraphLaunch", (void*, void*), graph, stream);
  return 0;
}

int gpu_end_graph(void* graph) {
  CALL("cuGraphExecDestroy", (void*), graph);
  return 0;
}
