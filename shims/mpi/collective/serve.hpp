// Decides which collectives plait serves, and runs them. The state of a served communicator is an
// attribute of the communicator and dies with it: MPIs reuse a freed handle at once.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/bootstrap/vote.hpp"
#include "plait/communicator.hpp"
#include "shims/mpi/args/gpu_memory.hpp"
#include "shims/mpi/requests/errors.hpp"
#include "shims/mpi/staging/packed_call.hpp"

namespace plait::mpi {

/// Called after the program's MPI_Init. Collective over MPI_COMM_WORLD if this process serves host
/// memory (PLAIT_MPI_HOST) or a node of the job has GPUs; else does nothing.
void begin_serving();
/// Called before MPI_Finalize: waits for started calls, then ends all states.
void end_serving();

/// A non-blocking call that plait serves.
struct CollectiveRequest;

class ServedComm;

/// This rank's buffers in a call, or the error that keeps the rank from having any: all ranks then
/// get that error instead of the call. A rank that cannot stage a call still takes part, since its
/// peers have started it.
struct Participation {
  std::optional<PackedCall> packed;
  std::optional<Error> refusal;
  int native_code = 0;  ///< of the refusal, if this rank's MPI raised the error; else 0
  /// Packs the call; gpu as in PackedCall. Does not throw.
  void make(const CollectiveArgs& args, const CallShape& shape, const RankPosition& position,
            int gpu) {
    try_to([&] { packed.emplace(args, shape, position, gpu); });
  }
  /// Runs a step, and keeps the error. Does not throw.
  template <class Step>
  void try_to(const Step& step) {
    refusal = attempt([&] {
      try {
        step();
      } catch (const NativeError& error) {
        native_code = error.native_code();
        throw;
      }
    });
  }
};

/// How a call is served; a null state = forwarded to the native MPI.
struct ServedCall {
  ServedComm* state = nullptr;
  CallShape shape;
  bool on_host = true;            ///< served even if all ranks' buffers are in host memory
  bool agrees = false;            ///< ranks exchange buffer locations first
  Fallback why = Fallback::none;  ///< with a null state
};

/// What a state of a persistent request is to its communicator (served_comms.hpp).
struct SpareState {
  const ServedComm* owner = nullptr;  ///< the communicator's state; null = never a spare
  std::size_t slot = 0;               ///< among the owner's
  bool is_free = false;
};

/// This rank in a communicator that plait serves.
class ServedComm final : public std::enable_shared_from_this<ServedComm>, public Abortable {
 public:
  ServedComm(Handle comm, RankPosition position) : retained_comm_(comm), position_(position) {}
  /// The program's communicator.
  const RetainedComm& retained_comm() const { return retained_comm_; }
  /// Called before ranks vote on serving, on one node: starts the thread for non-blocking calls.
  /// Returns false and logs the reason if that fails: without the thread non-blocking calls could
  /// not end.
  bool begin_thread();
  /// Called after the vote, before any call.
  void serve(std::unique_ptr<Communicator> comm) { comm_ = std::move(comm); }
  const RankPosition& position() const { return position_; }
  /// Returns whether a blocking call has found all ranks' buffers on GPUs; the same on all ranks.
  bool has_gpus() const { return on_gpus().stream_ != nullptr; }
  /// Runs the call after all calls started before it. Returns another value than none, on all
  /// ranks, if the call is native after all: no buffer is on a GPU and host memory is not served,
  /// or a rank cannot take part. Throws Error.
  Fallback run(const CollectiveArgs& args, const ServedCall& call);
  /// Returns a state for a persistent call on the same communicator, since ranks may start
  /// persistent calls in any order: a spare, or a new one. Returns null if the call is native after
  /// all; `why` then has the reason. Throws Error.
  ServedComm* make_persistent_state(const CollectiveArgs& args, const ServedCall& call,
                                    Fallback& why);
  /// Queues the call for the state's thread.
  void begin(CollectiveRequest& operation);
  /// Ends all calls with Error(aborted), on all ranks. Any thread.
  void abort() override;
  /// The same for calls of this state alone: a persistent request leaves the communicator, whose
  /// GPUs it uses, to other calls.
  void abort_own();
  /// No further call comes: the thread ends after the queued calls.
  void close();
  /// Guarded by the lock of all states.
  SpareState& spare() { return spare_; }
  /// Returns whether a later persistent request may use the state of one that has ended.
  bool is_reusable() const { return !has_failed_.load(); }
  bool is_idle();
  /// Ends the use of the communicator's GPU, after a persistent request has ended. The caller drops
  /// the communicator's state, which may wait for the GPU.
  std::shared_ptr<ServedComm> leave_gpus() { return std::move(whole_); }

