// What plait has beside a communicator, once the program has ended that one: told to the other
// ranks, and freed when none of them can store into it any more.
#pragma once
#include <memory>

#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

/// Of a state that is in the table no more. Waits until attaching has ended, at most `wait_s`: a
/// state that is attached to even then stays for good.
void let_go(std::unique_ptr<State> state, double wait_s);

}  // namespace plait::nccl
