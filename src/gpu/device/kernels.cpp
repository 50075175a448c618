// Loads the device code once per process, looks up kernels by name and launches them.
#include "gpu/device/kernels.hpp"

#include "base/text.hpp"
#include "gpu/device/device_code.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

int attribute_of(Device device, int which) {
  int value = 0;
  PLAIT_CUDA_CALL(device_attribute, &value, which, device);
  return value;
}

/// Error for a GPU that can run none of the code.
Error no_code_for_gpu() {
  Device device = 0;
  char name[256] = {};
  PLAIT_CUDA_CALL(context_device, &device);
  PLAIT_CUDA_CALL(device_name, name, sizeof name - 1, device);
  const int major = attribute_of(device, kAttributeComputeMajor),
            minor = attribute_of(device, kAttributeComputeMinor);
  return Error(
      ErrorCode::unsupported,
      text("wanted device code for {} (compute capability {}.{}), found code for {}{}", name, major,
           minor, device_code().built_for,
           major < 8 ? ": plait needs a GPU of compute capability 8.0 or later"
                     : text(": build plait with -Ccmake.define.PLAIT_CUDA_ARCHS={}{}, or, where "
                            "there is PTX that it could run, update the NVIDIA driver",
                            major, minor)));
}

void require_code(Result result, const char* call) {
  if (result == kNoBinaryForGpu || result == kUnsupportedPtx) throw no_code_for_gpu();
  require(result, call);
}

std::vector<Library> load_all() {
  std::vector<Library> loaded;
  try {
    for (const void* const* fatbin = device_code().fatbins; *fatbin != nullptr; ++fatbin) {
      Library library = nullptr;
      require_code(api().library_load(&library, *fatbin, nullptr, nullptr, 0, nullptr, nullptr, 0),
                   "library_load");
      loaded.push_back(library);
    }
  } catch (...) {
    for (Library library : loaded) api().library_unload(library);
    throw;
  }
  return loaded;
}

/// Loaded once per process and never unloaded, for all contexts; the driver also loads the code
/// into later contexts. Loading takes about 12 ms, and the driver does not free all memory of
/// repeated loads (E-0183).
const std::vector<Library>& libraries() {
  static const auto* const once = new std::vector<Library>(load_all());
  return *once;
}

}  // namespace

Kernels::Kernels() {
  if (const std::string& why = device_code().why_none; !why.empty())
    throw Error(ErrorCode::unsupported, text("wanted kernels, {}", why));
  Function always_there = look_up("plait_end_call");
  if (always_there == nullptr) throw no_code_for_gpu();
  constexpr int kFirstProgrammatic = 90;
  int made_for = 0;
  PLAIT_CUDA_CALL(function_attribute, &made_for, kMadeForPtx, always_there);
  programmatic_ = made_for >= kFirstProgrammatic;
}

/// Null if the code for this GPU lacks the kernel.
Function Kernels::look_up(const std::string& name) {
  const auto known = functions_.find(name);
  if (known != functions_.end()) return known->second;
  Function function = nullptr;
  for (Library library : libraries()) {
    Kernel kernel = nullptr;
    if (api().library_kernel(&kernel, library, name.c_str()) != kSuccess) continue;
    if (api().kernel_function(&function, kernel) != kSuccess) function = nullptr;
    break;
  }
  functions_[name] = function;
  return function;
}

bool Kernels::has(const std::string& name) { return look_up(name) != nullptr; }

Function Kernels::find(const std::string& name) {
  Function function = look_up(name);
  if (function == nullptr)
    throw Error(ErrorCode::internal, text("kernel {} is not in the device code", name));
  return function;
}

unsigned Kernels::fixed_shared_bytes(Function function) const {
  int bytes = 0;
  PLAIT_CUDA_CALL(function_attribute, &bytes, kFixedSharedBytes, function);
  return static_cast<unsigned>(bytes);
}

void Kernels::allow_shared(Function function, unsigned bytes) {
  constexpr unsigned kWithoutAsking = 48 << 10;
  if (bytes <= kWithoutAsking) return;
  unsigned& allowed = shared_bytes_[function];
  if (allowed >= bytes) return;
  PLAIT_CUDA_CALL(function_set_attribute, function, kMostDynamicSharedBytes,
                  static_cast<int>(bytes));
  allowed = bytes;
}

unsigned Kernels::blocks_a_multiprocessor(Function function, const KernelLaunchConfig& config) {
  allow_shared(function, config.shared_bytes);
  int blocks = 0;
  PLAIT_CUDA_CALL(blocks_a_multiprocessor, &blocks, function, static_cast<int>(config.threads),
                  config.shared_bytes);
  return static_cast<unsigned>(blocks);
}

void Kernels::launch(Function function, const KernelLaunchConfig& config, Stream stream,
                     std::vector<void*> arguments) {
  allow_shared(function, config.shared_bytes);
  LaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (config.programmatic && programmatic_) {
    LaunchAttribute& attribute = attributes[count++];
    attribute.id = kProgrammaticSerialization;
    attribute.value.programmatic_serialization = 1;
  }
  if (config.cluster > 1) {
    LaunchAttribute& attribute = attributes[count++];
    attribute.id = kClusterDimension;
    attribute.value.cluster[0] = config.cluster;
    attribute.value.cluster[1] = attribute.value.cluster[2] = 1;
  }
  const LaunchConfig driver_config{config.blocks,
                                   1,
                                   1,
                                   config.threads,
                                   1,
                                   1,
                                   config.shared_bytes,
                                   stream,
                                   attributes,
                                   count};
  PLAIT_CUDA_CALL(launch, &driver_config, function, arguments.data(), nullptr);
}

}  // namespace plait::cuda
