// What plait has beside a communicator, once the program has ended that one: told to the other
// ranks, and freed when none of them can store into it any more (base/deferred_teardown.hpp).
#pragma once
#include <memory>

#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

/// Of a state that is in the table no more, and that nothing refers to. Waits until attaching has
/// ended, at most attach_s: a state that is attached to even then stays for good. Then until this
/// rank's work has ended, and until the others have left, where none of them was lost and the
/// communicator was not aborted; not long, and what is not freed by then is freed later.
void tear_down(std::unique_ptr<CommState> state);

}  // namespace plait::nccl
