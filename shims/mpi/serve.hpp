// Whether plait serves in this process, and a communicator's state beside it. A state hangs on its
// communicator as an attribute, so it dies with it: MPIs give a freed handle out again at once.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/bootstrap/vote.hpp"
#include "plait/communicator.hpp"
#include "shims/mpi/errors.hpp"
#include "shims/mpi/gpu_memory.hpp"
#include "shims/mpi/packed_call.hpp"

namespace plait::mpi {

/// Since MPI_Init, on all ranks of the job alike.
extern constinit std::atomic<bool> serving;
/// It serves, or the book has the MPI's own calls (counting.hpp): collectives are looked at.
extern constinit std::atomic<bool> intercepting;
inline bool is_intercepting() { return intercepting.load(std::memory_order_relaxed); }
inline bool is_serving() { return serving.load(std::memory_order_relaxed); }

/// After a successful MPI_Init of the program; collective over MPI_COMM_WORLD where this process
/// is told to serve (PLAIT_MPI_HOST) or a node of the job has GPUs, and nothing else where not.
void begin_serving();
/// Before MPI_Finalize: waits for what was begun, then ends all states.
void end_serving();

/// A non-blocking call of the program's.
struct CollectiveRequest;

class CommState;

/// This rank's job in a call, or why it has none: then all ranks hear of that instead of the call.
/// A rank that cannot stage a call still takes its turn in it, as the others have begun theirs.
struct Participation {
  std::optional<PackedCall> packed;
  std::optional<Error> refusal;
  /// Makes the job; gpu as Job has it. Throws nothing.
  void make(const CollectiveArgs& args, const CallShape& shape, const RankPosition& position,
            int gpu) {
    refusal = attempt([&] { packed.emplace(args, shape, position, gpu); });
  }
};

/// What a call does: the state that serves it and its shape, or nothing where it passes on.
struct ServedCall {
  CommState* state = nullptr;
  CallShape shape;
  bool on_host = true;  ///< also where all ranks' buffers are host memory
  bool agrees = false;  ///< ranks tell each other first where their buffers lie
};

/// This rank in one communicator that plait serves.
class CommState : public std::enable_shared_from_this<CommState> {
 public:
  CommState(Handle comm, RankPosition position) : retained_comm_(comm), position_(position) {}
  /// The program's communicator.
  const RetainedComm& retained_comm() const { return retained_comm_; }
  /// Before ranks vote on serving: has a thread for calls that are begun, on one node. False, and
  /// said why, where none can be had: such a call could end in no other way.
  bool begin_thread();
  /// Once they have: before any call.
  void serve(std::unique_ptr<Communicator> comm) { comm_ = std::move(comm); }
  const RankPosition& position() const { return position_; }
  /// Once a blocking call found all ranks' buffers on GPUs; the same on all ranks.
  bool has_gpus() const { return gpus_->comm != nullptr; }
  /// The call, after all that were begun before it; false on all ranks where it is the MPI's after
  /// all: no rank's buffers lie on a GPU, and it was not to serve such, or a rank cannot take part.
  /// Throws Error.
  bool run(const CollectiveArgs& args, const ServedCall& call);
  /// One of its own for a persistent call on the same communicator: ranks may start such calls in
  /// any order. Null where the call is the MPI's after all. Throws Error.
  CommState* make_persistent_state(const CollectiveArgs& args, const ServedCall& call);
  /// Puts the call behind those begun before it; its thread runs it.
  void begin(CollectiveRequest& operation);
  /// All its calls end with Error(aborted), on all ranks. Any thread.
  void abort();
  /// No call comes any more: ends once those begun have run.
  void close();

 private:
  /// Where ranks' buffers of a call lie. Ranks of one call each choose that for themselves.
  enum class BufferLocation : std::uint8_t { host, gpu_staged, gpu };
  struct AgreedLocations {
    bool any_on_gpu = false, all_on_gpu = false;  ///< the latter: each as plait wants them
    int gpu = -1;                                 ///< of this rank's
  };
  /// Ranks' engines, by a communicator on one GPU of each.
  struct GpuEngines {
    /// Of its own: ranks may begin calls of several communicators in different orders, and on one
    /// stream each rank's first would wait for one that another rank has not begun.
    std::unique_ptr<GpuStream> stream;
    std::unique_ptr<Communicator> comm;  ///< see has_gpus()
    bool tried = false;
    bool is_shared = false;  ///< by persistent requests
    std::mutex order;        ///< among these, on rank 0
  };
  Request one_of_each(std::uint64_t bytes) const;
  AgreedLocations agree_locations(BufferLocation mine);
  /// Ranks tell each other what they must know before a call; nothing where it is the MPI's then.
  /// Where this rank's buffers lie as plait's engines want them, its job is made first: once all
  /// ranks go by the engines, none can refuse.
  std::optional<AgreedLocations> negotiate(const CollectiveArgs& args, const ServedCall& call,
                                           Participation& participation);
  /// Where only own counts are known: whether the call is large enough on one of the ranks.
  bool is_large(const CallShape& shape);
  void use_gpus(Handle comm, int gpu);
  BufferLocation location_on(int gpu) const;
  /// In any thread.
  void run_or_refuse(Participation& participation, bool all_on_gpu);
  void execute(PackedCall& packed, bool all_on_gpu);
  /// All ranks of the call throw it.
  [[noreturn]] void refuse(const Error& why);
  void run_on_gpus(const PackedCall& packed);
  /// Ranks may start persistent calls in any order, and kernels of more than two communicators may
  /// wait for each other on a GPU: so these run one by one, as rank 0 has it.
  void run_serialized(const PackedCall& packed);
  void await_stream();
  void work();
  void wait_until_idle();
  RetainedComm retained_comm_;
  RankPosition position_;
  std::unique_ptr<Communicator> comm_;
  std::shared_ptr<GpuEngines> gpus_ = std::make_shared<GpuEngines>();
  std::shared_ptr<GpuEngines> persistent_gpus_;
  std::mutex mutex_;
  std::condition_variable changed_;
  CollectiveRequest* first_ = nullptr;  ///< of those that wait for their turn
  CollectiveRequest* last_ = nullptr;
  bool working_ = false;  ///< an operation runs
  bool closed_ = false;
};

/// False where plait takes no call with such a message: asked first, since most calls are small.
bool may_serve(const CollectiveArgs& args);
/// Of a call that may be. may_attach: the call is blocking, so ranks may meet in it.
ServedCall served_call(const CollectiveArgs& args, bool may_attach);

/// Of a persistent call that may be: in the function that makes its request, which ranks may meet
/// in. The state is the request's own, until it is given up.
ServedCall persistent_served_call(const CollectiveArgs& args);
void release_state(CommState* state);

/// Serves a blocking call; what the function returns, or nothing where the MPI is to do it.
std::optional<int> run_served(const ServedCall& call, const CollectiveArgs& args);

/// How many calls plait has served in this process.
extern constinit std::atomic<std::uint64_t> calls_served;

}  // namespace plait::mpi
