// Function table of the program's MPI, looked up in the library itself: the drop-in exports the
// PMPI_ names too, and a lookup by name alone would find the drop-in.
#pragma once
#include <atomic>
#include <string>

#include "shims/mpi/abi/native_functions.hpp"

namespace plait::mpi {

struct NativeMpi : NativeFunctions {
  int (*Query_cuda_support)() = nullptr;          ///< MPIX_; null if missing
  int (*progress_register)(int (*)()) = nullptr;  ///< Open MPI's progress hook
  int (*Async_start)(int (*)(void*), void*,
                     int) = nullptr;  ///< MPICH's progress hook

  /// ULFM's MPIX_ functions; null if missing.
  int (*Comm_is_revoked)(Handle comm, int* flag) = nullptr;
  int (*Comm_get_failed)(Handle comm, void* group) = nullptr;
  int err_proc_failed = 0, err_revoked = 0;  ///< MPIX_ERR_...; 0 if missing
  Abi abi;
  std::string path;  ///< file of the library
};

/// Puts MPI_Isendrecv and MPI_Isendrecv_replace into the table if the MPI needs a replacement;
/// p2p/sendrecv.cpp has them.
void add_isendrecv(NativeMpi& table);

extern constinit std::atomic<const NativeMpi*> native_table;
/// Ends the process if no MPI is loaded: an MPI function was called by mistake.
[[gnu::cold]] const NativeMpi& find_native();

/// Returns the table, which the first call makes, in any thread.
inline const NativeMpi& native() {
  const NativeMpi* const found = native_table.load(std::memory_order_acquire);
  return found != nullptr ? *found : find_native();
}

/// Returns the name of the function at an offset in NativeFunctions.
const char* name_of_function(std::size_t offset);
/// Returns whether several threads may call MPI at once; true if the MPI does not say. Valid after
/// MPI_Init.
bool threads_may_call_at_once();

}  // namespace plait::mpi
