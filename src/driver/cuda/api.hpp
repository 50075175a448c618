// The CUDA driver as a table of functions, opened at run time (libcuda.so.1). A missing driver is
// Error(no_device), never a crash. A failed call is Error(driver_error) with the call's name.
#pragma once
#include <string>

#include "driver/cuda/types.hpp"

namespace plait::cuda {

struct Api {
#define PLAIT_CUDA_FUNCTION(field, symbol, arguments) Result(*field) arguments = nullptr;
#include "driver/cuda/functions.def"
#undef PLAIT_CUDA_FUNCTION
#define PLAIT_CUDA_LATER_FUNCTION(version, field, symbol, arguments) \
  Result(*field) arguments = nullptr;
#include "driver/cuda/later_functions.def"
#undef PLAIT_CUDA_LATER_FUNCTION
};

/// Returns the driver's functions; opens and initialises the driver at the first call. Throws
/// Error(no_device) without a driver or a GPU.
const Api& api();
/// Returns why api() would throw; empty if api() would not.
std::string why_no_cuda();
/// Number of GPUs; 0 without a driver.
int device_count();
/// Throws Error(driver_error), or out_of_memory, with the failed call and the driver's text.
void require(Result result, const char* call);

/// Fills the table from `find` (null for unknown symbols); used by api() and by tests. Returns the
/// first missing symbol that every driver has, or null.
using FindSymbol = void* (*)(const char* symbol, int version);
const char* fill_table(Api& table, FindSymbol find);

/// Location of memory; zeros and -1 if the driver does not know the pointer.
struct PointerLocation {
  unsigned memory = 0;  ///< kMemoryOnDevice, or another value
  int ordinal = -1;
};
/// Asks the driver for the location, in a current context. The driver knows all memory that a GPU
/// can access.
PointerLocation place_of(const void* pointer);

/// Returns "GPU-00112233-4455-...", in NVML's format.
std::string uuid_of(int ordinal);

/// Makes the device's primary context current on this thread while the object lives.
class Current {
 public:
  explicit Current(Context context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

/// Allows this thread's driver calls while other threads capture, without breaking their captures.
/// Does nothing without a driver.
class RelaxedCaptureMode {
 public:
  RelaxedCaptureMode() noexcept;
  ~RelaxedCaptureMode();
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

 private:
  int mode_;
  bool exchanged_ = false;
};

}  // namespace plait::cuda

/// PLAIT_CUDA_CALL(memory_free, pointer): calls api().memory_free(pointer), throws if the call
/// fails.
#define PLAIT_CUDA_CALL(function, ...) \
  ::plait::cuda::require(::plait::cuda::api().function(__VA_ARGS__), #function)
