// Function table of the program's MPI, looked up in the library itself: the drop-in exports the
// PMPI_ names too, and a lookup by name alone would find the drop-in.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "comm/transport/mpi/abi.hpp"

namespace plait::mpi {

using CopyAttribute = int(Handle comm, int keyval, void* extra, void* in, void* out, int* flag);
using DeleteAttribute = int(Handle comm, int keyval, void* value, void* extra);
using HandleError = void(void* comm, int* code, ...);
using QueryRequest = int(void* extra, void* status);
using FreeRequest = int(void* extra);
using CancelRequest = int(void* extra, int complete);

/// Count and displacement types of MPI_X and of MPI_X_c.
struct IntCounts {
  using N = int;
  using D = int;
};
struct LargeCounts {
  using N = Count;
  using D = std::intptr_t;
};

#define PLAIT_MPI_UNPACKED(...) __VA_ARGS__

/// A pointer is null if the MPI lacks the function.
template <class Width>
struct Collectives {
  using N = typename Width::N;
  using D = typename Width::D;
#define PLAIT_MPI_COLLECTIVE(name, begin, parameters, arguments)        \
  int(*name) parameters = nullptr;                                      \
  int (*begin)(PLAIT_MPI_UNPACKED parameters, void* request) = nullptr; \
  int (*name##_init)(PLAIT_MPI_UNPACKED parameters, Handle info, void* request) = nullptr;
#define PLAIT_MPI_OTHER(name, begin, parameters, ...) \
  PLAIT_MPI_COLLECTIVE(name, begin, parameters, ())
#include "shims/mpi/abi/collectives.def"
#include "shims/mpi/abi/others.def"
#undef PLAIT_MPI_OTHER
#undef PLAIT_MPI_COLLECTIVE
};

template <class Width>
struct P2PFunctions {
  using N = typename Width::N;
#define PLAIT_MPI_TRANSFER(name, comm, parameters, ...) int(*name) parameters = nullptr;
#define PLAIT_MPI_RECV(name, comm, parameters, ...) \
  int (*name)(PLAIT_MPI_UNPACKED parameters, void* status) = nullptr;
#define PLAIT_MPI_ITRANSFER(name, comm, parameters, ...) \
  int (*name)(PLAIT_MPI_UNPACKED parameters, void* request) = nullptr;
#include "shims/mpi/abi/p2p.def"
};

struct NativeMpi {
#define PLAIT_MPI_FUNCTION(name, parameters) int(*name) parameters = nullptr;
#include "shims/mpi/abi/functions.def"
#undef PLAIT_MPI_FUNCTION
  Collectives<IntCounts> small;
  Collectives<LargeCounts> large;
  P2PFunctions<IntCounts> small_p2p;
  P2PFunctions<LargeCounts> large_p2p;
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

extern constinit std::atomic<const NativeMpi*> native_table;
/// Ends the process if no MPI is loaded: an MPI function was called by mistake.
[[gnu::cold]] const NativeMpi& find_native();

/// Returns the table, which the first call makes, in any thread.
inline const NativeMpi& native() {
  const NativeMpi* const found = native_table.load(std::memory_order_acquire);
  return found != nullptr ? *found : find_native();
}

/// Returns whether several threads may call MPI at once; true if the MPI does not say. Valid after
/// MPI_Init.
bool threads_may_call_at_once();

}  // namespace plait::mpi
