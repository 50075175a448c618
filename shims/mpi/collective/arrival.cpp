// Waits in MPI_Init with a non-blocking barrier, so that a long wait can be reported.
#include "shims/mpi/collective/arrival.hpp"

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "shims/mpi/requests/requests.hpp"

namespace plait::mpi {

void wait_for_all_ranks(Handle comm, double warn_after_s) {
  Handle request = 0;
  if (native().Ibarrier(comm, &request) != 0) return;
  const std::int64_t warn_ns = deadline_in(warn_after_s);
  bool has_warned = false;
  int flag = 0;
  for (int round = 0;; ++round) {
    if (native().Test(&request, &flag, native().abi.status_ignore) != 0 || flag != 0) return;
    backoff_sleep(round);
    if (has_warned || now_ns() < warn_ns) continue;
    int rank = -1;
    native().Comm_rank(comm, &rank);
    warn_unasked(rank, text("MPI_Init has waited {} s for ranks that have not reached "
                            "libplait_mpi.so: does each rank of this job run with the drop-in? A "
                            "rank without it (a container that lacks the file: \"cannot be "
                            "preloaded: ignored\") never arrives, and the job hangs (docs/mpi.md)",
                            warn_after_s));
    has_warned = true;
  }
}

}  // namespace plait::mpi
