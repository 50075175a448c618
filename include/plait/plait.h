/* The C API: NCCL-shaped calls, for the drop-ins and for other languages. C99. Every rank makes the
 * same calls in the same order. On host memory a call returns when this rank's result is complete;
 * on device memory it is put on a stream and returns at once. No exception crosses; what went wrong
 * is the result, and its sentence plaitGetLastError(). */
#ifndef PLAIT_PLAIT_H
#define PLAIT_PLAIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct plaitComm* plaitComm_t;

/* plait_ok, plait_invalid_argument, plait_timeout, plait_peer_lost, ...: see errors.def. */
typedef enum {
#define PLAIT_ERROR(name, number, kind, exit_code, python_class, nccl_result, mpi_class, text) \
  plait_##name = number,
#include "plait/errors.def"
#undef PLAIT_ERROR
  plaitResult_count
} plaitResult_t;

/* plait_int8, plait_fp32, plait_bf16, ...: see types.def. */
typedef enum {
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) plait_##name,
#include "plait/types.def"
#undef PLAIT_TYPE
  plaitDataType_count
} plaitDataType_t;

/* plait_sum, plait_prod, plait_min, plait_max, plait_avg, ...: see reduce_ops.def. */
typedef enum {
#define PLAIT_REDUCE_OP(name, on_floats, on_integers) plait_##name,
#include "plait/reduce_ops.def"
#undef PLAIT_REDUCE_OP
  plaitRedOp_count
} plaitRedOp_t;

/* Anonymous unions are an extension of C99. */
#if defined(__GNUC__) && !defined(__cplusplus)
#define PLAIT_ANONYMOUS __extension__
#else
#define PLAIT_ANONYMOUS
#endif

/* How a communicator is made. Fill with plaitOptionsDefault first; `size` lets the struct grow: a
 * program built before a field was there is served with that field's default, and has no more
 * written than it has room for. Strings are read during the call only; NULL is as good as "". */
typedef struct {
  size_t size;
  int rank;
  int ranks;
  const char* rendezvous; /* "unix:PATH", "fd:N[,N...]", "" = from the launcher's environment */
  const char* topology;   /* a shipped topology, a JSON file, "" = the machine as found */
  const char* masks;      /* links left out, by commas */
  double arrive_s;        /* how long to wait for a rank that has not yet entered a call */
  double deadline_s;      /* how long to wait inside a call */
  int device;             /* CUDA ordinal of this rank's GPU; -1 = none, -2 = by the launcher */
  int sm_budget;          /* most blocks of a call on the GPU; 0 = the fastest */
  PLAIT_ANONYMOUS union {
    int overlap_compute;  /* not 0: large calls leave SMs to computation, as under NCCL */
    int beside_computing; /* the former name of overlap_compute */
  };
  int graph_mixing; /* not 0: graphs keep their order beside other calls (docs/devices.md) */
} plaitOptions_t;

/* 10000 * major + 100 * minor + patch. */
plaitResult_t plaitGetVersion(int* version);
/* The fixed text of a result: "peer lost". Never NULL. */
const char* plaitGetErrorString(plaitResult_t result);
/* The sentence of this thread's last error, on this communicator or (comm NULL) on any.
 * Never NULL; valid until this thread's next call. */
const char* plaitGetLastError(plaitComm_t comm);

/* size: sizeof(plaitOptions_t). */
plaitResult_t plaitOptionsDefault(plaitOptions_t* options, size_t size);
plaitResult_t plaitCommInitRank(plaitComm_t* comm, const plaitOptions_t* options);
/* Rank, ranks and meeting place from torchrun, mpirun, Slurm or PLAIT_*. */
plaitResult_t plaitCommInitFromEnvironment(plaitComm_t* comm);
plaitResult_t plaitCommRank(plaitComm_t comm, int* rank);
plaitResult_t plaitCommCount(plaitComm_t comm, int* ranks);
/* Ends every pending and later call of this rank; any thread, contacts nobody. On GPUs such calls
   end without a result and without an error of their stream. Other ranks' calls that wait for them
   fail deadline_s (5 s, unless set) later, unless their programs abort too. */
plaitResult_t plaitCommAbort(plaitComm_t comm);
/* Frees it. No call may be pending. NULL is no error. */
plaitResult_t plaitCommDestroy(plaitComm_t comm);

/* The strategy of this rank's later calls, "ring" or "ring:chunks=4"; NULL or "" = plait chooses.
 * Must be set alike on all ranks. */
plaitResult_t plaitCommSetStrategy(plaitComm_t comm, const char* strategy);
/* This rank's factor for plait_premul_sum; 1 at first. On device memory it must be the same on all
 * ranks, unless plaitCommSetScalars says otherwise. */
plaitResult_t plaitCommSetScalar(plaitComm_t comm, double scalar);
/* Every rank's factor, in rank order: `count` = ranks of them, or 0 = plaitCommSetScalar's again.
 */
plaitResult_t plaitCommSetScalars(plaitComm_t comm, const double* scalars, int count);
/* The CUDA ordinal of this rank's GPU, or -1. */
plaitResult_t plaitCommDevice(plaitComm_t comm, int* device);
/* What calls on the GPU have met so far, in *async: a rank that did not come (plait_timeout) or
 * died (plait_peer_lost). Waits for nothing. */
