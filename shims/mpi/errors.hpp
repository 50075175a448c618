// How the program hears of an error of a call that plait has a part in: its code, and whose error
// handler is called. A call may end after the program has freed its communicator's handle, and
// under ULFM the MPI has codes of its own for lost ranks and revoked communicators.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "plait/error.hpp"
#include "shims/mpi/real.hpp"

namespace plait::mpi {

class CommState;

/// plait's own code for it; of a lost rank and a revoked communicator the MPI's, where it has one.
int error_code(const std::exception& caught);
/// The error handler of the communicator hears of a code that the MPI has not raised; 0 is none.
int call_errhandler(Handle comm, int code);
/// The same of an error; its code. Under ULFM that waits a second at most for the MPI to hear of
/// the lost rank or the revocation, which the program may ask it for next.
int report(Handle comm, const std::exception& caught);
/// What a function of the drop-in does: no exception leaves it, since its caller is C. The
/// communicator's error handler hears of the error.
template <class Body>
[[gnu::always_inline]] inline int guarded(Handle comm, const Body& body) {
  try {
    return body();
  } catch (const std::exception& caught) {
    return report(comm, caught);
  }
}

/// True every 10 ms from the first look on, for questions that each look is too often for.
class RateLimit {
 public:
  bool is_due();

 private:
  std::int64_t next_ns_ = 0;
};

/// Whether the MPI says which communicators the program has revoked (ULFM, in Open MPI 5).
inline bool has_ulfm() { return real().Comm_is_revoked != nullptr; }
bool is_revoked(Handle comm);
/// Throws Error(aborted) where it is.
void throw_if_revoked(Handle comm);
/// The MPI's code where ULFM says that it is, or that it has lost ranks; 0 = neither yet.
int fault_in(Handle comm);

struct CommRecord;

/// A program's communicator for a call that ends later.
class RetainedComm {
 public:
  /// None: MPI_COMM_WORLD's handler hears of errors.
  RetainedComm() = default;
  /// Of a handle that the MPI has taken for a call.
  explicit RetainedComm(Handle comm);
  /// As told() and report(). Where the program has freed it, its handler is called with a
  /// communicator of this rank alone.
  int call_errhandler(int code) const;
  int report(const std::exception& caught) const;
  bool is_revoked() const;
  /// The code of an error that a call ended with. Nothing while the MPI may yet hear of its cause;
  /// `since_ns` is 0 at the first asking.
  std::optional<int> code_of(const Error& error, std::int64_t& since_ns) const;

 private:
  std::shared_ptr<CommRecord> record_;
};

/// In MPI_Init, before any is made.
void begin_retained_comms();

/// A blocking call of plait's, while the program may revoke its communicator: let_mpi_progress()
/// then ends the call, by aborting its state, or where ranks are only about to meet (null), by
/// Error(aborted).
class RevocationScope {
 public:
  RevocationScope(Handle comm, CommState* state);
  ~RevocationScope();
  RevocationScope(const RevocationScope&) = delete;
  RevocationScope& operator=(const RevocationScope&) = delete;
  /// At this thread's innermost. May throw.
  static void look();

 private:
  Handle comm_;
  CommState* state_;
  RateLimit rate_limit_;
  RevocationScope* outer_;
};

}  // namespace plait::mpi
