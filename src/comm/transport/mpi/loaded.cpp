// Finds an MPI that the process has already loaded, and opens none. The search walks all loaded
// objects, since Python loads MPI privately.
#include "comm/transport/mpi/loaded.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstring>

#include "base/env.hpp"

namespace plait::mpi {
namespace {

bool begins(const char* word, const char* with) {
  return std::strncmp(word, with, std::strlen(with)) == 0;
}

/// True for libmpi.so*, libmpich.so*, libmpi_abi.so*, and Cray's libmpi_NAME.so.12.
bool is_mpi(const char* path) {
  const char* slash = std::strrchr(path, '/');
  const char* base = slash == nullptr ? path : slash + 1;
  if (begins(base, "libmpi.so") || begins(base, "libmpich.so") || begins(base, "libmpi_abi.so"))
    return true;
  return begins(base, "libmpi_") && std::strstr(base, ".so.12") != nullptr;
}

}  // namespace

// Libraries are opened after the walk: dl_iterate_phdr holds the loader's lock.
LoadedMpi find_loaded() {
  std::string paths;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        if (is_mpi(info->dlpi_name))
          *static_cast<std::string*>(data) += info->dlpi_name + std::string("\n");
        return 0;
      },
      &paths);
  for (const std::string& path : split(paths, '\n')) {
    if (path.empty()) continue;
    void* handle = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (handle != nullptr && ::dlsym(handle, "PMPI_Init") != nullptr)
      return {handle, path, read_abi(handle, path.find("libmpi_abi.so") != std::string::npos)};
    if (handle != nullptr) ::dlclose(handle);
  }
  return {};
}

}  // namespace plait::mpi
