// Tears down plait's state after the program has ended the communicator: tells the peers and frees
// memory when no peer can write into it any more (base/deferred_teardown.hpp).
#pragma once
#include <memory>

#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

/// `state` is no longer in the table and has no references. Waits at most attach_s until attaching
/// has ended; a state that still attaches then is never freed. Then waits briefly until this rank's
/// work has ended and all peers have detached, unless a rank was lost or the communicator was
/// aborted. Memory not freed by then is freed later.
void tear_down(std::unique_ptr<CommState> state);

}  // namespace plait::nccl
