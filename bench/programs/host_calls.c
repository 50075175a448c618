/* Times C calls of CPU ranks: processes of one machine, host memory, the shortest messages.
 *
 *     python -m bench host-calls [--ranks 2] [--pinned] [--turns 41] [--csv FILE]
 *
 * A turn times a series of calls on every rank between two reads of the clock, and counts as long
 * as its slowest rank. Prints the median turn, the fastest and the slowest. `flag` is the machine's
 * least time: each rank raises a flag, and waits for the flags of all others. --pinned keeps each
 * rank on a core of its own. The result of every call is checked. */
#define _GNU_SOURCE
#include <plait/plait.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { most_ranks = 16, most_turns = 1001, most_floats = 1 << 14 };

struct flag {
  _Alignas(64) _Atomic uint32_t value;
};

struct shared {
  struct flag flags[most_ranks];
  struct flag gate[most_ranks];
  double ns[most_ranks][most_turns];
};

struct job {
  int rank, ranks, turns, is_pinned;
  const char* folder;
  const char* csv;
  struct shared* shared;
  plaitComm_t comm;
  float in[most_floats], out[most_floats];
  uint32_t raised, passed;
};

static void die(const char* what) {
  fprintf(stderr, "host_calls: %s\n", what);
  exit(1);
}

static void checked(plaitComm_t comm, plaitResult_t result) {
  if (result != plait_ok) die(plaitGetLastError(comm));
}

static double now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Raises this rank's flag, and waits for the flags of all others. */
static void barrier(struct job* job, struct flag* flags, uint32_t value) {
  atomic_store_explicit(&flags[job->rank].value, value, memory_order_release);
  for (int rank = 0; rank < job->ranks; ++rank)
    for (long spins = 0;; ++spins) {
      const uint32_t found = atomic_load_explicit(&flags[rank].value, memory_order_acquire);
      if ((int32_t)(found - value) >= 0) break;
      if (spins > 2000) sched_yield();
    }
}

static void fill(struct job* job, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    job->in[i] = (float)((i * 7 + (size_t)job->rank * 3 + 1) % 13);
    job->out[i] = -1;
  }
}

static float sum_at(const struct job* job, size_t i) {
  float sum = 0;
  for (int rank = 0; rank < job->ranks; ++rank) sum += (float)((i * 7 + (size_t)rank * 3 + 1) % 13);
  return sum;
}

static void flag_call(struct job* job, size_t count) {
  (void)count;
  barrier(job, job->shared->flags, ++job->raised);
}

static void all_reduce_call(struct job* job, size_t count) {
  checked(job->comm,
          plaitAllReduce(job->in, job->out, count, plait_fp32, plait_sum, job->comm, NULL));
}

static void broadcast_call(struct job* job, size_t count) {
  checked(job->comm, plaitBroadcast(job->in, job->out, count, plait_fp32, 0, job->comm, NULL));
}

static void all_gather_call(struct job* job, size_t count) {
  checked(job->comm, plaitAllGather(job->in, job->out, count, plait_fp32, job->comm, NULL));
}

static void barrier_call(struct job* job, size_t count) {
  (void)count;
  checked(job->comm, plaitBarrier(job->comm));
}

static void all_reduce_check(struct job* job, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (job->out[i] != sum_at(job, i)) die("all_reduce: wrong");
}

static void broadcast_check(struct job* job, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (job->out[i] != (float)((i * 7 + 1) % 13)) die("broadcast: wrong");
}

