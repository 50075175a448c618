// Device code that lies in this program or beside this library -> its table, or why there is none.
#include "exec/cuda/device/device_code.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <fstream>

#include "base/text.hpp"

// cmake/kernels.cmake makes both from the kernels: in a program that has them itself, or in
// libplait_kernels.so.
extern "C" {
[[gnu::weak, gnu::visibility("hidden")]] extern const void* const plait_fatbins[];
[[gnu::weak, gnu::visibility("hidden")]] extern const char plait_built_for[];
}

namespace plait::cuda {
namespace {

const void* const kNone[] = {nullptr};

/// The folder of the file that holds this code. The kernel knows its whole path; what the loader
/// was given (dladdr) may start at a working folder that has changed since.
std::string own_folder() {
  const auto here = reinterpret_cast<std::uintptr_t>(&kNone);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long first = 0, end = 0;
    const std::size_t path = line.find('/');
    if (std::sscanf(line.c_str(), "%lx-%lx", &first, &end) != 2 || path == std::string::npos)
      continue;
    if (first <= here && here < end) return line.substr(path, line.rfind('/') + 1 - path);
  }
  return {};
}

/// By its path and for this library alone: a process may hold two plaits, each with its own code.
DeviceCode beside() {
  const std::string path = own_folder() + "libplait_kernels.so";
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return {kNone, "", text("found no device code beside this library: ", why ? why : path)};
  }
  const auto* fatbins = static_cast<const void* const*>(::dlsym(library, "plait_fatbins"));
  const auto* built_for = static_cast<const char*>(::dlsym(library, "plait_built_for"));
  if (fatbins == nullptr || built_for == nullptr)
    return {kNone, "", text("found no table of kernels in ", path)};
  return {fatbins, built_for, ""};
}

DeviceCode find() {
  DeviceCode code =
      plait_fatbins == nullptr ? beside() : DeviceCode{plait_fatbins, plait_built_for, ""};
  if (code.fatbins[0] == nullptr && code.why_none.empty())
    code.why_none = "found a build without device code: build again with nvcc on PATH";
  return code;
}

}  // namespace

const DeviceCode& device_code() {
  static const auto* const once = new DeviceCode(find());
  return *once;
}

}  // namespace plait::cuda
