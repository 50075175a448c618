// Loads the blobs that cmake/kernels.cmake embeds (plait_fatbins, null-terminated).
#include "exec/cuda/kernels.hpp"

#include "base/text.hpp"
#include "plait/error.hpp"

extern "C" const void* const plait_fatbins[];

namespace plait::cuda {
namespace {

std::vector<Library> load_all() {
  std::vector<Library> loaded;
  try {
    for (const void* const* fatbin = plait_fatbins; *fatbin != nullptr; ++fatbin) {
      Library library = nullptr;
      PLAIT_CUDA_CALL(library_load, &library, *fatbin, nullptr, nullptr, 0, nullptr, nullptr, 0);
      loaded.push_back(library);
    }
  } catch (...) {
    for (Library library : loaded) api().library_unload(library);
    throw;
  }
  return loaded;
}

/// Loaded once a process and never unloaded, for the ranks of all contexts; the driver puts the
/// code into contexts made later too. Loading takes some 12 ms, and of what it took for several
/// communicators at once the driver did not give all back (bench/NOTES.md).
const std::vector<Library>& libraries() {
  static const auto* const once = new std::vector<Library>(load_all());
  return *once;
}

}  // namespace

bool has_device_code() { return plait_fatbins[0] != nullptr; }

Kernels::Kernels() {
  if (!has_device_code())
    throw Error(ErrorCode::unsupported,
                "wanted kernels, found a build without device code: build again with nvcc on PATH");
  (void)libraries();
}

Function Kernels::look_up(const std::string& name) {
  const auto known = functions_.find(name);
  if (known != functions_.end()) return known->second;
  Function function = nullptr;
  for (Library library : libraries()) {
    Kernel kernel = nullptr;
    if (api().library_kernel(&kernel, library, name.c_str()) != kSuccess) continue;
    PLAIT_CUDA_CALL(kernel_function, &function, kernel);
    break;
  }
  functions_[name] = function;
  return function;
}

bool Kernels::has(const std::string& name) { return look_up(name) != nullptr; }

Function Kernels::find(const std::string& name) {
  Function function = look_up(name);
  if (function == nullptr) throw Error(ErrorCode::internal, text("no kernel is called ", name));
  return function;
}

void Kernels::launch(Function function, const Spread& spread, Stream stream,
                     std::vector<void*> arguments) {
  constexpr unsigned kWithoutAsking = 48 << 10;
  if (spread.shared_bytes > kWithoutAsking) {
    unsigned& allowed = shared_bytes_[function];
    if (allowed < spread.shared_bytes) {
      PLAIT_CUDA_CALL(function_set_attribute, function, kMostDynamicSharedBytes,
                      static_cast<int>(spread.shared_bytes));
      allowed = spread.shared_bytes;
    }
  }
  LaunchAttribute attribute{};
  attribute.id = kProgrammaticSerialization;
  attribute.value.programmatic_serialization = 1;
  const LaunchConfig config{spread.blocks,
                            1,
                            1,
                            spread.threads,
                            1,
                            1,
                            spread.shared_bytes,
                            stream,
                            &attribute,
                            spread.programmatic ? 1u : 0u};
  PLAIT_CUDA_CALL(launch, &config, function, arguments.data(), nullptr);
}

}  // namespace plait::cuda