static int by_size(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

struct program {
  const char* name;
  void (*call)(struct job*, size_t);
  void (*check)(struct job*, size_t);
  int has_bytes;
};

static void show(struct job* job, const struct program* program, size_t bytes, int calls) {
  double slowest[most_turns];
  for (int turn = 0; turn < job->turns; ++turn) {
    slowest[turn] = 0;
    for (int rank = 0; rank < job->ranks; ++rank)
      if (job->shared->ns[rank][turn] > slowest[turn]) slowest[turn] = job->shared->ns[rank][turn];
  }
  qsort(slowest, (size_t)job->turns, sizeof slowest[0], by_size);
  const double median = slowest[job->turns / 2];
  printf("%-11s %6zu B  median %8.0f ns  least %8.0f  most %8.0f\n", program->name, bytes, median,
         slowest[0], slowest[job->turns - 1]);
  fflush(stdout);
  if (job->csv == NULL) return;
  FILE* file = fopen(job->csv, "a");
  if (file == NULL) die("cannot write the CSV file");
  fprintf(file, "%s,%zu,%d,%d,%d,%d,%.1f,%.1f,%.1f\n", program->name, bytes, job->ranks,
          job->is_pinned, job->turns, calls, median, slowest[0], slowest[job->turns - 1]);
  fclose(file);
}

static void measure(struct job* job, const struct program* program, size_t bytes, int calls) {
  const size_t count = bytes / sizeof(float);
  fill(job, count);
  for (int i = 0; i < 200; ++i) program->call(job, count);
  for (int turn = 0; turn < job->turns; ++turn) {
    barrier(job, job->shared->gate, ++job->passed);
    const double begin = now_ns();
    for (int i = 0; i < calls; ++i) program->call(job, count);
    job->shared->ns[job->rank][turn] = (now_ns() - begin) / calls;
    if (program->check != NULL) program->check(job, count);
  }
  barrier(job, job->shared->gate, ++job->passed);
  if (job->rank == 0) show(job, program, bytes, calls);
  barrier(job, job->shared->gate, ++job->passed);
}

static void pin(int rank) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) die("sched_getaffinity");
  int left = rank % CPU_COUNT(&allowed);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || left-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) die("sched_setaffinity");
    return;
  }
}

static void run_rank(struct job* job) {
  if (job->is_pinned) pin(job->rank);
  char place[300];
  snprintf(place, sizeof place, "unix:%s/meet", job->folder);
  plaitOptions_t options;
  checked(NULL, plaitOptionsDefault(&options, sizeof options));
  options.rank = job->rank;
  options.ranks = job->ranks;
  options.rendezvous = place;
  checked(NULL, plaitCommInitRank(&job->comm, &options));
  static const struct program programs[] = {
      {"flag", flag_call, NULL, 0},
      {"barrier", barrier_call, NULL, 0},
      {"all_reduce", all_reduce_call, all_reduce_check, 1},
      {"broadcast", broadcast_call, broadcast_check, 1},
      {"all_gather", all_gather_call, NULL, 1},
  };
  static const size_t sizes[] = {8, 64, 1024, 4096, 16384};
  for (size_t p = 0; p < sizeof programs / sizeof programs[0]; ++p)
    for (size_t s = 0; s < (programs[p].has_bytes ? sizeof sizes / sizeof sizes[0] : 1); ++s)
      measure(job, &programs[p], programs[p].has_bytes ? sizes[s] : 0, 300);
  checked(job->comm, plaitCommDestroy(job->comm));
}

static int number_after(int argc, char** argv, int* i, int least, int most) {
  const int value = ++*i < argc ? atoi(argv[*i]) : least - 1;
  if (value < least || value > most) die("wanted a number in range after an option");
  return value;
}

int main(int argc, char** argv) {
  static struct job job = {.ranks = 2, .turns = 41};
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--pinned") == 0)
      job.is_pinned = 1;
    else if (strcmp(argv[i], "--ranks") == 0)
      job.ranks = number_after(argc, argv, &i, 1, most_ranks);
    else if (strcmp(argv[i], "--turns") == 0)
      job.turns = number_after(argc, argv, &i, 1, most_turns);
    else if (strcmp(argv[i], "--csv") == 0 && ++i < argc)
      job.csv = argv[i];
    else
      die("usage: host_calls [--ranks N] [--pinned] [--turns N] [--csv FILE]");
  }
  char folder[] = "/tmp/host-calls-XXXXXX";
  if (mkdtemp(folder) == NULL) die("mkdtemp");
  job.folder = folder;
  job.shared =
      mmap(NULL, sizeof *job.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (job.shared == MAP_FAILED) die("mmap");
  pid_t children[most_ranks];
  for (job.rank = 0; job.rank < job.ranks; ++job.rank) {
    const pid_t child = children[job.rank] = fork();
    if (child < 0) die("fork");
    if (child > 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_rank(&job);
    exit(0);
  }
  int bad = 0;
  for (int rank = 0; rank < job.ranks; ++rank) {
    int status = 0;
    if (wait(&status) >= 0 && status == 0) continue;
    bad = 1; /* other ranks would wait for this one */
    for (int other = 0; other < job.ranks; ++other) kill(children[other], SIGKILL);
  }
  rmdir(folder);
  return bad;
}
