// Non-blocking calls. Each is a generalized request (MPI_Grequest_start) of the native MPI,
// accepted by any MPI function. Completion functions first complete the requests that have ended. A
// thread of plait's runs the calls and uses no MPI: the program's thread level stays unchanged.
#pragma once
#include <atomic>
#include <exception>
#include <memory>
#include <optional>

#include "shims/mpi/requests/errors.hpp"
#include "shims/mpi/requests/job.hpp"
#include "shims/mpi/staging/staging.hpp"

namespace plait::mpi {

/// A pending request: a call of plait's, or a native request on staging buffers.
struct PendingRequest {
  virtual ~PendingRequest() = default;
  /// Returns true once the call has ended and left the results. Called in the program's threads,
  /// one at a time.
  virtual bool has_ended() = 0;
  virtual void fill(void* status) const = 0;
  /// Requests cancellation, in any thread. has_ended(), which may be running, carries it out.
  void cancel() { cancel_requested.store(true); }
  std::atomic<bool> cancel_requested{false};
  /// Returns whether the request ends regardless of later calls of peers; MPI_Finalize then waits
  /// for the request. False for an unmatched receive or an untaken send.
  virtual bool must_end() const { return false; }
  /// Completes the request in the MPI, so that the program sees its end.
  virtual void complete_in_mpi() { native().Grequest_complete(request); }
  Handle request = 0;
  int code = 0;       ///< of the error
  RetainedComm comm;  ///< its handler gets the error

  /// Held by the MPI's request and by the pending list: MPICH drops a request that the program
  /// frees before the end. For a watched request: held by the owner and by the list.
  std::atomic<int> references{2};
  bool is_reported = false;  ///< the MPI has called the handler
  /// What the handler threw while the request was polled, in any MPI function. Rethrown where the
  /// program completes the request.
  std::exception_ptr thrown;
};

/// Number of started requests that are not completed in the MPI.
extern constinit std::atomic<int> pending;
/// Number of generalized requests of plait's that the program has not completed or freed.
extern constinit std::atomic<int> open_grequests;
inline bool has_open_grequests() { return open_grequests.load(std::memory_order_acquire) != 0; }

/// Scope of an operation that needs polling of the MPI to end.
class Polled {
 public:
  Polled();
  ~Polled();
  Polled(const Polled&) = delete;
  Polled& operator=(const Polled&) = delete;
};

/// The request that a native function stores. After an error handler that returns, MPICH returns
/// MPI_SUCCESS and stores no request.
class NativeHandle {
 public:
  /// Returns the argument of the native function.
  void* stored() { return &handle_; }
  Handle handle() const { return native().abi.at(&handle_, 0); }
  /// Returns whether the function that has returned `code` has stored no request.
  bool is_refused(int code) const {
    return code != 0 || native().abi.key(handle()) == native().abi.key(native().abi.no_request);
  }

 private:
  Handle handle_ = native().abi.no_request;
};
/// Code of a call that the MPI has refused, MPI_SUCCESS after an error handler that returns;
/// nothing if the MPI has not refused.
using Refusal = std::optional<int>;
/// Stores the program's handle.
void store_request(Handle handle, void* request);
/// Stores MPI_REQUEST_NULL for the program after a refused call. Returns the call's code.
int refuse_request(int code, void* request);
/// Makes a pending request of a native request on staging buffers.
std::unique_ptr<PendingRequest> make_native_request(Handle native_request, CallStaging staging);
/// Makes and stores a generalized request for a pending request. Errors go to the handler of comm.
int start_grequest(std::unique_ptr<PendingRequest> one, RetainedComm comm, void* request);
/// Returns the error of a request that this thread has completed since clear_errors(), after the
/// handler was called; 0 = no error, or not a request of plait's. The MPI does not get these
/// errors: it would call MPI_COMM_WORLD's handler.
int take_error(Handle request);
void clear_errors();
/// Adds the request to the pending list until the end.
void watch(PendingRequest& one);
/// Drops a reference; deletes the request at zero.
void release_request(PendingRequest* one);
/// Stores the program's request for a native request on staging buffers.
int start_native(Handle comm, Handle native_request, CallStaging staging, void* request);
/// Returns whether the MPI can call complete_ended() in all MPI functions; begin_hook() starts the
/// hook.
bool has_hook();
void begin_hook();
/// The pending requests to poll. With many requests, `some` is the newest and a part of the rest in
/// turn: native functions that poll in each round of a wait must stay quick.
enum class Sweep : std::uint8_t { some, all };
/// Completes requests that have ended in the MPI.
void complete_ended(Sweep sweep = Sweep::some);
/// The same in a Test function, which a program may call seldom.
void complete_in_test();
/// Called before MPI_Finalize: completes requests that must end on all ranks, then drops the rest,
/// whose memory stays with the MPI. Collective over MPI_COMM_WORLD.
void end_requests();
/// Wakes the threads in backoff_sleep(), after a call has ended.
void wake_sleepers();
/// Sleeps for a short time, or until a call ends.
void backoff_sleep(int round);

/// Lets the MPI make progress while the program's thread waits for plait. Returns false in plait's
/// own threads, since they call no MPI.
bool let_mpi_progress();
/// Called before the first let_mpi_progress() and after the last.
void begin_progress();
void end_progress();

/// Marks the program's thread while an exported function runs.
class ProgramThreadScope {
 public:
  ProgramThreadScope() { ++depth; }
  ~ProgramThreadScope() { --depth; }
  ProgramThreadScope(const ProgramThreadScope&) = delete;
  ProgramThreadScope& operator=(const ProgramThreadScope&) = delete;
  static constinit thread_local int depth;
};

/// Runs a blocking completion function: the testing variant test(&flag) in a loop while requests of
/// plait's are pending, then wait().
template <class Test, class Wait>
int wait_until(const Test& test, const Wait& wait) {
  for (int round = 0; pending.load(std::memory_order_acquire) != 0; ++round) {
    complete_ended(round % 8 == 7 ? Sweep::all : Sweep::some);
    int flag = 0;
    const int code = test(&flag);
    if (code != 0 || flag != 0) return code;
    backoff_sleep(round);
  }
  return wait();
}

}  // namespace plait::mpi
