// Reads the loader's list without its lock: only the entry of a library that plait holds open, and
// only the pointer to the next entry.
#include "shims/mpi/abi/libraries.hpp"

#include <dlfcn.h>

#include <mutex>
#include <string>

#include "base/own_folder.hpp"
#include "shims/mpi/abi/native_mpi.hpp"

namespace plait::mpi {

constinit std::atomic<const link_map*> mark{nullptr};

namespace {

constexpr char kName[] = "libplait_mark.so";

struct MarkLibrary {
  std::mutex mutex;
  void* library = nullptr;
};

MarkLibrary& mark_library() {
  static auto* const one = new MarkLibrary;
  return *one;
}

const std::string& path() {
  static const auto* const once = new std::string(folder_of(kName) + kName);
  return *once;
}

}  // namespace

const link_map* move_mark_last() {
  // Another thread may hold the mutex and wait for the loader's lock, which this thread may hold.
  const std::unique_lock lock(mark_library().mutex, std::try_to_lock);
  if (!lock.owns_lock()) return nullptr;
  void*& library = mark_library().library;
  if (library != nullptr) {
    if (threads_may_call_at_once()) return nullptr;
    mark.store(nullptr);
    ::dlclose(library);
  }
  library = ::dlopen(path().c_str(), RTLD_NOW | RTLD_LOCAL);
  link_map* found = nullptr;
  if (library != nullptr) ::dlinfo(library, RTLD_DI_LINKMAP, &found);
  return found;
}

void set_mark(const link_map* found) {
  if (found != nullptr) mark.store(found, std::memory_order_release);
}

void remove_mark() { mark.store(nullptr); }

std::uint64_t libraries_loaded() {
  unsigned long long loaded = 0;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        *static_cast<unsigned long long*>(found) = info->dlpi_adds;
        return 1;
      },
      &loaded);
  return loaded;
}

}  // namespace plait::mpi
