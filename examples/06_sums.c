/* All ranks sum an array, from C. `python -m plait` says where plait was installed:
 *
 *   gcc examples/06_sums.c $(python -m plait --includes) -L$(python -m plait --libdir) -lplait \
 *     -Wl,-rpath,$(python -m plait --libdir) -o sums
 *   plait launch -n 4 ./sums          (or mpirun -n 4 ./sums, torchrun --no-python ... ./sums)
 */
#include <plait/plait.h>
#include <stdio.h>
#include <stdlib.h>

static plaitComm_t comm;

static void must(plaitResult_t result) {
  if (result == plait_ok) return;
  fprintf(stderr, "%s\n", plaitGetLastError(comm));
  exit(1);
}

int main(void) {
  int rank, ranks;
  float mine[1024], sums[1024];
  must(plaitCommInitFromEnvironment(&comm));
  must(plaitCommRank(comm, &rank));
  must(plaitCommCount(comm, &ranks));
  for (int i = 0; i < 1024; ++i) mine[i] = (float)(i * (rank + 1));
  must(plaitAllReduce(mine, sums, 1024, plait_fp32, plait_sum, comm, NULL));
  printf("rank %d of %d: 1 + ... + %d = %g\n", rank, ranks, ranks, sums[1]);
  must(plaitCommDestroy(comm));
  return 0;
}
