// The MPI that the program uses -> a table of its functions, taken from the library itself: the
// drop-in owns the PMPI_ names too, so looking them up by name alone would find the drop-in.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "comm/mpi/abi.hpp"

namespace plait::mpi {

using CopyAttribute = int(Handle comm, int keyval, void* extra, void* in, void* out, int* flag);
using DeleteAttribute = int(Handle comm, int keyval, void* value, void* extra);
using HandleError = void(void* comm, int* code, ...);
using QueryRequest = int(void* extra, void* status);
using FreeRequest = int(void* extra);
using CancelRequest = int(void* extra, int complete);

/// Types of counts and displacements: of MPI_X, and of MPI_X_c.
struct IntCounts {
  using N = int;
  using D = int;
};
struct LargeCounts {
  using N = Count;
  using D = std::intptr_t;
};

#define PLAIT_MPI_UNPACKED(...) __VA_ARGS__

/// Null where the MPI has no such function.
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
#include "shims/mpi/collectives.def"
#include "shims/mpi/others.def"
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
#include "shims/mpi/p2p.def"
};

struct RealMpi {
#define PLAIT_MPI_FUNCTION(name, parameters) int(*name) parameters = nullptr;
#include "shims/mpi/functions.def"
#undef PLAIT_MPI_FUNCTION
  Collectives<IntCounts> small;
  Collectives<LargeCounts> large;
  P2PFunctions<IntCounts> small_p2p;
  P2PFunctions<LargeCounts> large_p2p;
  int (*Query_cuda_support)() = nullptr;          ///< of MPIX_; null where the MPI does not say
  int (*progress_register)(int (*)()) = nullptr;  ///< Open MPI's hook
  int (*Async_start)(int (*)(void*), void*, int) = nullptr;  ///< MPICH's
  /// ULFM's, of MPIX_; null where the MPI has none.
  int (*Comm_is_revoked)(Handle comm, int* flag) = nullptr;
  int (*Comm_get_failed)(Handle comm, void* group) = nullptr;
  int err_proc_failed = 0, err_revoked = 0;  ///< MPIX_ERR_...; 0 where the MPI has none
  Abi abi;
  std::string path;  ///< the file it came from
};

extern constinit std::atomic<const RealMpi*> found_real;
/// Ends the process where there is no MPI: then nobody can have called it but by mistake.
[[gnu::cold]] const RealMpi& find_real();

/// Found at the first call, any thread.
inline const RealMpi& real() {
  const RealMpi* const found = found_real.load(std::memory_order_acquire);
  return found != nullptr ? *found : find_real();
}

/// Whether several threads may be in the MPI at once; true where it does not say. Since MPI_Init.
bool threads_may_call_at_once();

}  // namespace plait::mpi
