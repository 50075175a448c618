// libcuda.so.1, opened at run time -> a table of its functions. No driver is a value,
// Error(no_device), never a crash; a failed call is Error(driver_error) that names the call.
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

/// The driver's functions; opened and initialised at the first call. Error(no_device) where there
/// is no driver or it has no GPU.
const Api& api();
/// Why api() would throw; empty where it would not.
std::string why_no_cuda();
/// Number of GPUs; 0 where there is no driver.
int device_count();
/// Throws Error(driver_error), or out_of_memory, saying which call failed and what it said.
void require(Result result, const char* call);

/// Fills the table from `find`, which returns null for what it does not know: how api() and tests
/// make it. Returns the first symbol not found that every driver has, or null.
using FindSymbol = void* (*)(const char* symbol, int version);
const char* fill_table(Api& table, FindSymbol find);

/// Where memory lies; zeros and -1 where the driver does not know it.
struct PointerLocation {
  unsigned memory = 0;  ///< kMemoryOnDevice, or else
  int ordinal = -1;
};
/// Asks the driver, which knows every piece of memory that a GPU can reach. In a current context.
PointerLocation place_of(const void* pointer);

/// "GPU-00112233-4455-...", as NVML writes it.
std::string uuid_of(int ordinal);

/// The device's primary context, current on this thread while this lives.
class Current {
 public:
  explicit Current(Context context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

/// While one lives, what this thread does is allowed beside captures in any other thread, and
/// breaks none of them. Nothing where there is no driver.
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

/// PLAIT_CUDA_CALL(memory_free, pointer): calls api().memory_free(pointer), throws where it fails.
#define PLAIT_CUDA_CALL(function, ...) \
  ::plait::cuda::require(::plait::cuda::api().function(__VA_ARGS__), #function)
