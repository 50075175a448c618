// Ranks that run collectives together: the one place where topology, planner, verifier, simulator
// and executors meet. One Communicator a rank; every rank makes the same calls in the same order,
// but for those of pair().
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plait/error.hpp"
#include "plait/plan.hpp"
#include "plait/timeline.hpp"

namespace plait {

/// A proposal and what the simulator says of it; an empty timeline where the budget ran out.
struct RankedPlan {
  Plan plan;
  Timeline timeline;
};

/// All proposals, fastest by simulation first; those beyond `budget_ops` simulated ops follow in
/// propose()'s own order. Deterministic: the same on every rank.
std::vector<RankedPlan> ranked(const Topology& topology, const Request& request,
                               std::uint64_t budget_ops = 200'000,
                               std::vector<Refusal>* refusals = nullptr);

class Transport;

inline constexpr int kMostRanks = 16;  ///< of a communicator, all on one host
inline constexpr int kNoDevice = -1;
/// The GPU of the launcher's local rank, if every rank gets one of its own; else none for any rank.
inline constexpr int kDeviceByLauncher = -2;

/// How a communicator is made. Every field but `rank` and `device` must agree on all ranks, and
/// either all ranks have a device or none.
struct CommunicatorOptions {
  int rank = 0;
  int ranks = 1;
  /// Where the ranks meet: "fd:N" = an inherited socket to the launcher (plait bench), "unix:PATH"
  /// = a socket in a folder of this user alone, "" = read off the launcher's environment (torchrun,
  /// mpirun, Slurm; plait's own PLAIT_RENDEZVOUS first). No TCP port is ever opened.
  std::string rendezvous;
  /// Instead: what unique_id() made on one rank, for ranks that no launcher has started together,
  /// or that are some of those that it has started. An id serves one communicator.
  std::string unique_id;
  std::string topology;            ///< "" = PLAIT_TOPOLOGY, else discover(); see load_topology
  std::vector<std::string> masks;  ///< links left out, as without() takes them
  double arrive_s = 600.0;  ///< how long a rank waits for others to enter a call (or to join)
  double deadline_s = 5.0;  ///< how long it waits inside a call, once all have entered it
  int device = kNoDevice;   ///< CUDA ordinal of this rank's GPU, for enqueue()
  int sm_budget = 0;  ///< most blocks of a call on a GPU, to leave SMs to others; 0 = the fastest
  bool overlap_compute = false;  ///< large calls leave SMs to others, as under NCCL
  /// Captured calls on GPUs keep their order beside eager ones and other graphs, by the order in
  /// which the host launches them; false = graphs hold kernels and copies alone (conditional nodes
  /// want it so), and a graph and other calls must not run at once.
  bool graph_mixing = true;
  bool bitwise = false;  ///< only plans that sum in rank order; PLAIT_BITWISE=1 says so for all
  /// Called in the calling thread while a call on host memory waits for others; true = call it
  /// again soon. For programs that must keep another library going, as MPI.
  std::function<bool()> meanwhile;
  /// Called in the calling thread every 0.1 s while it waits for others, in the making of the
  /// communicator too. What it throws ends the wait, and with it the communicator. For programs
  /// whose signals must be heard, as Python's.
  std::function<void()> interrupt;
  /// Carries messages between nodes, among these ranks with the same numbers. Null = plait looks
  /// for an MPI or torch.distributed (docs/nodes.md).
  std::shared_ptr<Transport> transport;
  /// With a transport: this rank's node, by any name; all ranks say theirs, or none. Ranks of one
  /// name share memory.
  std::string node;
};

/// Options from RANK/WORLD_SIZE, OMPI_COMM_WORLD_*, PMI_* or SLURM_*: of the launcher that started
/// this process, which the nearest of its parents tells; PLAIT_* on top. Error(invalid_argument)
/// where two contradict each other and nothing tells. The device is PLAIT_DEVICE, else
/// kDeviceByLauncher.
CommunicatorOptions options_from_environment();

/// Text that names one communicator, made by one of its ranks and carried to the others by the
/// program.
std::string unique_id();

/// How one call is to be done. Must agree on all ranks.
struct CallOptions {
  std::string strategy;                        ///< "" = plait chooses
  std::map<std::string, std::int64_t> params;  ///< for `strategy`; else what is chosen on GPUs
  double scalar = 1.0;                         ///< premul_sum: this rank's factor
  std::vector<double> scalars;  ///< premul_sum in enqueue(): one a rank; empty = `scalar` for all
};

/// What one rank knows of blocks that have a count each: the elements that it sends to each rank,
/// and those that it gets of each, by rank. All of it is known to it of an all_to_all; of a gather
/// what it sends to the root, and on the root what that gets; of a scatter likewise.
struct OwnCounts {
  static constexpr std::uint64_t kNotKnown = ~0ULL;
  std::vector<std::uint64_t> sends;
  std::vector<std::uint64_t> gets;
};

/// Calls so far, by collective and strategy, and the bytes they sent by path, as their plans say:
/// a replay of a graph is no call, and a share that is corrected while calls run counts as planned.
struct Counters {
  std::uint64_t calls = 0;
  std::map<std::string, std::uint64_t> calls_of;  ///< "all_reduce/direct(pieces=2,throttle=1)"
  std::map<std::string, std::uint64_t> bytes_of_path;
};

class Communicator {
 public:
  /// Meets the other ranks, agrees on topology and settings, maps arenas. Throws on every rank
  /// alike: Error(mismatch) where options differ, timeout or peer_lost where a rank does not come.
  static std::unique_ptr<Communicator> create(const CommunicatorOptions& options);
  ~Communicator();

