// A communicator that NCCL has just made -> plait attached to it on all ranks, or on none. What is
// exchanged goes over the communicator itself: it reaches exactly the ranks that matter.
#pragma once
#include <vector>

#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

/// What the exchange will need, made before NCCL makes the communicator: allocating may wait for
/// every kernel of the process, so it must be over on all ranks before the first one exchanges.
/// No staging where it cannot be made yet, or need not be. device: -1 = the thread's current one;
/// configured: what the new communicator's configuration says.
Prepared prepare(int ranks, int device, const Configured& configured) noexcept;
/// Enters `comm` in the table and returns its state, not attached yet; null where plait keeps out
/// of it: one rank, table full, no handle. ready = false: NCCL is still making it in the
/// background.
State* enter(Comm comm, bool ready, Prepared prepared);
/// Attaches all of them, each in a helper thread of its own (one thread may drive several GPUs),
/// and returns when they have. ncclSuccess unless the exchange itself broke.
Result attach_now(const std::vector<State*>& states);
/// Starts attaching and returns; ncclCommGetAsyncError says ncclInProgress until it has ended.
void attach_later(State* state);
/// Waits until attaching has ended, at most `wait_s`; from then on only the caller knows the state.
bool await_attached(const State& state, double wait_s);

}  // namespace plait::nccl

/// 1: communicators made from now on stay on NCCL; 0: they attach again. For a program that
/// compares the two in one run; one rank that says so is enough, as with any refusal.
extern "C" [[gnu::visibility("default")]] void plait_nccl_leave_new(int leave);
/// 1 where this build has kernels at all; 0: it was made without nvcc, and serves nothing.
extern "C" [[gnu::visibility("default")]] int plait_nccl_has_kernels();
