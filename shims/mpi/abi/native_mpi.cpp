// Finds the program's MPI at the first MPI call, since Python loads MPI late.
#include "shims/mpi/abi/native_mpi.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "comm/transport/mpi/loaded.hpp"
#include "shims/mpi/p2p/sendrecv.hpp"

namespace plait::mpi {

constinit std::atomic<const NativeMpi*> native_table{nullptr};

namespace {

template <class Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
}

/// Functions that are new in MPI 4 have another name in Open MPI 4.1.
template <class Function>
void look_up_new(void* library, const char* name, const char* early_name, Function& function) {
  look_up(library, name, function);
  if (function == nullptr) look_up(library, early_name, function);
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
#define PLAIT_MPI_FUNCTION(name, parameters) look_up(found.library, "PMPI_" #name, table->name);
#include "shims/mpi/abi/functions.def"
#undef PLAIT_MPI_FUNCTION
#define PLAIT_MPI_COLLECTIVE(name, begin, ...)                              \
  look_up(found.library, "PMPI_" #name, table->small.name);                 \
  look_up(found.library, "PMPI_" #begin, table->small.begin);               \
  look_up(found.library, "PMPI_" #name "_c", table->large.name);            \
  look_up(found.library, "PMPI_" #begin "_c", table->large.begin);          \
  look_up_new(found.library, "PMPI_" #name "_init", "PMPIX_" #name "_init", \
              table->small.name##_init);                                    \
  look_up(found.library, "PMPI_" #name "_init_c", table->large.name##_init);
#define PLAIT_MPI_OTHER PLAIT_MPI_COLLECTIVE
#include "shims/mpi/abi/collectives.def"
#include "shims/mpi/abi/others.def"
#undef PLAIT_MPI_OTHER
#undef PLAIT_MPI_COLLECTIVE
#define PLAIT_MPI_TRANSFER(name, ...)                                               \
  look_up_new(found.library, "PMPI_" #name, "PMPIX_" #name, table->small_p2p.name); \
  look_up(found.library, "PMPI_" #name "_c", table->large_p2p.name);
#include "shims/mpi/abi/p2p.def"
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

bool threads_may_call_at_once() {
  const int multiple = native().abi.thread_multiple;
  int level = multiple;
  return native().Query_thread(&level) != 0 || level >= multiple;
}

}  // namespace plait::mpi
