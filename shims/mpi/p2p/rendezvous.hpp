// Large sends by rendezvous: the native MPI matches an RTS header, the receiver reads the payload
// from the sender (RGET). Smaller messages are native. Both ends make progress in has_ended()
// alone, without blocking.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "shims/mpi/abi/status.hpp"
#include "shims/mpi/p2p/rendezvous_slots.hpp"
#include "shims/mpi/requests/persistent.hpp"
#include "shims/mpi/requests/requests.hpp"
#include "shims/mpi/staging/staging.hpp"

namespace plait::mpi {

/// Arguments of an end of a message.
struct P2PArgs {
  const void* buffer;
  Count count;
  Handle type;
};

/// A buffer with receives under way.
struct RecvBuffer;

/// A receive, from the native receive to the data in place: pulls the payload of an RTS header, and
/// copies staged data to the GPU.
class RendezvousRecv {
 public:
  /// Throws out_of_memory, driver_error.
  explicit RendezvousRecv(const P2PArgs& to);
  ~RendezvousRecv();
  RendezvousRecv(const RendezvousRecv&) = delete;
  RendezvousRecv& operator=(const RendezvousRecv&) = delete;
  /// Returns the buffer for the native receive.
  void* posted() const { return posted_; }
  /// Stores a count of 0, before the native receive into another buffer than the program's. MPICH 5
  /// returns 0 from a failed receive after an error handler that is a function, and leaves the
  /// status: a count of 0 then puts nothing back.
  void clear_status(void* status) const {
    if (posted_ != buffer_) set_received_bytes(status, 0);
  }
  /// Called after the native receive has ended with `status`. Returns true once the message has
  /// arrived; stores the size in the status, or the error in `code`.
  bool has_arrived(void* status, int& code);
  /// Waits until the message has arrived.
  int end(void* status);
  /// Called after the native receive was truncated: completes the sender of a rendezvous message.
  void on_truncated(const void* status);

 private:
  std::vector<std::byte> first_bytes(std::size_t bytes) const;
  std::optional<RtsHeader> header() const;
  bool must_wait();
  bool try_complete(void* status, int& code);
  bool try_pull(int& code);
  bool is_abandoned() const;
  void pull_to_host(int& code);
  void finish(void* status);
  void put_back(std::uint64_t bytes);
  void* buffer_;
  Count count_;
  RetainedLayout layout_;
  CallStaging staging_;
  int gpu_ = -1;
  void* posted_;
  RecvBuffer* recv_buffer_ = nullptr;  ///< host memory that may receive an RTS header
  int waited_ = 0;                     ///< rounds waited for the receive into the buffer itself
  std::unique_ptr<std::byte[]> side_buffer_;  ///< if another receive into the buffer is under way
  RendezvousSlot* slot_ = nullptr;
  RtsHeader header_{};  ///< valid with slot_
  RateLimit rate_limit_;
  std::unique_ptr<Pull> pull_;
  bool is_in_place_ = false;  ///< the payload was pulled through the host into place
};

/// Starts a rendezvous send; returns null if the message must be native, or if the MPI has refused
/// the RTS header: sets `refusal` then, and the handler has been called.
std::unique_ptr<PendingRequest> start_rendezvous_send(const P2PArgs& args, int to, int tag,
                                                      Handle comm, Refusal& refusal);
/// Makes the pending request of a native receive into recv's buffer.
std::unique_ptr<PendingRequest> make_recv_request(Handle native_request,
                                                  std::unique_ptr<RendezvousRecv> recv);
/// native_request: the native persistent receive. Throws unsupported if the MPI refuses a further
/// request.
PersistentOp* make_persistent_recv(Handle native_request, std::unique_ptr<RendezvousRecv> recv,
                                   Handle comm);
/// Makes a persistent send or collective. begin(refusal) runs at each start, returns null and sets
/// `refusal` if the MPI refuses. Throws like make_persistent_recv().
PersistentOp* make_persistent_call(std::function<std::unique_ptr<PendingRequest>(Refusal&)> begin,
                                   Handle comm);
/// Returns whether a send goes by rendezvous if a slot is free.
bool may_use_rendezvous(const P2PArgs& args, int to, Handle comm);
/// Returns why not; null if it does.
const char* why_not_rendezvous(const P2PArgs& args, int to, Handle comm);
/// Checks a completed native receive; after a truncated RTS header completes the sender.
int check_truncation(Handle comm, const P2PArgs& to, const void* status, int code);
/// Runs call(status), a blocking native receive into a buffer too small for an RTS header. Returns
/// its error.
template <class Call>
int recv_natively(Handle comm, const P2PArgs& to, void* status, const Call& call) {
  if (!uses_rendezvous()) return call(status);
  const Statuses filled(status, 1, true);
  return check_truncation(comm, to, filled.at(0), call(filled.at(0)));
}
/// Returns whether a receive of this size may get an RTS header while rendezvous is enabled.
bool may_match_header(Handle type, Count count);
/// Makes a request for the result of make(refusal); nothing if that is null without a refusal.
/// Reports errors that make() throws.
template <class Make>
std::optional<int> start_request(Handle comm, void* request, const Make& make) {
  try {
    Refusal refusal;
    std::unique_ptr<PendingRequest> made = make(refusal);
    if (made == nullptr) return refusal ? Refusal(refuse_request(*refusal, request)) : refusal;
    return start_grequest(std::move(made), RetainedComm(comm), request);
  } catch (const std::exception& error) {
    return report(comm, error);
  }
}
/// Waits for the request while the MPI makes progress; returns the error.
int wait_for(PendingRequest& one);

/// Notes a message that the native MPI sends. The template takes functions that send none.
template <class... Arguments>
void note_native_send(Arguments...) {}
void note_native_send(const void* buffer, int count, Handle type, int to, int tag, Handle comm);
void note_native_send(const void* buffer, Count count, Handle type, int to, int tag, Handle comm);

}  // namespace plait::mpi
