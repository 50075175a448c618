// Attaches plait to a communicator that NCCL has just made, on all ranks or on none. Ranks exchange
// set-up records over the communicator itself, which reaches exactly its ranks.
#pragma once
#include <vector>

#include "shims/nccl/group.hpp"

namespace plait::nccl {

/// Allocates the staging of the exchange before NCCL makes the communicator. Allocating may wait
/// for every kernel of the process, so it must be over on all ranks before the first one exchanges.
/// No staging if it cannot be made yet or is not needed. device: -1 = the thread's current one;
/// configured: the new communicator's configuration.
CommSetup prepare(int ranks, int device, const CommConfig& configured) noexcept;
/// Attaches to communicators that NCCL has made or is making. result: of NCCL's call, success or
/// ncclInProgress. Ready communicators are attached on return, each by a helper thread, since one
/// thread may drive several GPUs. The others attach in the background; ncclCommGetAsyncError
/// returns ncclInProgress meanwhile (for a child of a non-blocking parent: on the parent first).
/// Returns the result for the program.
Result attach_new(std::vector<NewComm>& made, Result result);
/// Waits at most `wait_s` until attaching has ended. After true, only the caller uses the state.
bool await_attached(const CommState& state, double wait_s);
/// Waits at most `wait_s` until no thread of plait waits for children of this communicator.
bool await_children(const CommState& state, double wait_s);

}  // namespace plait::nccl

/// 1: communicators made from now on stay on NCCL; 0: they attach again. For programs that compare
/// the two in one run. One rank that calls it is enough, as with any refusal.
extern "C" [[gnu::visibility("default")]] void plait_nccl_leave_new(int leave);
/// Returns 1 if this build has kernels, 0 if it was made without nvcc and serves nothing.
extern "C" [[gnu::visibility("default")]] int plait_nccl_has_kernels();
