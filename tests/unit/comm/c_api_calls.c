/* plait.h as a C99 program uses it: one rank's calls, from making to destroying. */
#include "c_api_calls.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "plait/plait.h"

static int failed(const char* what, plaitResult_t result, char* sentence, size_t size) {
  snprintf(sentence, size, "%s: %s (%s)", what, plaitGetErrorString(result),
           plaitGetLastError(NULL));
  return 1;
}

#define DO(call)                                                                    \
  do {                                                                              \
    const plaitResult_t result = (call);                                            \
    if (result != plait_ok) return failed(#call, result, sentence, sentence_bytes); \
  } while (0)
#define WANT(condition)                                          \
  do {                                                           \
    if (!(condition)) {                                          \
      snprintf(sentence, sentence_bytes, "not so: " #condition); \
      return 1;                                                  \
    }                                                            \
  } while (0)

static int collectives(plaitComm_t comm, int rank, char* sentence, size_t sentence_bytes) {
  enum { kCount = 100, kRanks = 2 };
  float in[kCount * kRanks];
  float out[kCount * kRanks];
  for (int i = 0; i < kCount * kRanks; ++i) in[i] = (float)(i + 1000 * rank);

  DO(plaitAllReduce(in, out, kCount, plait_fp32, plait_sum, comm, NULL));
  for (int i = 0; i < kCount; ++i) WANT(out[i] == (float)(2 * i + 1000));
  DO(plaitReduceScatter(in, out, kCount, plait_fp32, plait_max, comm, NULL));
  for (int i = 0; i < kCount; ++i) WANT(out[i] == (float)(i + kCount * rank + 1000));
  DO(plaitAllGather(in, out, kCount, plait_fp32, comm, NULL));
  for (int i = 0; i < kCount; ++i) WANT(out[i] == (float)i && out[kCount + i] == (float)(i + 1000));
  DO(plaitBroadcast(rank == 1 ? in : NULL, out, kCount, plait_fp32, 1, comm, NULL));
  for (int i = 0; i < kCount; ++i) WANT(out[i] == (float)(i + 1000));
  DO(plaitReduce(in, rank == 0 ? out : NULL, kCount, plait_fp32, plait_min, 0, comm, NULL));
  for (int i = 0; i < kCount && rank == 0; ++i) WANT(out[i] == (float)i);
  DO(plaitAllToAll(in, out, kCount, plait_fp32, comm, NULL));
  for (int i = 0; i < kCount; ++i) WANT(out[i] == (float)(i + kCount * rank));
  for (int i = 0; i < kCount; ++i) WANT(out[kCount + i] == (float)(i + kCount * rank + 1000));
  DO(plaitGather(in, rank == 1 ? out : NULL, kCount, plait_fp32, 1, comm, NULL));
  for (int i = 0; i < kCount && rank == 1; ++i) WANT(out[kCount + i] == (float)(i + 1000));
  DO(plaitScatter(rank == 0 ? in : NULL, out, kCount, plait_fp32, 0, comm, NULL));
  for (int i = 0; i < kCount; ++i) WANT(out[i] == (float)(i + kCount * rank));
  DO(plaitSendRecv(in, out, kCount, plait_fp32, comm, NULL));
  for (int i = 0; i < kCount; ++i) WANT(out[i] == (float)(i + 1000 * (1 - rank)));
  DO(plaitCopy(rank == 0 ? in : NULL, rank == 1 ? out : NULL, kCount, plait_fp32, 0, 1, comm,
               NULL));
  for (int i = 0; i < kCount && rank == 1; ++i) WANT(out[i] == (float)i);
  enum { kOne = 0x3f80, kTwo = 0x4000, kThree = 0x4040 }; /* bf16 */
  static const struct {
    uint16_t ones[8], twos[8];
  } values __attribute__((aligned(16))) = {{kOne, kOne, kOne, kOne, kOne, kOne, kOne, kOne},
                                           {kTwo, kTwo, kTwo, kTwo, kTwo, kTwo, kTwo, kTwo}};
  struct {
    uint16_t residual[8], normed[8];
  } rows __attribute__((aligned(16)));
  memcpy(rows.residual, values.ones, sizeof rows.residual);
  DO(plaitAllReduceRmsNorm(values.ones, rows.residual, values.twos, rows.normed, 1, 8, plait_bf16,
                           plait_bf16, 0.0f, NULL, comm, NULL));
  for (int i = 0; i < 8; ++i) WANT(rows.residual[i] == kThree && rows.normed[i] == kTwo);
  const double thirds[kRanks] = {3.0, 3.0};
  DO(plaitCommSetScalars(comm, thirds, kRanks)); /* means nothing to sends */
  DO(rank == 0 ? plaitSend(in, kCount, plait_fp32, 1, comm, NULL)
               : plaitRecv(out, kCount, plait_fp32, 0, comm, NULL));
  for (int i = 0; i < kCount && rank == 1; ++i) WANT(out[i] == (float)i);
  DO(rank == 0 ? plaitRecv(out, kCount, plait_fp32, 1, comm, NULL)
               : plaitSend(in, kCount, plait_fp32, 0, comm, NULL));
  for (int i = 0; i < kCount && rank == 0; ++i) WANT(out[i] == (float)(i + 1000));
  DO(plaitExchangeWith(in + kCount, out, kCount, plait_fp32, 1 - rank, comm, NULL));
  for (int i = 0; i < kCount; ++i) WANT(out[i] == (float)(i + kCount + 1000 * (1 - rank)));
  WANT(plaitSend(in, kCount, plait_fp32, rank, comm, NULL) == plait_invalid_argument);
  const double halves[kRanks] = {0.5, 0.5};
  DO(plaitCommSetScalars(comm, halves, kRanks));
  DO(plaitAllReduce(in, out, kCount, plait_fp32, plait_premul_sum, comm, NULL));
  for (int i = 0; i < kCount; ++i) WANT(out[i] == (float)i + 500.0f);
  DO(plaitBarrier(comm));
  return 0;
}

/* Blocks of 3 and 5 elements, with gaps between them and in reverse order where they may be. */
static int blocks(plaitComm_t comm, int rank, char* sentence, size_t sentence_bytes) {
  const size_t counts[2] = {3, 5}, displs[2] = {7, 1}, crossed[2] = {2, 1};
  float in[16], out[16];
  for (int i = 0; i < 16; ++i) in[i] = (float)(i + 1000 * rank);
  for (int i = 0; i < 16; ++i) out[i] = -1.0f;
  DO(plaitAllGatherV(in, out, counts, displs, plait_fp32, comm, NULL));
  for (int i = 0; i < 3; ++i) WANT(out[7 + i] == (float)i);
  for (int i = 0; i < 5; ++i) WANT(out[1 + i] == (float)(1000 + i));
  WANT(out[0] == -1.0f && out[6] == -1.0f && out[10] == -1.0f);
  DO(plaitAllGatherV(in, out, counts, NULL, plait_fp32, comm, NULL));
  for (int i = 0; i < 8; ++i) WANT(out[i] == (float)(i < 3 ? i : 1000 + i - 3));
  DO(plaitReduceScatterV(in, out, counts, plait_fp32, plait_sum, comm, NULL));
  for (int i = 0; i < (rank == 0 ? 3 : 5); ++i) WANT(out[i] == (float)(2 * (i + 3 * rank) + 1000));
  /* Both send one element to rank 0, and two to rank 1. */
  const size_t sends[2] = {1, 2}, at[2] = {8, 4};
  const size_t gets[2] = {1 + (size_t)rank, 1 + (size_t)rank};
  DO(plaitAllToAllV(in, sends, at, out, gets, displs, plait_fp32, comm, NULL));
  WANT(out[7] == (float)(rank == 0 ? 8 : 4) && out[1] == (float)(rank == 0 ? 1008 : 1004));
  if (rank == 1) WANT(out[8] == 5.0f && out[2] == 1005.0f);
  DO(plaitGatherV(in, counts[rank], rank == 1 ? out : NULL, rank == 1 ? counts : NULL,
                  rank == 1 ? displs : NULL, plait_fp32, 1, comm, NULL));
  for (int i = 0; i < 5 && rank == 1; ++i) WANT(out[1 + i] == (float)(1000 + i));
  DO(plaitScatterV(rank == 0 ? in : NULL, rank == 0 ? counts : NULL, rank == 0 ? displs : NULL, out,
                   counts[rank], plait_fp32, 0, comm, NULL));
  for (int i = 0; i < (int)counts[rank]; ++i) WANT(out[i] == (float)(i + (rank == 0 ? 7 : 1)));
  WANT(plaitAllGatherV(in, out, counts, crossed, plait_fp32, comm, NULL) ==
       plait_invalid_argument); /* blocks that overlap */
  WANT(plaitAllGatherV(in, out, rank == 0 ? NULL : counts, NULL, plait_fp32, comm, NULL) ==
       plait_invalid_argument);
  WANT(strstr(plaitGetLastError(comm), "counts") != NULL);
  WANT(plaitGatherV(in, counts[1 - rank], out, counts, NULL, plait_fp32, 0, comm, NULL) ==
       plait_mismatch);
  WANT(plaitScatterV(in, NULL, NULL, out, 1, plait_fp32, 0, comm, NULL) == plait_invalid_argument);
  return 0;
}

static int refusals(plaitComm_t comm, int rank, char* sentence, size_t sentence_bytes) {
  float data[8] = {0};
  const size_t odd_count = rank == 1 ? (size_t)-1 : 8;
  WANT(plaitAllReduce(data, data, odd_count, plait_fp32, plait_sum, comm, NULL) ==
       plait_invalid_argument);
  const plaitDataType_t odd_type = rank == 1 ? (plaitDataType_t)77 : plait_fp32;
  WANT(plaitAllReduceRmsNorm(data, data, data, data, 1, rank == 1 ? 7 : 8, plait_bf16, plait_bf16,
                             0.0f, NULL, comm, NULL) == plait_invalid_argument);
  struct {
    uint16_t input[8], residual[8], weight[8], output[8];
  } row __attribute__((aligned(16))) = {{0}, {0}, {0}, {0}};
  for (int i = 0; i < 2; ++i) { /* rank 1's type, then its outtype */
    const plaitDataType_t types[] = {plait_bf16, rank == 1 ? odd_type : plait_bf16};
    WANT(plaitAllReduceRmsNorm(row.input, row.residual, row.weight, row.output, 1, 8, types[1 - i],
                               types[i], 0.0f, NULL, comm, NULL) == plait_invalid_argument);
    WANT(strstr(plaitGetLastError(comm), i == 0 ? " type: wanted" : "outtype: wanted") != NULL);
    WANT(strstr(plaitGetLastError(comm), "found 77") != NULL);
  }
  WANT(plaitAllReduce(data, data, 8, odd_type, plait_sum, comm, NULL) == plait_invalid_argument);
  WANT(strstr(plaitGetLastError(comm), "77") != NULL);
  WANT(plaitAllReduce(data, data, rank == 1 ? 8 : 7, plait_fp32, plait_sum, comm, NULL) ==
       plait_mismatch);
  WANT(plaitAllReduce(data, data, 8, plait_fp32, plait_sum, comm, rank == 1 ? data : NULL) ==
       plait_invalid_argument);
  WANT(plaitAllReduce(NULL, NULL, 0, plait_fp32, plait_sum, comm, data) == plait_no_device);
  WANT(plaitCommSetScalars(comm, NULL, 3) == plait_invalid_argument);
  plaitResult_t async = plait_internal;
  DO(plaitCommGetAsyncError(comm, &async));
  WANT(async == plait_ok);
  WANT(plaitCommSetStrategy(comm, "ring:chunks") == plait_invalid_argument);
  WANT(plaitCommSetStrategy(comm, "none") == plait_invalid_argument);
  WANT(strstr(plaitGetLastError(comm), "found \"none\"") != NULL);
  for (int i = 0; i < 4; ++i) {
    const char* const known[] = {"tiled:blocks=8", "unfused", "ring", ""};
    DO(plaitCommSetStrategy(comm, known[i]));
  }
  WANT(plaitCommSetStrategy(NULL, "ring") == plait_invalid_argument);
  WANT(plaitBarrier(NULL) == plait_invalid_argument);
  WANT(plaitCommInitRank(NULL, NULL) == plait_invalid_argument);
  WANT(plaitCommDestroy(NULL) == plait_ok);
  DO(plaitBarrier(comm));
  DO(plaitCommAbort(comm));
  WANT(plaitBarrier(comm) == plait_aborted);
  return 0;
}

int c_api_calls(const char* rendezvous, int rank, char* sentence, unsigned long sentence_bytes) {
  plaitComm_t comm = NULL;
  plaitOptions_t options;
  int version = 0;
  int number = -1;
  uint64_t staying = 1, bytes = 1;
  DO(plaitGetVersion(&version));
  WANT(version >= 100);
  DO(plaitOptionsDefault(&options, sizeof options));
  options.rank = rank;
  options.ranks = 2;
  options.rendezvous = rendezvous;
  options.arrive_s = 20;
  DO(plaitCommInitRank(&comm, &options));
  DO(plaitCommRank(comm, &number));
  WANT(number == rank);
  DO(plaitCommCount(comm, &number));
  WANT(number == 2);
  DO(plaitCommDevice(comm, &number));
  WANT(number == -1);
  WANT(plaitCommAdoptDevice(NULL, 0) == plait_invalid_argument);
  WANT(plaitCommAdoptDevice(comm, rank == 0 ? 0 : -1) == plait_invalid_argument);
  WANT(plaitCommAdoptDevice(comm, 63) == plait_no_device);
  WANT(plaitCommSuspend(NULL) == plait_invalid_argument);
  WANT(plaitCommSuspend(comm) == plait_no_device);
  WANT(plaitCommResume(comm) == plait_no_device);
  WANT(plaitCommGpuMemory(comm, NULL, &bytes) == plait_invalid_argument);
  DO(plaitCommGpuMemory(comm, &staying, &bytes));
  WANT(staying == 0 && bytes == 0);
  if (collectives(comm, rank, sentence, sentence_bytes) != 0) return 1;
  if (blocks(comm, rank, sentence, sentence_bytes) != 0) return 1;
  if (refusals(comm, rank, sentence, sentence_bytes) != 0) return 1;
  DO(plaitCommDestroy(comm));
  return 0;
}
