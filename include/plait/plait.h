/* The C API of plait, modelled on NCCL's, for the drop-ins and for other languages (C99). Every
 * rank makes the same calls in the same order. On host memory a call returns when this rank's
 * result is complete; on device memory it is enqueued on a stream and returns at once. Functions
 * return a result and throw no exception; plaitGetLastError() has the message. */
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

/* Options of a communicator. Call plaitOptionsDefault first. `size` lets the struct grow: a program
 * built before a field existed gets that field's default, and plait does not write beyond `size`.
 * Strings are read during the call only; NULL means "". */
typedef struct {
  size_t size;
  int rank;
  int ranks;
  const char* rendezvous; /* "unix:PATH", "fd:N[,N...]", "" = from the launcher's environment */
  const char* topology;   /* a shipped topology, a JSON file, "" = the machine as found */
  const char* masks;      /* links to leave out, separated by commas */
  /* Defaults: PLAIT_ARRIVE_S and PLAIT_DEADLINE_S. */
  double arrive_s;        /* seconds to wait for a rank that has not yet entered a call */
  double deadline_s;      /* seconds to wait inside a call */
  int device;             /* CUDA ordinal of this rank's GPU; -1 = none, -2 = by the launcher */
  int sm_budget;          /* most thread blocks of a call on the GPU; 0 = the fastest */
  PLAIT_ANONYMOUS union {
    int overlap_compute;  /* not 0: large calls leave SMs to computation, as under NCCL */
    int beside_computing; /* the former name of overlap_compute */
  };
  int graph_mixing; /* not 0: graphs and eager calls run in launch order (docs/devices.md) */
  /* Only plans that sum in this order: "rank_order", "tree", "tree_rounded" (docs/same_bits.md);
   * "" = PLAIT_SUM_ORDER. */
  const char* sum_order;
} plaitOptions_t;

/* 10000 * major + 100 * minor + patch. */
plaitResult_t plaitGetVersion(int* version);
/* The fixed text of a result: "peer lost". Never NULL. */
const char* plaitGetErrorString(plaitResult_t result);
/* The message of this thread's last error on this communicator, or (comm NULL) on any.
 * Never NULL; valid until this thread's next call. */
const char* plaitGetLastError(plaitComm_t comm);

/* size: sizeof(plaitOptions_t). */
plaitResult_t plaitOptionsDefault(plaitOptions_t* options, size_t size);
plaitResult_t plaitCommInitRank(plaitComm_t* comm, const plaitOptions_t* options);
/* Takes rank, ranks and bootstrap address from torchrun, mpirun, Slurm or PLAIT_*. */
plaitResult_t plaitCommInitFromEnvironment(plaitComm_t* comm);
plaitResult_t plaitCommRank(plaitComm_t comm, int* rank);
plaitResult_t plaitCommCount(plaitComm_t comm, int* ranks);
/* Ends every pending and later call of this rank. May be called from any thread; does not contact
   other ranks. On GPUs such calls end without a result and without an error of their stream. Other
   ranks' calls on host memory that wait for this rank fail at once with plait_aborted; on GPUs they
   fail after deadline_s (5 s by default) at the latest. */
plaitResult_t plaitCommAbort(plaitComm_t comm);
/* Frees the communicator. No call may be pending. NULL is no error. */
plaitResult_t plaitCommDestroy(plaitComm_t comm);

/* Sets the strategy of later calls: "ring" or "ring:segments=4"; NULL or "" = plait chooses. Must
 * be the same on all ranks. */
plaitResult_t plaitCommSetStrategy(plaitComm_t comm, const char* strategy);
/* Sets this rank's factor for plait_premul_sum (default 1). On device memory it must be the same on
 * all ranks, unless plaitCommSetScalars is used. */
plaitResult_t plaitCommSetScalar(plaitComm_t comm, double scalar);
/* Sets every rank's factor, in rank order; `count` = number of ranks, or 0 = back to the factor of
 * plaitCommSetScalar. */
plaitResult_t plaitCommSetScalars(plaitComm_t comm, const double* scalars, int count);
/* The CUDA ordinal of this rank's GPU, or -1. */
plaitResult_t plaitCommDevice(plaitComm_t comm, int* device);
/* Gives a communicator without a GPU the GPU of this ordinal (-2 = by the launcher). All ranks call
 * it together, each with its own device. If one rank cannot, all ranks return that rank's error,
 * and the communicator still serves host memory. plait_invalid_argument if it has a GPU already. */
plaitResult_t plaitCommAdoptDevice(plaitComm_t comm, int device);
/* Frees the communicator's GPU memory until plaitCommResume. All ranks call it together. The call
 * waits for all work on this rank's GPU, then for the peers. Addresses stay reserved: captured
 * graphs are right again afterwards. Meanwhile calls on device memory return
 * plait_invalid_argument. plait_no_device without a GPU, plait_unsupported over several nodes. */
plaitResult_t plaitCommSuspend(plaitComm_t comm);
/* Takes the memory again, at the same addresses. All ranks call it together. After
 * plait_out_of_memory on any rank the communicator can only be destroyed. */
plaitResult_t plaitCommResume(plaitComm_t comm);
/* Bytes of GPU memory on this rank: those that plaitCommSuspend leaves, and those that it frees
 * (counted also while the communicator is suspended). */
