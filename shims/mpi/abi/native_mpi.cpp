// Finds the program's MPI at the first MPI call, since Python loads MPI late.
#include "shims/mpi/abi/native_mpi.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "comm/transport/mpi/loaded.hpp"

namespace plait::mpi {

constinit std::atomic<const NativeMpi*> native_table{nullptr};

namespace {

template <class Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
}

void look_up_functions(void* library, NativeFunctions& table) {
  for (const NativeName& one : native_names()) {
    void* found = ::dlsym(library, one.name);
    if (found == nullptr && one.early_name != nullptr) found = ::dlsym(library, one.early_name);
    std::memcpy(reinterpret_cast<std::byte*>(&table) + one.offset, &found, sizeof found);
  }
}

/// MPICH has ULFM's codes, but no function that tells which communicators are revoked.
void look_up_ulfm(void* library, NativeMpi& table) {
  look_up(library, "PMPIX_Comm_is_revoked", table.Comm_is_revoked);
  look_up(library, "PMPIX_Comm_get_failed", table.Comm_get_failed);
  if (table.Comm_get_failed == nullptr || table.abi.family == MpiFamily::standard) return;
  const bool is_mpich = table.abi.family == MpiFamily::mpich;
  table.err_proc_failed = is_mpich ? 101 : 75;
  table.err_revoked = is_mpich ? 103 : 77;
}

const NativeMpi* load() {
  LoadedMpi found = find_loaded();
  if (found.library == nullptr) {
    std::fputs(
        "plait: an MPI function was called, but no MPI library is loaded; a program linked to a "
        "static MPI cannot run with libplait_mpi.so preloaded\n",
        stderr);
    std::abort();
  }
  auto* table = new NativeMpi;  // never freed: calls may come while the process ends
  table->path = std::move(found.path);
  table->abi = found.abi;
  look_up_functions(found.library, *table);
  look_up(found.library, "opal_progress_register", table->progress_register);
  look_up(found.library, "PMPIX_Async_start", table->Async_start);
  add_isendrecv(*table);
  look_up(found.library, "MPIX_Query_cuda_support", table->Query_cuda_support);
  look_up_ulfm(found.library, *table);
  return table;
}

}  // namespace

const NativeMpi& find_native() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (native_table.load() == nullptr) native_table.store(load());
  return *native_table.load();
}

const char* name_of_function(std::size_t offset) {
  for (const NativeName& one : native_names())
    if (one.offset == offset) return one.name + 1;  // without the P of PMPI_
  return "MPI";
}

bool threads_may_call_at_once() {
  const int multiple = native().abi.thread_multiple;
  int level = multiple;
  return native().Query_thread(&level) != 0 || level >= multiple;
}

}  // namespace plait::mpi