  int rank() const;
  int ranks() const;
  const Topology& topology() const;

  /// Runs the collective; returns when this rank's output is complete. `input` and `output` are
  /// host memory of input_bytes / output_bytes(request, rank()), the same address for in place.
  /// Error(mismatch) on every rank where ranks ask for different things; peer_lost, timeout,
  /// aborted.
  void run(const Request& request, const void* input, void* output,
           const CallOptions& options = {});
  /// Of a request without counts: ranks show each other those that they know, and then run it with
  /// all of them. Error(mismatch) on every rank where one expects what another does not send.
  void run(const Request& request, const OwnCounts& mine, const void* input, void* output,
           const CallOptions& options = {});
  /// Puts the collective on a CUDA stream (CUstream or cudaStream_t; null = the legacy default one)
  /// and returns: `input` and `output` lie on this rank's GPU, what the stream held before is seen,
  /// what it gets later sees the output. Ranks do not meet on the host, so what one rank finds
  /// wrong with its arguments is thrown on that rank alone, and peers that made the call wait for
  /// it (arrive_s) or for its abort(). May be captured into a graph.
  /// strategy: "" = plait chooses; the name of an engine = that engine, with the params that it
  /// takes; another name = that strategy's plan. Engines and params are those of
  /// docs/devices_reference.md; in Python plait.engines() and plait.engine_params() list them.
  /// Error(no_device) where the communicator has none; unsupported; invalid_argument; later errors
  /// as check() does.
  void enqueue(const Request& request, const void* input, void* output, void* stream,
               const CallOptions& options = {});
  /// The same by own counts: ranks meet on the host first, as in run().
  void enqueue(const Request& request, const OwnCounts& mine, const void* input, void* output,
               void* stream, const CallOptions& options = {});
  /// What enqueued calls met on the GPU so far: timeout (naming the rank waited for), peer_lost,
  /// aborted. Waits for nothing, but a second at most where NCCL has failed between nodes: it does
  /// not say why, and another rank may. Synchronise the stream first to hear of all calls on it.
  /// After timeout and peer_lost that returns an error itself, since the call has no result: the
  /// stream has failed, and with it this process's work on the GPU. Over nodes call it from the
  /// thread that makes calls: no other hears of ranks of other nodes.
  void check();
  /// CUDA ordinal of this rank's GPU, or kNoDevice.
  int device() const;
  /// Name of the library that carries messages between nodes; empty = all ranks are on one node.
  std::string transport() const;
  /// Older name of transport().
  std::string carrier() const { return transport(); }
  /// What joins the GPUs, which enqueue() makes plans for; topology() where there is no device.
  const Topology& device_topology() const;
  /// True where the pointer is device memory that CUDA knows and this communicator has a device.
  bool on_device(const void* pointer) const;

  /// The communicator of this rank and `peer` alone, whose copies and send_recvs are sends between
  /// the two: there the lower of them is rank 0, and calls come in one order on both, whatever else
  /// the ranks do. Both must ask for it: the first time it waits for the other (arrive_s), and
  /// throws peer_lost where that one ends; then it is kept as long as this communicator, which it
  /// ends with. On GPUs its kernels take few SMs, so that several pairs' run side by side.
  Communicator& pair(int peer);

  /// Runs a plan as it is (verified first). All ranks must pass equal plans.
  void run(const Plan& plan, const void* input, void* output, double scalar = 1.0);
  /// Joins the call that the other ranks make with an error instead of a request: every rank gets
  /// it. For callers who find their own arguments wrong before they can make a request of them. The
  /// error that all ranks got; nothing where the call did not come to that (a rank is lost).
  std::optional<Error> refuse(ErrorCode code, const std::string& reason);
  /// Returns once every rank has called it.
  void barrier();
  /// Every rank's bytes, in rank order. For small things: set-up, checks, tests.
  std::vector<std::string> exchange(const std::string& mine);

  /// The plan that run(request) would use.
  Plan plan_for(const Request& request, const CallOptions& options = {}) const;
  /// Which plan, which shares, what else was considered and why it was refused.
  std::string explain(const Request& request) const;
  Counters counters() const;
  /// Ends every pending and later call of this rank with Error(aborted). Any thread; contacts
  /// nobody.
  void abort() noexcept;

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

 private:
  struct State;
  explicit Communicator(std::unique_ptr<State> state);
  static std::unique_ptr<Communicator> make(
      const std::function<std::unique_ptr<State>()>& make_state);
  std::unique_ptr<State> state_;
};

}  // namespace plait
