// Persistent requests that plait has a part in: for messages that plait may move, for collectives
// that it serves, and the MPI's own on twins of device memory. A start brings what is sent into
// twins; the end that the program hears of takes what was received out of them.
#pragma once
#include "shims/mpi/rendezvous.hpp"

namespace plait::mpi {

/// How many there are: with none, everything here is the MPI's alone.
extern constinit std::atomic<int> persistent;
inline bool has_persistent() { return persistent.load(std::memory_order_relaxed) != 0; }

/// comm: whose handler hears of errors.
void add_persistent(Handle comm, Handle request, CallStaging staging);
/// One of plait's, which stages for itself; the program's request for it.
void add_persistent(PersistentOp& one, void* request);
/// A collective's request; nothing where it is the MPI's. Collective, as the program's call is.
std::optional<int> init_served(const CollectiveArgs& args, void* request);
/// Before the MPI starts it; nothing where the request is none of these. Its error, of which the
/// handler has heard.
int stage_persistent(Handle request);
/// After that.
void start_persistent(Handle request);
/// Its present operation has ended with `code`, as the status tells; puts what was received where
/// it belongs. is_over: the request is inactive now. Nothing where it is none of these, or did not
/// run. An error that the MPI does not know of.
int complete_persistent(Handle request, int code, void* status, bool is_over);
/// False where it is none of plait's.
bool cancel_persistent(Handle request);
void free_persistent(Handle request);

}  // namespace plait::mpi
