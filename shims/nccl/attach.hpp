// Attaches plait to a communicator that NCCL has just made, on all ranks or on none. Ranks that are
// all on one host exchange set-up records through shared memory (comm/meet), which connects none of
// NCCL's channels. Other ranks exchange over the communicator itself.
#pragma once
#include <vector>

#include "shims/nccl/group.hpp"

namespace plait::nccl {

/// Enters the communicator's name before NCCL makes the communicator, so that ranks of a host can
/// meet. Allocates the staging of an exchange over NCCL: whether all ranks are on this host is
/// known only afterwards, and allocating may wait for every kernel of the process, so it must be
/// over on all ranks before the first rank exchanges. No staging if the device has no context yet.
/// device: -1 = the thread's current device; configured: the new communicator's configuration;
/// name: empty if plait knows none.
CommSetup prepare(int ranks, int device, const CommConfig& configured, MeetingName name) noexcept;
/// Attaches to communicators that NCCL has made or is making. result: of NCCL's call, success or
/// ncclInProgress. Ready communicators are attached on return, each by a helper thread, since a
/// thread may drive several GPUs. Communicators that are not ready attach in the background;
/// ncclCommGetAsyncError returns ncclInProgress meanwhile (for a child of a non-blocking parent: on
/// the parent first). Returns the result for the program.
Result attach_new(std::vector<NewComm>& made, Result result);
/// Waits at most `wait_s` until attaching has ended. After true, only the caller uses the state.
bool await_attached(const CommState& state, double wait_s);
/// Waits at most `wait_s` until no thread of plait waits for children of this communicator.
bool await_children(const CommState& state, double wait_s);

}  // namespace plait::nccl

/// 1: communicators made from now on stay on NCCL; 0: new communicators attach again. For programs
/// that compare plait and NCCL in a single run. A call by a single rank is enough, as with any
/// refusal.
extern "C" [[gnu::visibility("default")]] void plait_nccl_leave_new(int leave);
/// Returns 1 if this build has kernels, 0 if the build is without nvcc and serves nothing.
extern "C" [[gnu::visibility("default")]] int plait_nccl_has_kernels();
