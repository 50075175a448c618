// Only an MPI that is in the process already counts: the drop-in opens none. Python loads its MPI
// late and privately, so the look is at the first call of MPI and over all objects.
#include "shims/mpi/real.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/env.hpp"

namespace plait::mpi {

constinit std::atomic<const Real*> found_real{nullptr};

namespace {

bool begins(const char* word, const char* with) {
  return std::strncmp(word, with, std::strlen(with)) == 0;
}

/// libmpi.so*, libmpich.so*, libmpi_abi.so*, and Cray's libmpi_NAME.so.12.
bool is_mpi(const char* path) {
  const char* slash = std::strrchr(path, '/');
  const char* base = slash == nullptr ? path : slash + 1;
  if (begins(base, "libmpi.so") || begins(base, "libmpich.so") || begins(base, "libmpi_abi.so"))
    return true;
  return begins(base, "libmpi_") && std::strstr(base, ".so.12") != nullptr;
}

struct Search {
  void* handle = nullptr;
  std::string path;
};

/// Opening is done after the walk: dl_iterate_phdr holds the loader's lock.
Search find() {
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
    if (handle != nullptr && ::dlsym(handle, "PMPI_Init") != nullptr) return {handle, path};
    if (handle != nullptr) ::dlclose(handle);
  }
  return {};
}

template <class Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
}

const Real* load() {
  const Search search = find();
  if (search.handle == nullptr) {
    std::fputs(
        "plait: a function of MPI was called, and no MPI library is loaded; programs linked "
        "to a static MPI cannot run with libplait_mpi.so preloaded\n",
        stderr);
    std::abort();
  }
  auto* table = new Real;  // kept for the life of the process: calls may come while it ends
  table->path = search.path;
  table->abi = read_abi(search.handle, search.path.find("libmpi_abi.so") != std::string::npos);
#define PLAIT_MPI_FUNCTION(name, parameters) look_up(search.handle, "PMPI_" #name, table->name);
#include "shims/mpi/functions.def"
#undef PLAIT_MPI_FUNCTION
#define PLAIT_MPI_COLLECTIVE(name, begin, parameters, arguments) \
  look_up(search.handle, "PMPI_" #name, table->small.name);      \
  look_up(search.handle, "PMPI_" #begin, table->small.begin);    \
  look_up(search.handle, "PMPI_" #name "_c", table->large.name); \
  look_up(search.handle, "PMPI_" #begin "_c", table->large.begin);
#include "shims/mpi/collectives.def"
#undef PLAIT_MPI_COLLECTIVE
  return table;
}

}  // namespace

const Real& find_real() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (found_real.load() == nullptr) found_real.store(load());
  return *found_real.load();
}

}  // namespace plait::mpi
