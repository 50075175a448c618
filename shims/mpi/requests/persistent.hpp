// Persistent requests that plait takes part in: messages that may go by rendezvous, collectives
// that plait serves, and native requests on staging buffers. A start fills the staging buffers of
// the send side; the completion copies received data back.
#pragma once
#include <atomic>
#include <optional>

#include "shims/mpi/staging/staging.hpp"

namespace plait::mpi {

/// An end of a persistent message, or a persistent collective. From each start on the operation is
/// polled like all pending requests, so any MPI function makes progress on it. The program's
/// request is a separate native request, completed once the message or collective has ended: a
/// function that finds the request complete never waits.
class PersistentOp {
 public:
  /// Returns the program's request.
  virtual Handle handle() const = 0;
  /// Called after the MPI has started the program's request.
  virtual void started() = 0;
  /// Called after the program has completed the request, or has asked whether it is complete
  /// (is_over = false): fills the true status, calls the error handler and returns the error.
  /// Rethrows what the handler threw in a poll, if is_over.
  virtual int end(void* status, bool is_over) = 0;
  virtual void cancel_message() = 0;
  /// Called when the program frees the request, active or not.
  virtual void freed() = 0;

 protected:
  ~PersistentOp() = default;
};

/// Number of requests in the table; 0 = all persistent requests are native.
extern constinit std::atomic<int> persistent;
inline bool has_persistent() { return persistent.load(std::memory_order_relaxed) != 0; }

/// Adds a native request on staging buffers. Errors go to the handler of comm.
void add_persistent(Handle comm, Handle request, CallStaging staging);
/// Adds a request of plait's (with staging of its own); stores the program's request.
void add_persistent(PersistentOp& one, void* request);
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
/// Returns whether the request is active; nothing for a request that is not in the table.
std::optional<bool> is_active_persistent(Handle request);

}  // namespace plait::mpi
