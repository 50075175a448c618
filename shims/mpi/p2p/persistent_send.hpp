// A persistent send that may go by rendezvous. The native request retains the datatype and the
// communicator, since the program may free both at once, and serves starts without a free slot.
#pragma once
#include <memory>
#include <optional>

#include "shims/mpi/args/gpu_memory.hpp"
#include "shims/mpi/p2p/rendezvous.hpp"
#include "shims/mpi/requests/requests.hpp"

namespace plait::mpi {

class PersistentSend {
 public:
  /// args: a message for which may_use_rendezvous() is true. Throws out_of_memory, driver_error.
  PersistentSend(const P2PArgs& args, int to, int tag, Handle comm);
  /// Frees the native request.
  ~PersistentSend();
  PersistentSend(const PersistentSend&) = delete;
  PersistentSend& operator=(const PersistentSend&) = delete;
  /// Returns the buffer for the native request.
  const void* posted() const;
  /// Takes the native request.
  void own(Handle native_request) { native_request_ = native_request; }
  /// Starts a send: by rendezvous if a slot is free and the communicator is not freed, else by the
  /// native request. Returns null and sets `refusal` if the MPI refuses.
  std::unique_ptr<PendingRequest> start(Refusal& refusal);

 private:
  const void* buffer_;
  Count bytes_;
  int to_, tag_;
  Handle comm_;
  RetainedComm retained_;
  std::optional<StagingBuffer> staging_buffer_;  ///< of device memory, for native sends
  Handle native_request_;
};

}  // namespace plait::mpi
