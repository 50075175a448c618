// NCCL functions that the drop-in defines under NCCL's names, and access to the call counters.
#pragma once
#include "comm/trace/call_book.hpp"
#include "comm/transport/nccl/abi.hpp"

#define PLAIT_EXPORT extern "C" [[gnu::visibility("default")]] plait::nccl::Result

PLAIT_EXPORT ncclCommInitRank(plait::nccl::Comm* comm, int ranks, plait::nccl::UniqueId id,
                              int rank);
PLAIT_EXPORT ncclCommInitRankConfig(plait::nccl::Comm* comm, int ranks, plait::nccl::UniqueId id,
                                    int rank, void* config);
PLAIT_EXPORT ncclCommInitRankScalable(plait::nccl::Comm* comm, int ranks, int rank, int id_count,
                                      plait::nccl::UniqueId* ids, void* config);
PLAIT_EXPORT ncclCommInitAll(plait::nccl::Comm* comms, int count, const int* devices);
PLAIT_EXPORT ncclCommSplit(plait::nccl::Comm comm, int color, int key, plait::nccl::Comm* child,
                           void* config);
PLAIT_EXPORT ncclCommShrink(plait::nccl::Comm comm, int* excluded, int count,
                            plait::nccl::Comm* child, void* config, int flags);
PLAIT_EXPORT ncclCommGrow(plait::nccl::Comm comm, int ranks, const plait::nccl::UniqueId* id,
                          int rank, plait::nccl::Comm* child, void* config);
PLAIT_EXPORT ncclCommGetUniqueId(plait::nccl::Comm comm, plait::nccl::UniqueId* id);
PLAIT_EXPORT ncclCommSuspend(plait::nccl::Comm comm, int flags);
PLAIT_EXPORT ncclCommResume(plait::nccl::Comm comm);
PLAIT_EXPORT ncclCommMemStats(plait::nccl::Comm comm, int stat, std::uint64_t* value);
PLAIT_EXPORT ncclCommFinalize(plait::nccl::Comm comm);
PLAIT_EXPORT ncclCommDestroy(plait::nccl::Comm comm);
PLAIT_EXPORT ncclCommAbort(plait::nccl::Comm comm);
PLAIT_EXPORT ncclCommRevoke(plait::nccl::Comm comm, int flags);
PLAIT_EXPORT ncclCommGetAsyncError(plait::nccl::Comm comm, plait::nccl::Result* error);
PLAIT_EXPORT ncclCommCount(plait::nccl::Comm comm, int* count);
PLAIT_EXPORT ncclCommUserRank(plait::nccl::Comm comm, int* rank);
PLAIT_EXPORT ncclCommCuDevice(plait::nccl::Comm comm, int* device);
PLAIT_EXPORT ncclGroupStart();
PLAIT_EXPORT ncclGroupEnd();
PLAIT_EXPORT ncclGroupSimulateEnd(void* info);
PLAIT_EXPORT ncclAllReduce(const void* input, void* output, std::size_t count, int type, int op,
                           plait::nccl::Comm comm, plait::nccl::Stream stream);
PLAIT_EXPORT ncclReduceScatter(const void* input, void* output, std::size_t count, int type, int op,
                               plait::nccl::Comm comm, plait::nccl::Stream stream);
PLAIT_EXPORT ncclAllGather(const void* input, void* output, std::size_t count, int type,
                           plait::nccl::Comm comm, plait::nccl::Stream stream);
PLAIT_EXPORT ncclBroadcast(const void* input, void* output, std::size_t count, int type, int root,
                           plait::nccl::Comm comm, plait::nccl::Stream stream);
PLAIT_EXPORT ncclBcast(void* buffer, std::size_t count, int type, int root, plait::nccl::Comm comm,
                       plait::nccl::Stream stream);
PLAIT_EXPORT ncclReduce(const void* input, void* output, std::size_t count, int type, int op,
                        int root, plait::nccl::Comm comm, plait::nccl::Stream stream);
