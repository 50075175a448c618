// Finds the table of device code in this program or beside this library.
#include "gpu/device/device_code.hpp"

#include <dlfcn.h>

#include "base/own_folder.hpp"
#include "base/text.hpp"

// Generated from the kernels by cmake/kernels.cmake, into a program or into libplait_kernels.so.
extern "C" {
[[gnu::weak, gnu::visibility("hidden")]] extern const void* const plait_fatbins[];
[[gnu::weak, gnu::visibility("hidden")]] extern const char plait_built_for[];
}

namespace plait::cuda {
namespace {

const void* const kNone[] = {nullptr};

/// Loads the library by path and privately: a process may hold two plaits, each with separate code.
DeviceCode next_to_library() {
  const std::string path = folder_of(&kNone) + "libplait_kernels.so";
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return {kNone, "", text("found no device code beside this library: {}", why ? why : path)};
  }
  const auto* fatbins = static_cast<const void* const*>(::dlsym(library, "plait_fatbins"));
  const auto* built_for = static_cast<const char*>(::dlsym(library, "plait_built_for"));
  if (fatbins == nullptr || built_for == nullptr)
    return {kNone, "", text("found no table of kernels in {}", path)};
  return {fatbins, built_for, ""};
}

DeviceCode find() {
  DeviceCode code =
      plait_fatbins == nullptr ? next_to_library() : DeviceCode{plait_fatbins, plait_built_for, ""};
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
