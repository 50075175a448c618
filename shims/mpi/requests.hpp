// Non-blocking calls: each is a generalized request of the MPI's own, so any function takes it.
// Who asks for its end, through any of MPI's functions for that, completes it first; plait's part
// runs in a thread that calls no MPI, so the program's thread level stays what it asked for.
#pragma once
#include <memory>
#include <optional>

#include "plait/error.hpp"
#include "shims/mpi/serve.hpp"

namespace plait::mpi {

/// One that is under way: plait's, or one of the MPI's own on memory that stands for a GPU's.
struct PendingRequest {
  virtual ~PendingRequest() = default;
  /// True once it has ended and left its results. In the program's threads, one at a time.
  virtual bool has_ended() = 0;
  virtual void fill(void* status) const = 0;
  /// Said in any thread: has_ended() carries it out, which may be ending the request meanwhile.
  void cancel() { cancel_requested.store(true); }
  std::atomic<bool> cancel_requested{false};
  /// Whether it ends whatever other ranks still call: not so what nothing was sent to, or what
  /// nobody receives. MPI_Finalize waits for these alone.
  virtual bool must_end() const { return false; }
  /// To the MPI, so that the program hears of the end.
  virtual void complete_in_mpi() { real().Grequest_complete(request); }
  Handle request = 0;
  int code = 0;       ///< of its error
  RetainedComm comm;  ///< whose handler hears of that
  /// The MPI's request, and the list of what is under way: MPICH lets go of a request that a
  /// program frees before it has ended. Of one that is watched: its owner, and the list.
  std::atomic<int> references{2};
  bool is_reported = false;  ///< the MPI has told the handler
};

struct CollectiveRequest : PendingRequest {
  CollectiveRequest(std::shared_ptr<CommState> in, bool ranks_agree)
      : state(std::move(in)), abortable(state), agrees(ranks_agree) {
    comm = state->retained_comm();
  }
  bool has_ended() override;
  void fill(void* status) const override;
  bool must_end() const override { return true; }
  std::shared_ptr<CommState> state;    ///< until it has run
  std::weak_ptr<CommState> abortable;  ///< the same
  bool agrees;                         ///< ranks tell each other first where their buffers lie
  Participation participation;
  CollectiveRequest* next = nullptr;  ///< in its state
  std::optional<Error> error;         ///< written before `ended`
  std::atomic<bool> ended{false};

 private:
  RateLimit rate_limit_;
  std::int64_t failed_ns_ = 0;
};

/// Requests that have begun and that the MPI has not been told the end of.
extern constinit std::atomic<int> pending;
/// Requests of the MPI's that stand for plait's, and that the program has not ended yet.
extern constinit std::atomic<int> open_grequests;
inline bool has_open_grequests() { return open_grequests.load(std::memory_order_acquire) != 0; }

/// As long as one lives, something is under way whose end is found by asking the MPI.
class Polled {
 public:
  Polled();
  ~Polled();
  Polled(const Polled&) = delete;
  Polled& operator=(const Polled&) = delete;
};

/// A request of the MPI's own, with twins for buffers.
std::unique_ptr<PendingRequest> make_native_request(Handle native, CallStaging staging);
/// Gives it a request of the MPI's own; what has begun is ended with that. comm: whose handler
/// hears of its error.
int start_grequest(std::unique_ptr<PendingRequest> one, RetainedComm comm, void* request);
/// The error of a request that this thread has ended since forget_faults(), of which the handler
/// has heard when this returns; 0 = it ended well, or stands for none of plait's. The MPI knows
/// nothing of these errors: it would tell MPI_COMM_WORLD's handler.
int take_error(Handle request);
void clear_errors();
/// Has its end asked for, as that of all that is under way, until it has ended.
void watch(PendingRequest& one);
/// Gives up one of its holders, the last of which ends its life.
void release_request(PendingRequest* one);
/// Such a call of plait's that its state has yet to begin. Where this rank cannot stage it, it
/// refuses in its turn. Throws where there is not even memory for that: then this rank has left the
/// state's communicator.
std::unique_ptr<CollectiveRequest> make_collective_request(const ServedCall& call,
                                                           const CollectiveArgs& args);
int start_served(const ServedCall& call, const CollectiveArgs& args, void* request);
/// A request of the MPI's own has begun with twins for buffers; what the program gets for it.
int start_native(Handle comm, Handle native, CallStaging staging, void* request);
/// Whether the MPI can call complete_ended() in all its functions, and from now on it does.
bool has_hook();
void begin_hook();
/// How much of what is under way is asked for its end. Where that is much, `some` is the newest and
/// others by turns: functions of the MPI's that ask each time they wait must stay quick.
enum class Sweep : std::uint8_t { some, all };
/// Tells the MPI of those that have ended.
void complete_ended(Sweep sweep = Sweep::some);
/// The same in a function that asks for ends, which may be called seldom.
void complete_in_test();
/// Before MPI_Finalize: lets what must end do so, on all ranks, then forgets the rest, whose memory
/// stays the MPI's. Collective over MPI_COMM_WORLD.
void end_requests();
/// plait's thread has ended one.
void on_collective_ended(CollectiveRequest& operation);
/// A short sleep, or until one ends.
void backoff_sleep(int round);

/// In the program's thread, while it waits for plait: lets the MPI move what else is under way.
/// False in plait's own threads, which call no MPI.
bool let_mpi_progress();
/// Before the first of these, and after the last.
void begin_progress();
void end_progress();

/// The program's thread, while a wrapped call runs.
class ProgramThreadScope {
 public:
  ProgramThreadScope() { ++depth; }
  ~ProgramThreadScope() { --depth; }
  ProgramThreadScope(const ProgramThreadScope&) = delete;
  ProgramThreadScope& operator=(const ProgramThreadScope&) = delete;
  static constinit thread_local int depth;
};

/// A blocking completion function, as its testing twin in a loop while requests of plait's are
/// pending: test(&flag), and wait() once there are none.
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