PLAIT_EXPORT ncclAlltoAll(const void* input, void* output, std::size_t count, int type,
                          plait::nccl::Comm comm, plait::nccl::Stream stream);
PLAIT_EXPORT ncclGather(const void* input, void* output, std::size_t count, int type, int root,
                        plait::nccl::Comm comm, plait::nccl::Stream stream);
PLAIT_EXPORT ncclScatter(const void* input, void* output, std::size_t count, int type, int root,
                         plait::nccl::Comm comm, plait::nccl::Stream stream);
PLAIT_EXPORT ncclAllReduceConfig(const void* input, void* output, std::size_t count, int type,
                                 int op, plait::nccl::Comm comm, plait::nccl::Stream stream,
                                 const void* config);
PLAIT_EXPORT ncclBroadcastConfig(const void* input, void* output, std::size_t count, int type,
                                 int root, plait::nccl::Comm comm, plait::nccl::Stream stream,
                                 const void* config);
PLAIT_EXPORT ncclReduceConfig(const void* input, void* output, std::size_t count, int type, int op,
                              int root, plait::nccl::Comm comm, plait::nccl::Stream stream,
                              const void* config);
PLAIT_EXPORT ncclAllGatherConfig(const void* input, void* output, std::size_t count, int type,
                                 plait::nccl::Comm comm, plait::nccl::Stream stream,
                                 const void* config);
PLAIT_EXPORT ncclReduceScatterConfig(const void* input, void* output, std::size_t count, int type,
                                     int op, plait::nccl::Comm comm, plait::nccl::Stream stream,
                                     const void* config);
PLAIT_EXPORT ncclAlltoAllConfig(const void* input, void* output, std::size_t count, int type,
                                plait::nccl::Comm comm, plait::nccl::Stream stream,
                                const void* config);
PLAIT_EXPORT ncclGatherConfig(const void* input, void* output, std::size_t count, int type,
                              int root, plait::nccl::Comm comm, plait::nccl::Stream stream,
                              const void* config);
PLAIT_EXPORT ncclScatterConfig(const void* input, void* output, std::size_t count, int type,
                               int root, plait::nccl::Comm comm, plait::nccl::Stream stream,
                               const void* config);
PLAIT_EXPORT ncclPutSignal(const void* input, std::size_t count, int type, int peer, void* window,
                           std::size_t offset, int signal, int context, unsigned flags,
                           plait::nccl::Comm comm, plait::nccl::Stream stream);
PLAIT_EXPORT ncclSignal(int peer, int signal, int context, unsigned flags, plait::nccl::Comm comm,
                        plait::nccl::Stream stream);
PLAIT_EXPORT ncclWaitSignal(int count, void* signals, plait::nccl::Comm comm,
                            plait::nccl::Stream stream);
PLAIT_EXPORT ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence,
                                      plait::nccl::Comm comm);
PLAIT_EXPORT ncclRedOpDestroy(int op, plait::nccl::Comm comm);
PLAIT_EXPORT ncclSend(const void* input, std::size_t count, int type, int peer,
                      plait::nccl::Comm comm, plait::nccl::Stream stream);
PLAIT_EXPORT ncclRecv(void* output, std::size_t count, int type, int peer, plait::nccl::Comm comm,
                      plait::nccl::Stream stream);

/// Copies at most `capacity` non-zero rows of counters; returns the number of non-zero rows.
extern "C" [[gnu::visibility("default")]] int plait_nccl_counters(plait::CounterRow* rows,
                                                                  int capacity);

/// Returns the bytes that all communicators of the process hold now in a part of plait's memory,
/// and sets the part's name. Parts count from 0 on; a null name says that there are no more.
extern "C" [[gnu::visibility("default")]] std::uint64_t plait_nccl_memory(int part,
                                                                          const char** name);