plaitResult_t plaitCommGpuMemory(plaitComm_t comm, uint64_t* staying, uint64_t* suspendable);
/* Stores the error of calls on the GPU so far in *async: a rank that did not enter a call
 * (plait_timeout) or died (plait_peer_lost). Does not block. */
plaitResult_t plaitCommGetAsyncError(plaitComm_t comm, plaitResult_t* async);

/* Counts are in elements, as in NCCL. A buffer that the collective does not use on a rank may be
 * NULL there. In place: as in NCCL. stream: a cudaStream_t or CUstream. If a buffer is device
 * memory (and the communicator has a device), the call is enqueued on `stream`; NULL = the legacy
 * default stream. The call may be captured into a graph; errors in arguments are returned on this
 * rank alone. On host memory `stream` must be NULL. If both buffers are NULL, a stream other than
 * NULL marks a call on device memory. */
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
/* Sends `count` elements to each rank and receives as many from each. */
plaitResult_t plaitAllToAll(const void* sendbuff, void* recvbuff, size_t count,
                            plaitDataType_t type, plaitComm_t comm, void* stream);
plaitResult_t plaitGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                          plaitDataType_t type, int root, plaitComm_t comm, void* stream);
plaitResult_t plaitScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                           plaitDataType_t type, int root, plaitComm_t comm, void* stream);
/* Sends to rank + 1 and receives from rank - 1 (mod ranks). */
plaitResult_t plaitSendRecv(const void* sendbuff, void* recvbuff, size_t count,
                            plaitDataType_t type, plaitComm_t comm, void* stream);
/* Copies rank src's sendbuff to rank dst's recvbuff. All ranks call it. */
plaitResult_t plaitCopy(const void* sendbuff, void* recvbuff, size_t count, plaitDataType_t type,
                        int src, int dst, plaitComm_t comm, void* stream);
/* Sums rows over all ranks, adds the residual, and normalises each row (RMSNorm), as a
 * tensor-parallel layer does: residual += sum; recvbuff = residual / sqrt(mean(residual^2) +
 * epsilon) * weight. The bits are those of plaitAllReduce and the norm behind it
 * (plait/rms_norm.hpp states every rounding); on GPUs of one host usually one kernel makes the
 * call. Rows of `hidden` elements (a multiple of 8, at most 16384) lie one behind another. type:
 * plait_bf16 or plait_fp16, of sendbuff, residual and weight. outtype: type, or plait_fp8e4m3,
 * whose values are divided by *scale (in the memory of the buffers; NULL = 1). residual is read and
 * replaced. recvbuff may be sendbuff if the types are equal. Buffers are aligned to 16 bytes. */
plaitResult_t plaitAllReduceRmsNorm(const void* sendbuff, void* residual, const void* weight,
                                    void* recvbuff, size_t rows, size_t hidden,
                                    plaitDataType_t type, plaitDataType_t outtype, float epsilon,
                                    const float* scale, plaitComm_t comm, void* stream);
/* Blocks with a count each: counts and displacements are in elements, by rank; a count may be 0.
 * displs: offset of each rank's block in the buffer; NULL = blocks without gaps, in rank order. In
 * host memory blocks may lie in any order and with gaps, which are not touched. On device memory
 * blocks must lie in rank order without gaps; other displacements are plait_unsupported. In place:
 * this rank's block at its place in the larger buffer; an all-to-all may be in place in host memory
 * only. Lists are read during the call only.
 *
 * Every rank passes all counts: rank r gives counts[r] elements to all, or gets counts[r] elements
 * of the sum. Counts that differ between ranks are plait_mismatch on host memory; on device memory
 * the call then never completes. */
plaitResult_t plaitAllGatherV(const void* sendbuff, void* recvbuff, const size_t* counts,
                              const size_t* displs, plaitDataType_t type, plaitComm_t comm,
                              void* stream);
plaitResult_t plaitReduceScatterV(const void* sendbuff, void* recvbuff, const size_t* counts,
                                  plaitDataType_t type, plaitRedOp_t op, plaitComm_t comm,
                                  void* stream);
/* Every rank passes the counts that it knows: elements that it sends to each rank and gets from
 * each. Lists that only the root knows are not read on other ranks, and may be NULL there. Ranks
 * exchange these counts on the host first, also for device memory. If a count that a rank expects
 * differs from the count that its peer sends, all ranks get plait_mismatch and no data moves. */
plaitResult_t plaitAllToAllV(const void* sendbuff, const size_t* sendcounts, const size_t* sdispls,
                             void* recvbuff, const size_t* recvcounts, const size_t* rdispls,
                             plaitDataType_t type, plaitComm_t comm, void* stream);
plaitResult_t plaitGatherV(const void* sendbuff, size_t sendcount, void* recvbuff,
                           const size_t* recvcounts, const size_t* displs, plaitDataType_t type,
                           int root, plaitComm_t comm, void* stream);
plaitResult_t plaitScatterV(const void* sendbuff, const size_t* sendcounts, const size_t* displs,
                            void* recvbuff, size_t recvcount, plaitDataType_t type, int root,
                            plaitComm_t comm, void* stream);
/* Messages between this rank and rank `peer` alone. Two ranks must make their sends, receives and
 * exchanges with each other in the same order; the first of them waits on the host until the peer
 * has reached its first too. A send completes when the peer has received it, so two ranks that both
 * send first wait for each other: plaitExchangeWith sends and receives at once. */
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
