// Loads the driver once per process: dlopen, cuGetProcAddress and cuInit. Keeps the outcome,
// success or failure.
#include "driver/cuda/api.hpp"

#include <dlfcn.h>

#include <cstdio>

#include "base/env.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

using GetProcAddress = Result (*)(const char* symbol, void** function, int version,
                                  std::uint64_t flags, int* status);
inline constexpr int kVersion = 12000;  // version of every required entry point

GetProcAddress get_proc_address = nullptr;

void* find_in_driver(const char* symbol, int version) {
  void* function = nullptr;
  int status = 0;
  if (get_proc_address(symbol, &function, version, 0, &status) != kSuccess) return nullptr;
  return function;
}

struct OpenedDriver {
  Api table;
  std::string why_not;
};

int devices_by(const Api& table) {
  int count = 0;
  return table.device_count(&count) == kSuccess ? count : 0;
}

OpenedDriver open_driver() {
  OpenedDriver opened;
  // Streams with kernels that wait for other ranks must not share a hardware queue.
  set_foreign_env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    opened.why_not = "found no libcuda.so.1, which is part of an NVIDIA driver";
    return opened;
  }
  get_proc_address = reinterpret_cast<GetProcAddress>(::dlsym(library, "cuGetProcAddress_v2"));
  if (get_proc_address == nullptr) {
    opened.why_not = "the NVIDIA driver is older than CUDA 12: update it";
    return opened;
  }
  if (const char* missing = fill_table(opened.table, find_in_driver); missing != nullptr) {
    opened.why_not = text("the NVIDIA driver lacks {}: update it", missing);
    return opened;
  }
  if (const Result result = opened.table.init(0); result != kSuccess) {
    opened.why_not = text("cuInit returned {}: no usable GPU", result);
    return opened;
  }
  if (devices_by(opened.table) == 0) opened.why_not = "the NVIDIA driver shows no GPU";
  return opened;
}

const OpenedDriver& opened() {
  static const OpenedDriver once = open_driver();
  return once;
}

}  // namespace

const char* fill_table(Api& table, FindSymbol find) {
#define PLAIT_CUDA_FUNCTION(field, symbol, arguments)                           \
  table.field = reinterpret_cast<Result(*) arguments>(find(#symbol, kVersion)); \
  if (table.field == nullptr) return #symbol;
#include "driver/cuda/functions.def"
#undef PLAIT_CUDA_FUNCTION
#define PLAIT_CUDA_LATER_FUNCTION(version, field, symbol, arguments) \
  table.field = reinterpret_cast<Result(*) arguments>(find(#symbol, version));
#include "driver/cuda/later_functions.def"
#undef PLAIT_CUDA_LATER_FUNCTION
  return nullptr;
}

std::string why_no_cuda() { return opened().why_not; }

int device_count() { return opened().why_not.empty() ? devices_by(opened().table) : 0; }

const Api& api() {
  if (!opened().why_not.empty())
    throw Error(ErrorCode::no_device, text("wanted a GPU; {}", opened().why_not));
  return opened().table;
}

void require(Result result, const char* call) {
  if (result == kSuccess) return;
  const char* name = nullptr;
  const char* meaning = nullptr;
  const Api& table = api();
  table.error_name(result, &name);
  table.error_string(result, &meaning);
  constexpr Result kOutOfMemory = 2;
  throw Error(result == kOutOfMemory ? ErrorCode::out_of_memory : ErrorCode::driver_error,
              text("CUDA driver call {} returned {} ({}): {}", call, result,
                   name ? name : "unknown", meaning ? meaning : "no text"));
}

PointerLocation place_of(const void* pointer) {
  PointerLocation place;
  int attributes[] = {kPointerMemoryType, kPointerDeviceOrdinal};
  void* values[] = {&place.memory, &place.ordinal};
  PLAIT_CUDA_CALL(pointer_attributes, 2, attributes, values,
                  reinterpret_cast<DevicePointer>(pointer));
  return place;
}

std::string uuid_of(int ordinal) {
  Device device = 0;
  unsigned char bytes[16] = {};
  PLAIT_CUDA_CALL(device_get, &device, ordinal);
  PLAIT_CUDA_CALL(device_uuid, reinterpret_cast<char*>(bytes), device);
  std::string uuid = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    uuid += (i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(digits);
  }
  return uuid;
}

RelaxedCaptureMode::RelaxedCaptureMode() noexcept : mode_(kCaptureRelaxed) {
  exchanged_ = why_no_cuda().empty() && api().exchange_capture_mode(&mode_) == kSuccess;
}

RelaxedCaptureMode::~RelaxedCaptureMode() {
  if (exchanged_) api().exchange_capture_mode(&mode_);
}

Current::Current(Context context) { require(api().context_push(context), "context_push"); }

Current::~Current() {
  Context popped = nullptr;
  api().context_pop(&popped);
}

}  // namespace plait::cuda