plaitResult_t plaitCommGetAsyncError(plaitComm_t comm, plaitResult_t* async);

/* Counts are elements, as in NCCL. A rank whose output or input a collective does not use may pass
 * NULL for it. In place: as in NCCL.
 * stream: a cudaStream_t or CUstream. Where a buffer is device memory (and the communicator has a
 * device), the call is put on it, NULL being the legacy default stream, and may be captured into a
 * graph; wrong arguments are then told to this rank alone. On host memory it must be NULL. Where
 * both buffers are NULL a stream other than NULL says that this is a call on device memory. */
plaitResult_t plaitAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                             plaitDataType_t type, plaitRedOp_t op, plaitComm_t comm, void* stream);
plaitResult_t plaitReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                 plaitDataType_t type, plaitRedOp_t op, plaitComm_t comm,
                                 void* stream);
plaitResult_t plaitAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                             plaitDataType_t type, plaitComm_t comm, void* stream);
plaitResult_t plaitBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                             plaitDataType_t type, int root, plaitComm_t comm, void* stream);
plaitResult_t plaitReduce(const void* sendbuff, void* recvbuff, size_t count, plaitDataType_t type,
                          plaitRedOp_t op, int root, plaitComm_t comm, void* stream);
/* count elements to and from each rank. */
plaitResult_t plaitAllToAll(const void* sendbuff, void* recvbuff, size_t count,
                            plaitDataType_t type, plaitComm_t comm, void* stream);
plaitResult_t plaitGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                          plaitDataType_t type, int root, plaitComm_t comm, void* stream);
plaitResult_t plaitScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                           plaitDataType_t type, int root, plaitComm_t comm, void* stream);
/* To rank + 1, from rank - 1 (mod ranks). */
plaitResult_t plaitSendRecv(const void* sendbuff, void* recvbuff, size_t count,
                            plaitDataType_t type, plaitComm_t comm, void* stream);
/* Rank src's sendbuff becomes rank dst's recvbuff. All ranks call it. */
plaitResult_t plaitCopy(const void* sendbuff, void* recvbuff, size_t count, plaitDataType_t type,
                        int src, int dst, plaitComm_t comm, void* stream);
/* Blocks that have a count each: counts and displacements are elements, by rank; a count may be 0.
 * displs: where each rank's block begins in the buffer; NULL = one block behind the other. In host
 * memory blocks may lie in any order and with gaps, which are not touched; on device memory
 * they lie one behind another, and other displacements are plait_unsupported. In place: this rank's
 * block in its place of the larger buffer; an all-to-all may be in place in host memory alone.
 * Lists are read during the call only.
 *
 * Every rank passes all counts (counts that differ between ranks are plait_mismatch on host memory,
 * and a call that is never complete on device memory): rank r gives counts[r] elements to all, or
 * gets counts[r] elements of the sum. */
plaitResult_t plaitAllGatherV(const void* sendbuff, void* recvbuff, const size_t* counts,
                              const size_t* displs, plaitDataType_t type, plaitComm_t comm,
                              void* stream);
plaitResult_t plaitReduceScatterV(const void* sendbuff, void* recvbuff, const size_t* counts,
                                  plaitDataType_t type, plaitRedOp_t op, plaitComm_t comm,
                                  void* stream);
/* Every rank passes the counts that it knows: what it sends to each rank and gets of each. Lists
 * that only the root knows are not read on others, where they may be NULL. Ranks show each other
 * these counts on the host first, also for device memory; where one sends what the other does not
 * expect, all get plait_mismatch, and nothing is moved. */
plaitResult_t plaitAllToAllV(const void* sendbuff, const size_t* sendcounts, const size_t* sdispls,
                             void* recvbuff, const size_t* recvcounts, const size_t* rdispls,
                             plaitDataType_t type, plaitComm_t comm, void* stream);
plaitResult_t plaitGatherV(const void* sendbuff, size_t sendcount, void* recvbuff,
                           const size_t* recvcounts, const size_t* displs, plaitDataType_t type,
                           int root, plaitComm_t comm, void* stream);
plaitResult_t plaitScatterV(const void* sendbuff, const size_t* sendcounts, const size_t* displs,
                            void* recvbuff, size_t recvcount, plaitDataType_t type, int root,
                            plaitComm_t comm, void* stream);
/* Between this rank and rank `peer` alone: what the one sends the other receives. Two ranks' sends,
 * receives and exchanges with each other come in the same order on both; the first waits on the
 * host until the other rank has come to its first too. A send is complete when the peer has it in
 * hand, so two ranks that each send first wait for each other: plaitExchangeWith does both at once.
 */
plaitResult_t plaitSend(const void* sendbuff, size_t count, plaitDataType_t type, int peer,
                        plaitComm_t comm, void* stream);
plaitResult_t plaitRecv(void* recvbuff, size_t count, plaitDataType_t type, int peer,
                        plaitComm_t comm, void* stream);
plaitResult_t plaitExchangeWith(const void* sendbuff, void* recvbuff, size_t count,
                                plaitDataType_t type, int peer, plaitComm_t comm, void* stream);
plaitResult_t plaitBarrier(plaitComm_t comm);

#ifdef __cplusplus
}
#endif

#endif
