// Persistent requests that plait takes part in: messages that may go by rendezvous, collectives
// that plait serves, and native requests on staging buffers. A start fills the staging buffers of
// the send side; the completion copies received data back.
#pragma once
#include "shims/mpi/p2p/rendezvous.hpp"

namespace plait::mpi {

/// Number of requests in the table; 0 = all persistent requests are native.
extern constinit std::atomic<int> persistent;
inline bool has_persistent() { return persistent.load(std::memory_order_relaxed) != 0; }

/// Adds a native request on staging buffers. Errors go to the handler of comm.
void add_persistent(Handle comm, Handle request, CallStaging staging);
/// Adds a request of plait's (with staging of its own); stores the program's request.
void add_persistent(PersistentOp& one, void* request);
/// Makes the request of a collective; returns nothing if the collective is native, and `why` then
/// has the reason. Collective over the communicator.
std::optional<int> init_served(const CollectiveArgs& args, void* request, Fallback& why);
/// Called before the MPI starts the request: fills the staging buffers. Returns the error after
/// calling its handler; 0 also for a request that is not in the table.
int stage_persistent(Handle request);
/// Called after the MPI has started the request.
void start_persistent(Handle request);
/// Called after the present operation has ended with `code` and `status`: copies received data
/// back. is_over: the request is inactive now. Returns an error that the MPI does not know; 0 for a
/// request that is inactive or not in the table.
int complete_persistent(Handle request, int code, void* status, bool is_over);
/// Returns false if the request is not plait's.
bool cancel_persistent(Handle request);
void free_persistent(Handle request);

}  // namespace plait::mpi
