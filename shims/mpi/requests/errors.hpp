// Errors of calls that plait takes part in: the MPI code, and the error handler that is called. A
// call may end after the program has freed the communicator's handle. Under ULFM, lost ranks and
// revoked communicators have the MPI's own codes.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "plait/error.hpp"
#include "shims/mpi/abi/native_mpi.hpp"

namespace plait::mpi {

/// What the revocation of a communicator ends.
class Abortable {
 public:
  /// Ends all calls with Error(aborted), on all ranks. Any thread.
  virtual void abort() = 0;

 protected:
  ~Abortable() = default;
};

/// Returns plait's code for an error; the MPI's for a lost rank or a revoked communicator, if any.
int error_code(const std::exception& caught);
/// Calls the communicator's error handler with a code that the MPI has not raised; 0 = no error.
/// Returns the code.
int call_errhandler(Handle comm, int code);
/// Rethrows the exception that the caller has caught if the program has thrown it: an error handler
/// or a reduction operation that ran in a native function. plait itself throws Error, bad_alloc and
/// system_error.
void rethrow_program_exception(const std::exception& caught);
/// Calls the communicator's error handler with the code of an error; returns the code. Rethrows an
/// exception of the program. Under ULFM waits up to a second until the MPI knows of the lost rank
/// or the revocation, since the program may query the MPI next.
int report(Handle comm, const std::exception& caught);
/// Thrown after the native MPI has failed in an exchange of plait's in MPI_Init, or on a revoked
/// communicator. The MPI has called the error handler already.
struct NativeFailure {
  int code;  ///< the MPI's, for the program
};
/// Runs the body of an exported function. The caller is C, so plait's exceptions are reported to
/// the communicator's error handler and do not leave. Exceptions of the program pass, as in the
/// MPI.
template <class Body>
[[gnu::always_inline]] inline int guarded(Handle comm, const Body& body) {
  try {
    return body();
  } catch (const NativeFailure& failed) {
    return failed.code;
  } catch (const std::exception& caught) {
    return report(comm, caught);
  }
}

/// Returns true once every 10 ms, from the first call on; for checks too slow for every round.
class RateLimit {
 public:
  bool is_due();

 private:
  std::int64_t next_ns_ = 0;
};

/// Returns whether the MPI can tell which communicators are revoked (ULFM, in Open MPI 5).
inline bool has_ulfm() { return native().Comm_is_revoked != nullptr; }
bool is_revoked(Handle comm);
/// Throws Error(aborted) if the communicator is revoked.
void throw_if_revoked(Handle comm);
/// Returns ULFM's code if the communicator is revoked or has lost ranks; 0 = neither so far.
int fault_in(Handle comm);

struct CommRecord;

/// A program's communicator, retained for a call that ends later.
class RetainedComm {
 public:
  /// Errors go to MPI_COMM_WORLD's handler.
  RetainedComm() = default;
  /// Takes a handle that the MPI has accepted for a call.
  explicit RetainedComm(Handle comm);
  /// Like the functions above. After the program has freed the communicator, the handler is called
  /// with a communicator of this rank alone.
  int call_errhandler(int code) const;
  int report(const std::exception& caught) const;
  bool is_revoked() const;
  /// Returns the communicator; nothing if the program has freed the communicator.
  std::optional<Handle> handle() const;
  /// Returns whether the program has freed the communicator.
  bool is_freed() const;
  /// Returns the code of the error that a call ended with; nothing while the MPI may still learn
  /// of the cause. `since_ns` starts as 0.
  std::optional<int> code_of(const Error& error, std::int64_t& since_ns) const;

 private:
  std::shared_ptr<CommRecord> record_;
};

/// Called by MPI_Init, before any RetainedComm exists.
void begin_retained_comms();
/// Frees the error handlers of freed communicators that no RetainedComm names any more. Called in a
/// thread that may call MPI: as communicators come and go, and before MPI_Finalize.
void free_unused_handlers();

/// Scope of a blocking call of plait's whose communicator the program may revoke meanwhile.
/// let_mpi_progress() then ends the call: aborts `state`, or throws Error(aborted) during set-up
/// (null state).
class RevocationScope {
 public:
  RevocationScope(Handle comm, Abortable* state);
  ~RevocationScope();
  RevocationScope(const RevocationScope&) = delete;
  RevocationScope& operator=(const RevocationScope&) = delete;
  /// Checks the innermost scope of this thread. May throw.
  static void look();

 private:
  Handle comm_;
  Abortable* state_;
  RateLimit rate_limit_;
  RevocationScope* outer_;
};

}  // namespace plait::mpi
