/* A C99 program that uses plait.h on device memory: streams, the default stream, in place, graphs,
 * strategies, factors, and refused calls. Values are integers, so that every sum is exact. */
#include "gpu_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_driver.h"
#include "plait/plait.h"

enum { kCount = 5003, kMostRanks = 16 };

typedef struct {
  plaitComm_t comm;
  int rank;
  int ranks;
  void* stream;
  float* in; /* on the GPU, kCount elements per rank, like out */
  float* out;
  float* host; /* results read back */
  char* sentence;
  unsigned long sentence_bytes;
} Rank;

static int said(const Rank* r, const char* what, int line, const char* why) {
  snprintf(r->sentence, r->sentence_bytes, "rank %d, line %d: %s: %s", r->rank, line, what, why);
  return 1;
}

#define DO(call)                                                                      \
  do {                                                                                \
    if ((call) != plait_ok) return said(r, #call, __LINE__, plaitGetLastError(NULL)); \
  } while (0)
#define GPU(call)                                          \
  do {                                                     \
    const int number = (call);                             \
    char why[32];                                          \
    snprintf(why, sizeof why, "driver error %d", number);  \
    if (number != 0) return said(r, #call, __LINE__, why); \
  } while (0)
#define WANT(condition)                                               \
  do {                                                                \
    if (!(condition)) return said(r, #condition, __LINE__, "not so"); \
  } while (0)

static float value(int rank, int index) { return (float)(index % 1000 + 3 * rank); }

static float total(const Rank* r, int index) {
  float sum = 0;
  for (int rank = 0; rank < r->ranks; ++rank) sum += value(rank, index);
  return sum;
}

/* Fresh input, poisoned output. */
static int prepare(Rank* r) {
  const size_t bytes = sizeof(float) * kCount * (size_t)r->ranks;
  for (int i = 0; i < kCount * r->ranks; ++i) r->host[i] = value(r->rank, i);
  GPU(gpu_write(r->in, r->host, bytes));
  GPU(gpu_fill(r->out, 0xab, bytes));
  return 0;
}

static int read_back(Rank* r, const float* from, int count) {
  GPU(gpu_wait_all());
  GPU(gpu_read(r->host, from, sizeof(float) * (size_t)count));
  return 0;
}

#define TRY(step)              \
  do {                         \
    if ((step) != 0) return 1; \
  } while (0)

static int reductions(Rank* r) {
  void* const streams[] = {r->stream, NULL};
  for (int which = 0; which < 2; ++which) {
    TRY(prepare(r));
    DO(plaitAllReduce(r->in, r->out, kCount, plait_fp32, plait_sum, r->comm, streams[which]));
    TRY(read_back(r, r->out, kCount));
    for (int i = 0; i < kCount; ++i) WANT(r->host[i] == total(r, i));
  }
  TRY(prepare(r));
  DO(plaitAllReduce(r->in, r->in, kCount, plait_fp32, plait_max, r->comm, r->stream));
  TRY(read_back(r, r->in, kCount));
  for (int i = 0; i < kCount; ++i) WANT(r->host[i] == value(r->ranks - 1, i));
  TRY(prepare(r));
  DO(plaitReduceScatter(r->in, r->out, kCount, plait_fp32, plait_sum, r->comm, r->stream));
  TRY(read_back(r, r->out, kCount));
  for (int i = 0; i < kCount; ++i) WANT(r->host[i] == total(r, i + kCount * r->rank));
  TRY(prepare(r));
  DO(plaitReduce(r->in, r->rank == 1 ? r->out : NULL, kCount, plait_fp32, plait_min, 1, r->comm,
                 r->stream));
  TRY(read_back(r, r->out, kCount));
  for (int i = 0; i < kCount && r->rank == 1; ++i) WANT(r->host[i] == value(0, i));
  double halves[kMostRanks];
  for (int rank = 0; rank < kMostRanks; ++rank) halves[rank] = 0.5;
  DO(plaitCommSetScalars(r->comm, halves, r->ranks));
  TRY(prepare(r));
  DO(plaitAllReduce(r->in, r->out, kCount, plait_fp32, plait_premul_sum, r->comm, r->stream));
  TRY(read_back(r, r->out, kCount));
  for (int i = 0; i < kCount; ++i) WANT(r->host[i] == 0.5f * total(r, i));
  return 0;
}

/* Two ranks: a message there and back, then both at once. */
static int sends(Rank* r) {
  const int peer = r->rank ^ 1;
  if (peer >= r->ranks) return 0;
  TRY(prepare(r));
  if (r->rank < peer) DO(plaitSend(r->in, kCount, plait_fp32, peer, r->comm, r->stream));
  DO(plaitRecv(r->out, kCount, plait_fp32, peer, r->comm, r->stream));
  if (r->rank > peer) DO(plaitSend(r->in, kCount, plait_fp32, peer, r->comm, r->stream));
  TRY(read_back(r, r->out, kCount));
  for (int i = 0; i < kCount; ++i) WANT(r->host[i] == value(peer, i));
  TRY(prepare(r));
  DO(plaitExchangeWith(r->in, r->out, kCount, plait_fp32, peer, r->comm, r->stream));
  TRY(read_back(r, r->out, kCount));
  for (int i = 0; i < kCount; ++i) WANT(r->host[i] == value(peer, i));
  return 0;
}

static int moves(Rank* r) {
  const int before = (r->rank + r->ranks - 1) % r->ranks;
  TRY(prepare(r));
  DO(plaitAllGather(r->in, r->out, kCount, plait_fp32, r->comm, r->stream));
  TRY(read_back(r, r->out, kCount * r->ranks));
  for (int i = 0; i < kCount * r->ranks; ++i) WANT(r->host[i] == value(i / kCount, i % kCount));
  TRY(prepare(r));
  DO(plaitBroadcast(r->rank == 1 ? r->in : NULL, r->out, kCount, plait_fp32, 1, r->comm,
                    r->stream));
  TRY(read_back(r, r->out, kCount));
  for (int i = 0; i < kCount; ++i) WANT(r->host[i] == value(1, i));
  TRY(prepare(r));
  DO(plaitAllToAll(r->in, r->out, kCount, plait_fp32, r->comm, r->stream));
  TRY(read_back(r, r->out, kCount * r->ranks));
  for (int i = 0; i < kCount * r->ranks; ++i)
    WANT(r->host[i] == value(i / kCount, i % kCount + kCount * r->rank));
  TRY(prepare(r));
  DO(plaitGather(r->in, r->rank == 0 ? r->out : NULL, kCount, plait_fp32, 0, r->comm, r->stream));
  TRY(read_back(r, r->out, kCount * r->ranks));
  for (int i = 0; i < kCount * r->ranks && r->rank == 0; ++i)
    WANT(r->host[i] == value(i / kCount, i % kCount));
  TRY(prepare(r));
  DO(plaitScatter(r->rank == 0 ? r->in : NULL, r->out, kCount, plait_fp32, 0, r->comm, r->stream));
  TRY(read_back(r, r->out, kCount));
  for (int i = 0; i < kCount; ++i) WANT(r->host[i] == value(0, i + kCount * r->rank));
  TRY(prepare(r));
  DO(plaitSendRecv(r->in, r->out, kCount, plait_fp32, r->comm, r->stream));
  TRY(read_back(r, r->out, kCount));
  for (int i = 0; i < kCount; ++i) WANT(r->host[i] == value(before, i));
  TRY(prepare(r));
  DO(plaitCopy(r->rank == 0 ? r->in : NULL, r->rank == 1 ? r->out : NULL, kCount, plait_fp32, 0, 1,
               r->comm, r->stream));
  TRY(read_back(r, r->out, kCount));
  for (int i = 0; i < kCount && r->rank == 1; ++i) WANT(r->host[i] == value(0, i));
  return sends(r);
}

/* Captures two all_reduces, replays them with fresh data, then names kernels. */
static int graphs_and_strategies(Rank* r) {
  const char* const strategies[] = {"one_shot", "two_shot", "tiled", ""};
  void* graph = NULL;
  TRY(prepare(r));
  GPU(gpu_begin_capture(r->stream));
  DO(plaitAllReduce(r->in, r->out, kCount, plait_fp32, plait_sum, r->comm, r->stream));
  DO(plaitAllReduce(r->out, r->out, kCount, plait_fp32, plait_sum, r->comm, r->stream));
  GPU(gpu_end_capture(r->stream, &graph));
  for (int replay = 0; replay < 3; ++replay) {
    TRY(prepare(r));
    GPU(gpu_replay(graph, r->stream));
    TRY(read_back(r, r->out, kCount));
    for (int i = 0; i < kCount; ++i) WANT(r->host[i] == (float)r->ranks * total(r, i));
  }
  GPU(gpu_end_graph(graph));
  for (int which = 0; which < 4; ++which) {
    DO(plaitCommSetStrategy(r->comm, strategies[which]));
    TRY(prepare(r));
    DO(plaitAllReduce(r->in, r->out, kCount, plait_fp32, plait_sum, r->comm, r->stream));
    TRY(read_back(r, r->out, kCount));
    for (int i = 0; i < kCount; ++i) WANT(r->host[i] == total(r, i));
  }
  return 0;
}

/* Wrong arguments of this rank only; no other rank's call waits for them. */
static int refusals(Rank* r) {
  plaitResult_t async = plait_internal;
  float data[8] = {0};
  WANT(plaitAllReduce(r->in, data, 8, plait_fp32, plait_sum, r->comm, r->stream) ==
       plait_invalid_argument);
  WANT(strstr(plaitGetLastError(r->comm), "host memory") != NULL);
  WANT(plaitAllReduce(r->in, r->in + 4, 8, plait_fp32, plait_sum, r->comm, r->stream) ==
       plait_invalid_argument);
  WANT(plaitAllReduce(r->in, r->out, 8, (plaitDataType_t)77, plait_sum, r->comm, r->stream) ==
       plait_invalid_argument);
  WANT(plaitBroadcast(r->in, r->out, 8, plait_fp32, r->ranks, r->comm, r->stream) ==
       plait_invalid_argument);
  WANT(plaitAllReduce(r->in, r->out, 8, plait_fp32, plait_bit_and, r->comm, r->stream) != plait_ok);
  DO(plaitCommGetAsyncError(r->comm, &async));
  WANT(async == plait_ok);
  return 0;
}

/* Makes and destroys a communicator; returns the free memory of the GPU afterwards. */
static int life(Rank* r, const char* rendezvous, size_t* free_bytes) {
  const size_t bytes = sizeof(float) * kCount * (size_t)r->ranks;
  plaitOptions_t options;
  int number = -1;
  GPU(gpu_allocate((void**)&r->in, bytes));
  GPU(gpu_allocate((void**)&r->out, bytes));
  DO(plaitOptionsDefault(&options, sizeof options));
  options.rank = r->rank;
  options.ranks = r->ranks;
  options.rendezvous = rendezvous;
  options.device = r->rank;
  options.arrive_s = 30;
  DO(plaitCommInitRank(&r->comm, &options));
  DO(plaitCommDevice(r->comm, &number));
  WANT(number == r->rank);
  TRY(reductions(r));
  TRY(moves(r));
  TRY(graphs_and_strategies(r));
  TRY(refusals(r));
  DO(plaitBarrier(r->comm));
  DO(plaitCommDestroy(r->comm));
  GPU(gpu_release(r->in));
  GPU(gpu_release(r->out));
  GPU(gpu_free_bytes(free_bytes));
  return 0;
}

/* The driver keeps some memory of the first communicator (16 MiB were seen). A second one leaves
 * nothing once the other ranks have unmapped its memory too. */
static int run(Rank* r, const char* rendezvous) {
  size_t after_first = 0, after_second = 0;
  GPU(gpu_open(r->rank, &r->stream));
  TRY(life(r, rendezvous, &after_first));
  TRY(life(r, rendezvous, &after_second));
  for (int looks = 0; looks < 50000 && after_second < after_first; ++looks)
    GPU(gpu_free_bytes(&after_second));
  WANT(after_second >= after_first);
  return 0;
}

int gpu_c_api_calls(const char* rendezvous, int rank, int ranks, char* sentence,
                    unsigned long sentence_bytes) {
  Rank r = {0};
  r.rank = rank;
  r.ranks = ranks;
  r.sentence = sentence;
  r.sentence_bytes = sentence_bytes;
  r.host = malloc(sizeof(float) * kCount * (size_t)ranks);
  if (r.host == NULL) return said(&r, "malloc", __LINE__, "no memory");
  const int result = run(&r, rendezvous);
  free(r.host);
  return result;
}
