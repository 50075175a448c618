// A communicator that NCCL has just made -> plait attached to it on all ranks, or on none. What is
// exchanged goes over the communicator itself: it reaches exactly the ranks that matter.
#pragma once
#include <vector>

#include "shims/nccl/group.hpp"

namespace plait::nccl {

/// What the exchange will need, made before NCCL makes the communicator: allocating may wait for
/// every kernel of the process, so it must be over on all ranks before the first one exchanges.
/// No staging where it cannot be made yet, or need not be. device: -1 = the thread's current one;
/// configured: what the new communicator's configuration says.
CommSetup prepare(int ranks, int device, const CommConfig& configured) noexcept;
/// After NCCL has made these communicators, or begun to: `result` is what it returned, success or
/// ncclInProgress. Those that are ready are attached when this returns, each in a helper thread of
/// its own, since one thread may drive several GPUs. The others attach in the background, and
/// ncclCommGetAsyncError says ncclInProgress until that has ended: of a child whose parent does not
/// block, the parent's first. Returns what the program's call returns.
Result attach_new(std::vector<NewComm>& made, Result result);
/// Waits until attaching has ended, at most `wait_s`; from then on only the caller knows the state.
bool await_attached(const CommState& state, double wait_s);
/// The same of children that a thread of plait's waits for.
bool await_children(const CommState& state, double wait_s);

}  // namespace plait::nccl

/// 1: communicators made from now on stay on NCCL; 0: they attach again. For a program that
/// compares the two in one run; one rank that says so is enough, as with any refusal.
extern "C" [[gnu::visibility("default")]] void plait_nccl_leave_new(int leave);
/// 1 where this build has kernels at all; 0: it was made without nvcc, and serves nothing.
extern "C" [[gnu::visibility("default")]] int plait_nccl_has_kernels();
