// NCCL for test programs: a table filled by linking, or by dlopen of a name or path.
// PROGRAM_NCCL_LINKED selects the way at build time (main.cpp).
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "tests/shims/standin/standin.hpp"

namespace program {

using namespace plait::nccl;

#define PROGRAM_FUNCTIONS(X)                                                                       \
  X(ncclGetUniqueId, (UniqueId * id), (id))                                                        \
  X(ncclGetVersion, (int* version), (version))                                                     \
  X(ncclCommInitRank, (Comm * comm, int n, UniqueId id, int rank), (comm, n, id, rank))            \
  X(ncclCommInitRankConfig, (Comm * comm, int n, UniqueId id, int rank, void* config),             \
    (comm, n, id, rank, config))                                                                   \
  X(ncclCommInitRankScalable, (Comm * comm, int n, int rank, int ids, UniqueId* id, void* config), \
    (comm, n, rank, ids, id, config))                                                              \
  X(ncclCommInitAll, (Comm * comms, int n, const int* devices), (comms, n, devices))               \
  X(ncclCommSplit, (Comm comm, int color, int key, Comm* child, void* config),                     \
    (comm, color, key, child, config))                                                             \
  X(ncclCommShrink, (Comm comm, int* out, int n, Comm* child, void* config, int flags),            \
    (comm, out, n, child, config, flags))                                                          \
  X(ncclCommGrow, (Comm comm, int n, const UniqueId* id, int rank, Comm* child, void* config),     \
    (comm, n, id, rank, child, config))                                                            \
  X(ncclCommGetUniqueId, (Comm comm, UniqueId * id), (comm, id))                                   \
  X(ncclCommSuspend, (Comm comm, int flags), (comm, flags))                                        \
  X(ncclCommResume, (Comm comm), (comm))                                                           \
  X(ncclCommMemStats, (Comm comm, int stat, std::uint64_t* value), (comm, stat, value))            \
  X(ncclCommCount, (Comm comm, int* n), (comm, n))                                                 \
  X(ncclCommUserRank, (Comm comm, int* rank), (comm, rank))                                        \
  X(ncclCommCuDevice, (Comm comm, int* device), (comm, device))                                    \
  X(ncclCommFinalize, (Comm comm), (comm))                                                         \
  X(ncclCommDestroy, (Comm comm), (comm))                                                          \
  X(ncclCommAbort, (Comm comm), (comm))                                                            \
  X(ncclCommRevoke, (Comm comm, int flags), (comm, flags))                                         \
  X(ncclCommGetAsyncError, (Comm comm, Result * error), (comm, error))                             \
  X(ncclGroupStart, (), ())                                                                        \
  X(ncclGroupEnd, (), ())                                                                          \
  X(ncclGroupSimulateEnd, (void* info), (info))                                                    \
  X(ncclAllReduce, (const void* in, void* out, std::size_t n, int type, int op, Comm c, Stream s), \
    (in, out, n, type, op, c, s))                                                                  \
  X(ncclAllReduceConfig,                                                                           \
    (const void* in, void* out, std::size_t n, int type, int op, Comm c, Stream s,                 \
     const void* config),                                                                          \
    (in, out, n, type, op, c, s, config))                                                          \
  X(ncclSignal, (int peer, int signal, int context, unsigned flags, Comm c, Stream s),             \
    (peer, signal, context, flags, c, s))                                                          \
  X(ncclWaitSignal, (int n, void* signals, Comm c, Stream s), (n, signals, c, s))                  \
  X(ncclReduceScatter,                                                                             \
    (const void* in, void* out, std::size_t n, int type, int op, Comm c, Stream s),                \
    (in, out, n, type, op, c, s))                                                                  \
  X(ncclAllGather, (const void* in, void* out, std::size_t n, int type, Comm c, Stream s),         \
    (in, out, n, type, c, s))                                                                      \
  X(ncclBroadcast,                                                                                 \
    (const void* in, void* out, std::size_t n, int type, int root, Comm c, Stream s),              \
    (in, out, n, type, root, c, s))                                                                \
  X(ncclBcast, (void* out, std::size_t n, int type, int root, Comm c, Stream s),                   \
    (out, n, type, root, c, s))                                                                    \
  X(ncclReduce,                                                                                    \
    (const void* in, void* out, std::size_t n, int type, int op, int root, Comm c, Stream s),      \
    (in, out, n, type, op, root, c, s))                                                            \
  X(ncclAlltoAll, (const void* in, void* out, std::size_t n, int type, Comm c, Stream s),          \
    (in, out, n, type, c, s))                                                                      \
  X(ncclGather, (const void* in, void* out, std::size_t n, int type, int root, Comm c, Stream s),  \
    (in, out, n, type, root, c, s))                                                                \
  X(ncclScatter, (const void* in, void* out, std::size_t n, int type, int root, Comm c, Stream s), \
    (in, out, n, type, root, c, s))                                                                \
  X(ncclSend, (const void* in, std::size_t n, int type, int peer, Comm c, Stream s),               \
    (in, n, type, peer, c, s))                                                                     \
  X(ncclRecv, (void* out, std::size_t n, int type, int peer, Comm c, Stream s),                    \
    (out, n, type, peer, c, s))                                                                    \
  X(ncclRedOpCreatePreMulSum, (int* op, void* scalar, int type, int where, Comm comm),             \
    (op, scalar, type, where, comm))                                                               \
  X(ncclRedOpDestroy, (int op, Comm comm), (op, comm))

struct NcclTable {
#define PROGRAM_FIELD(name, arguments, names) Result(*name) arguments = nullptr;
  PROGRAM_FUNCTIONS(PROGRAM_FIELD)
#undef PROGRAM_FIELD
};

/// Returns the library that main.cpp opened.
const NcclTable& nccl();

struct TestJob {
  std::string name;
  int ranks = 2;
  bool threads = false;
  UniqueId id{};
  std::atomic<int>* attached = nullptr;  ///< steps that ranks have counted; shared by processes
};

/// Runs a rank of a case; returns the members of a JSON object. Throws if a call fails
/// unexpectedly.
std::string run_case(const TestJob& job, int rank);
/// The same for cases "meet_...": ranks that meet before NCCL connects them (meet_cases.cpp).
std::string run_meeting(const TestJob& job, int rank);

}  // namespace program
