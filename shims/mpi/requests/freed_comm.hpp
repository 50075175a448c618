// Communicators that the program frees at this moment. MPI runs the delete callbacks of attributes
// then. A callback of the program may use the communicator, after the drop-in's attributes are
// gone. A new attribute would run the callbacks again (MPICH), or stay for good (Open MPI).
#pragma once
#include "shims/mpi/abi/native_mpi.hpp"

namespace plait::mpi {

/// Scope of MPI_Comm_free or MPI_Comm_disconnect in this thread. A delete callback may free another
/// communicator, so scopes nest.
class FreedCommScope {
 public:
  explicit FreedCommScope(Handle comm) : comm_(comm), outer_(innermost_) { innermost_ = this; }
  ~FreedCommScope() { innermost_ = outer_; }
  FreedCommScope(const FreedCommScope&) = delete;
  FreedCommScope& operator=(const FreedCommScope&) = delete;
  /// Returns whether this thread frees the communicator: plait adds no attribute, and calls are
  /// native.
  static bool has(Handle comm) {
    for (const FreedCommScope* one = innermost_; one != nullptr; one = one->outer_)
      if (native().abi.key(one->comm_) == native().abi.key(comm)) return true;
    return false;
  }

 private:
  Handle comm_;
  FreedCommScope* outer_;
  static constinit thread_local FreedCommScope* innermost_;
};

}  // namespace plait::mpi
