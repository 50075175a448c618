// One message between two ranks, from the call to its end: the MPI's own, or one whose header the
// MPI matches and whose bytes the receiver pulls. Both ends take part by has_ended() alone, which
// waits for nobody.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "shims/mpi/rendezvous_slots.hpp"
#include "shims/mpi/requests.hpp"
#include "shims/mpi/staging.hpp"
#include "shims/mpi/status.hpp"

namespace plait::mpi {

/// Of one end of a message, what a program passes.
struct P2PArgs {
  const void* buffer;
  Count count;
  Handle type;
};

/// A buffer that receives are under way to.
struct RecvBuffer;

/// What the MPI receives, until it is where the program wants it: a header's message is pulled,
/// and what was staged goes to the GPU.
class RendezvousRecv {
 public:
  /// Throws out_of_memory, driver_error.
  explicit RendezvousRecv(const P2PArgs& to);
  ~RendezvousRecv();
  RendezvousRecv(const RendezvousRecv&) = delete;
  RendezvousRecv& operator=(const RendezvousRecv&) = delete;
  /// What the MPI is to receive into.
  void* posted() const { return posted_; }
  /// The MPI has received, as the status says; true once the message has arrived, with its size in
  /// the status, or the error in `code`.
  bool has_arrived(void* status, int& code);
  /// Waits for that.
  int end(void* status);
  /// The MPI has received a part, since there was no room for all: where plait moves the message,
  /// its sender goes on.
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
  RecvBuffer* recv_buffer_ = nullptr;  ///< of host memory that may get a header
  int waited_ = 0;                     ///< times, for the one that receives into the buffer itself
  std::unique_ptr<std::byte[]> side_buffer_;  ///< for a buffer that another receive is under way to
  MessageSlot* slot_ = nullptr;
  RtsHeader header_{};  ///< where there is a slot
  RateLimit rate_limit_;
  std::unique_ptr<Pull> pull_;
  bool is_in_place_ = false;  ///< what was pulled through the host
};

/// A message that plait moves, offered to its receiver; null where it is the MPI's.
std::unique_ptr<PendingRequest> start_rendezvous_send(const P2PArgs& args, int to, int tag,
                                                      Handle comm);
/// A receive that the MPI has begun into the delivery's memory.
std::unique_ptr<PendingRequest> make_recv_request(Handle native,
                                                  std::unique_ptr<RendezvousRecv> recv);
/// A persistent request's messages, of which this is one end, or its collective. From each start on
/// it is asked for its end as all is that is under way, so that it goes on in whatever function the
/// program is. The program's request is another than the one that sends or receives: the MPI ends
/// it once the message is there, or the collective has ended, so a function that finds it ended
/// never waits.
class PersistentOp {
 public:
  /// The program's request.
  virtual Handle handle() const = 0;
  /// The MPI has started that.
  virtual void started() = 0;
  /// The program's function has found it ended: the true status, and the error, of which the
  /// handler has been told.
  virtual int end(void* status) = 0;
  virtual void cancel_message() = 0;
  /// The program frees its request, which may run.
  virtual void freed() = 0;

 protected:
  ~PersistentOp() = default;
};
/// native: the MPI's persistent request that receives. Throws unsupported, where the MPI refuses
/// another.
PersistentOp* make_persistent_recv(Handle native, std::unique_ptr<RendezvousRecv> recv,
                                   Handle comm);
/// Of a send, or of a collective. begin(code): at each start; null where the MPI refuses it, with
/// its error. Throws as that one.
PersistentOp* make_persistent_call(std::function<std::unique_ptr<PendingRequest>(int&)> begin,
                                   Handle comm);
/// Whether plait takes such a message, if a slot is free.
bool may_use_rendezvous(const P2PArgs& args, int to, Handle comm);
/// Such a receive has ended so: where a header was cut, its sender goes on.
int check_truncation(Handle comm, const P2PArgs& to, const void* status, int code);
/// call(status) is the MPI's blocking receive into such a buffer, which has no room for a header.
/// Its error.
template <class Call>
int recv_natively(Handle comm, const P2PArgs& to, void* status, const Call& call) {
  if (!uses_rendezvous()) return call(status);
  const Statuses filled(status, 1, true);
  return check_truncation(comm, to, filled.at(0), call(filled.at(0)));
}
/// Whether a receive with such room may get a header, where messages are plait's.
bool may_match_header(Handle type, Count count);
/// Gives what make(code) begins a request; nothing where that is nothing, and no error. Errors that
/// it throws are reported.
template <class Make>
std::optional<int> start_request(Handle comm, void* request, const Make& make) {
  try {
    int code = 0;
    std::unique_ptr<PendingRequest> made = make(code);
    if (made == nullptr) return code == 0 ? std::nullopt : std::optional(code);
    return start_grequest(std::move(made), RetainedComm(comm), request);
  } catch (const std::exception& error) {
    return report(comm, error);
  }
}
/// Waits, while the MPI's other work goes on; its error.
int wait_for(PendingRequest& one);

/// A message that the MPI sends by itself. Other functions' arguments are none.
template <class... Arguments>
void note_native_send(Arguments...) {}
void note_native_send(const void* buffer, int count, Handle type, int to, int tag, Handle comm);
void note_native_send(const void* buffer, Count count, Handle type, int to, int tag, Handle comm);

}  // namespace plait::mpi