 private:
  /// The location of a rank's buffers in a call; ranks may differ.
  enum class BufferLocation : std::uint8_t { host, gpu_staged, gpu };
  struct AgreedLocations {
    bool any_on_gpu = false, all_on_gpu = false;  ///< all_on_gpu: usable by engines
    int gpu = -1;                                 ///< GPU of this rank's buffers
  };
  Request one_of_each(std::uint64_t bytes) const;
  AgreedLocations agree_locations(BufferLocation mine);
  /// Exchanges among ranks the facts that all need before a call; returns nothing if the call is
  /// native. If engines can use this rank's buffers, packs the call first: no rank may refuse after
  /// all ranks have agreed on the engines.
  std::optional<AgreedLocations> negotiate(const CollectiveArgs& args, const ServedCall& call,
                                           Participation& participation);
  ServedComm* spare_or_new_state(Handle comm, std::size_t calls_before);
  /// With own_counts: returns whether the call is large enough on any rank.
  bool is_large(const CallShape& shape);
  /// Gives plait's communicator the GPU, once. Collective over the communicator.
  void adopt_gpu(int gpu);
  /// The state whose communicator runs this state's calls on GPUs.
  const ServedComm& on_gpus() const { return whole_ != nullptr ? *whole_ : *this; }
  ServedComm& on_gpus() { return whole_ != nullptr ? *whole_ : *this; }
  BufferLocation location_on(int gpu) const;
  /// Any thread.
  void run_or_refuse(Participation& participation, bool all_on_gpu);
  void execute(PackedCall& packed, bool all_on_gpu);
  /// Throws on all ranks of the call.
  [[noreturn]] void refuse(const Error& why);
  void run_on_gpus(const PackedCall& packed);
  /// Runs calls in rank 0's order, one call at a time: ranks may start persistent calls in any
  /// order.
  void run_serialized(const PackedCall& packed);
  void await_stream();
  void work();
  void wait_until_idle();
  RetainedComm retained_comm_;
  RankPosition position_;
  std::unique_ptr<Communicator> comm_;
  /// Of the communicator's calls on its GPU; null = no GPU. A stream of its own: ranks may start
  /// calls of several communicators in different orders. On a shared stream each rank's first call
  /// could wait for a call that another rank has not started.
  std::unique_ptr<GpuStream> stream_;
  bool has_tried_gpu_ = false;
  /// Of a persistent request with buffers on GPUs: the state of the program's communicator.
  std::shared_ptr<ServedComm> whole_;
  bool is_shared_ = false;               ///< persistent requests use the GPU too
  std::size_t persistent_calls_ = 0;     ///< of make_persistent_state(), alike on all ranks
  std::atomic<bool> has_failed_{false};  ///< a call has, on this rank
  SpareState spare_;
  std::mutex gpu_order_;  ///< serialises calls on a shared GPU, on rank 0
  std::mutex mutex_;
  std::condition_variable changed_;
  CollectiveRequest* first_ = nullptr;  ///< queue of started calls
  CollectiveRequest* last_ = nullptr;
  bool working_ = false;  ///< a call runs
  bool closed_ = false;
};

/// Returns false if plait serves no call of this size. Checked first, since most calls are small.
bool may_serve(const CollectiveArgs& args);
/// Decides how to serve a call that may_serve(). may_attach: the call is blocking, hence ranks may
/// attach the communicator.
ServedCall served_call(const CollectiveArgs& args, bool may_attach);

/// The same for a persistent call, in the function that makes the request: ranks may attach there.
/// The state belongs to the request until release_persistent_state() (served_comms.hpp).
ServedCall persistent_served_call(const CollectiveArgs& args);

/// Runs a blocking call. Returns the function's result, or nothing if the native MPI must run it;
/// `why` then has the reason.
std::optional<int> run_served(const ServedCall& call, const CollectiveArgs& args, Fallback& why);

}  // namespace plait::mpi
