// Communicator: the ranks that run collectives together. A communicator uses topology, planner,
// verifier, simulator and executors. Each rank has one Communicator; all ranks make the same calls
// in the same order, except for calls on pair(). On one node a thread may make the calls on GPU
// memory while another makes the calls on host memory: each kind has an order of its own.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plait/error.hpp"
#include "plait/gpu_memory.hpp"
#include "plait/plan.hpp"
#include "plait/rms_norm.hpp"
#include "plait/timeline.hpp"

namespace plait {

/// A plan and its simulation; the timeline is empty if the budget ran out.
struct RankedPlan {
  Plan plan;
  Timeline timeline;
};

/// Simulated ops of a choice among plans, in about 0.2 s. The list of all ways has the same budget,
/// so that it knows no plan that is faster than the choice.
inline constexpr std::uint64_t kSimulatedOps = 200'000;

/// Returns all proposals, fastest by simulation first. Proposals beyond `budget_ops` simulated ops
/// follow in the order of propose(). Deterministic: the same on every rank.
std::vector<RankedPlan> ranked(const Topology& topology, const Request& request,
                               std::uint64_t budget_ops = kSimulatedOps,
                               std::vector<Refusal>* refusals = nullptr);

class Transport;

inline constexpr int kMostRanks = 16;  ///< ranks of a communicator on a host
inline constexpr int kNoDevice = -1;   ///< no GPU
/// The GPU whose ordinal is the launcher's local rank, if every rank gets a GPU of its own; else no
/// rank has a GPU.
inline constexpr int kDeviceByLauncher = -2;

/// Options of a communicator. All fields but `rank` and `device` must be equal on all ranks, and
/// either all ranks have a device or none.
struct CommunicatorOptions {
  int rank = 0;
  int ranks = 1;
  /// Bootstrap address: "fd:N" = an inherited socket to the launcher (plait bench), "unix:PATH" = a
  /// socket in a folder that only this user may access, "" = from PLAIT_RENDEZVOUS, else from the
  /// launcher's environment (torchrun, mpirun, Slurm). No TCP port is opened.
  std::string rendezvous;
  /// Instead of `rendezvous`: the unique_id() of one rank, for ranks not started together by a
  /// launcher, or for a subset of a launcher's ranks. An id serves a single communicator.
  std::string unique_id;
  std::string topology;            ///< "" = PLAIT_TOPOLOGY, else discover(); see load_topology
  std::vector<std::string> masks;  ///< links to leave out, as in without()
  double arrive_s = 600.0;         ///< seconds to wait for peers to enter a call, or to join
  double deadline_s = 5.0;         ///< seconds to wait inside a call that all ranks have entered
  /// CUDA ordinal of this rank's GPU, for enqueue(); see adopt_device().
  int device = kNoDevice;
  int sm_budget = 0;  ///< most thread blocks of a call on a GPU; 0 = as many as are fastest
  bool overlap_compute = false;  ///< large calls leave SMs to computation, as under NCCL
  /// GPU memory for the kernel of sends and receives under NCCL; enqueue() takes `messages` as the
  /// strategy of send_recv and all_to_all then. For measurements.
  bool messages = false;
  /// Captured calls on GPUs run in the order in which the host launches graphs and eager calls.
  /// False = graphs hold kernels and copies only (as conditional nodes require), and a graph must
  /// not run at the same time as other calls.
  bool graph_mixing = true;
  bool bitwise = false;  ///< use only plans that sum in rank order, as PLAIT_BITWISE=1
  /// Use only plans that sum in this order: rank_order, tree or tree_rounded; "" = as `bitwise` and
  /// PLAIT_SUM_ORDER say.
  std::string sum_order;
  /// Called in the calling thread while a call on host memory waits for peers; true = call again
  /// soon. For programs that must make progress in another library, such as MPI.
  std::function<bool()> meanwhile;
  /// Called in the calling thread every 0.1 s during waits for peers, also during the
  /// communicator's creation. An exception from it ends the wait and the communicator. For programs
  /// that handle signals between instructions, such as Python.
  std::function<void()> interrupt;
  /// Transport of messages between nodes, for the same ranks with the same numbers; null = plait
  /// looks for MPI or torch.distributed (docs/nodes.md).
  std::shared_ptr<Transport> transport;
  /// With `transport`: a name of this rank's node, on all ranks or on none. Ranks of one name share
  /// memory.
  std::string node;
};

/// Returns options from RANK/WORLD_SIZE, OMPI_COMM_WORLD_*, PMI_* or SLURM_*, overridden by
/// PLAIT_*. If several launchers' variables are set, the nearest parent process decides;
/// Error(invalid_argument) if these contradict each other and no parent decides. The device is
/// PLAIT_DEVICE, else kDeviceByLauncher.
CommunicatorOptions options_from_environment();

/// Returns a text that names a communicator. A single rank calls unique_id(); the program sends the
/// text to the other ranks.
std::string unique_id();

/// Options of a call; must be equal on all ranks.
struct CallOptions {
  std::string strategy;                        ///< "" = plait chooses
  std::map<std::string, std::int64_t> params;  ///< for `strategy`, or for the choice on GPUs
  double scalar = 1.0;                         ///< premul_sum: this rank's factor
  std::vector<double> scalars;  ///< premul_sum in enqueue(): one per rank; empty = `scalar` for all
};

/// The counts of uneven blocks that a rank knows: elements sent to each rank, and elements received
/// from each rank, by rank; kNotKnown elsewhere. all_to_all: both lists are complete. gather: each
/// rank knows its count to the root, and the root the count from each rank. scatter: the root knows
/// the count to each rank, and each rank its count from the root.
struct OwnCounts {
  static constexpr std::uint64_t kNotKnown = ~0ULL;
  std::vector<std::uint64_t> sends;
  std::vector<std::uint64_t> gets;
};

/// Number of calls so far, by collective and strategy, and bytes sent by path, according to the
/// calls' plans. A replay of a graph does not count. Shares that are corrected at run time count as
/// planned.
struct Counters {
  std::uint64_t calls = 0;
  std::map<std::string, std::uint64_t> calls_of;  ///< "all_reduce/direct(pieces=2,throttle=1)"
  std::map<std::string, std::uint64_t> bytes_of_path;
};

class Communicator {
 public:
  /// Connects to all ranks, agrees on topology and settings, and maps arenas. Throws the same on
  /// every rank: Error(mismatch) if options differ, timeout or peer_lost if a rank does not join.
  static std::unique_ptr<Communicator> create(const CommunicatorOptions& options);
  ~Communicator();

  int rank() const;
  int ranks() const;
  const Topology& topology() const;

  /// Runs the collective on host memory; returns when this rank's output is complete. `input` has
  /// input_bytes(request, rank()), `output` output_bytes(request, rank()); the same address = in
  /// place. Error(mismatch) on every rank if requests differ; peer_lost, timeout, aborted.
  void run(const Request& request, const void* input, void* output,
           const CallOptions& options = {});
  /// Runs an uneven request with each rank's own counts only: `request` has no counts, and ranks
  /// first exchange counts. Error(mismatch) on every rank if the counts that a rank expects differ
  /// from the peer's.
  void run(const Request& request, const OwnCounts& mine, const void* input, void* output,
           const CallOptions& options = {});
  /// Enqueues the collective on a CUDA stream (CUstream or cudaStream_t; null = the legacy default
  /// stream) and returns. `input` and `output` lie on this rank's GPU. The call runs in stream
  /// order. It may be captured into a graph. Ranks do not synchronise on the host: errors in
  /// arguments are thrown on that rank alone, and peers that made the call wait for the rank
  /// (arrive_s) or for the rank's abort(). strategy: "" = plait chooses; the name of an engine =
  /// that engine, with `params`; any other name = that strategy's plan. docs/devices_reference.md
  /// lists engines and params, and in Python plait.engines() and plait.engine_params().
  /// Error(no_device) if the communicator has no device; unsupported; invalid_argument; also any
  /// error that check() would report.
  void enqueue(const Request& request, const void* input, void* output, void* stream,
               const CallOptions& options = {});
  /// The same with own counts: ranks first exchange counts on the host, as in run().
  void enqueue(const Request& request, const OwnCounts& mine, const void* input, void* output,
               void* stream, const CallOptions& options = {});
  /// Sums rows over all ranks, adds the residual and normalises each row (plait/rms_norm.hpp), on
  /// host memory; returns when this rank's output is complete. The bits equal run() of the
  /// all_reduce and the norm behind it. Errors as run().
  void all_reduce_rms_norm(const RmsNorm& norm, const RmsNormBuffers& buffers,
                           const CallOptions& options = {});
  /// The same on this rank's GPU, in stream order, as enqueue(): by one kernel up to 32 MiB, else
  /// by an all_reduce and the norm. The same bits. options: strategy one_shot or two_shot of the
  /// one kernel, with params units, blocks and ahead; unfused, or a strategy of the all_reduce.
  /// Error(unsupported) over several nodes, and for fp8 output where one kernel does not serve the
  /// call.
  void enqueue_all_reduce_rms_norm(const RmsNorm& norm, const RmsNormBuffers& buffers, void* stream,
                                   const CallOptions& options = {});
  /// Gives this communicator a GPU, so that enqueue() works from now on; for programs that learn
  /// of their GPUs late. `device` is the CUDA ordinal of this rank's GPU, or kDeviceByLauncher. A
  /// call like the others: all ranks make it together, each with its own device, between the same
  /// two calls on host memory. Waits for the peers on the host (arrive_s). Allocates
  /// PLAIT_DEVICE_MEMORY bytes on the GPU, as create() with a device does, and enqueues nothing on
  /// streams of the program. Calls on host memory go on as before.
  /// If one rank cannot (no such GPU, no memory, no path between two GPUs), all ranks throw that
  /// rank's error and stay without a GPU: the communicator still serves host memory, and a later
  /// adopt_device() may succeed. Error(invalid_argument) on every rank if the communicator has a
  /// GPU already; unsupported on a pair. Pairs that were made before have no GPU. peer_lost,
  /// timeout, aborted, which end the communicator as in run().
  void adopt_device(int device);
  /// Frees this communicator's GPU memory until resume() (docs/devices.md). A call of all ranks
  /// together: waits for all work on this rank's GPU, then for the peers on the host (arrive_s).
  /// Addresses stay reserved: captured graphs are right again after resume(), and must not be
  /// launched before. enqueue() throws invalid_argument meanwhile; calls on host memory go on.
  /// Memory of pairs stays (pair(peer).suspend() frees it), and all memory stays where ranks are
  /// threads of a process or GPUs have no direct access to each other. A second suspend() has no
  /// effect. Error(no_device); unsupported over several nodes; any error of check().
  void suspend();
  /// Takes the memory again, at the same addresses. A call of all ranks together. No effect on a
  /// communicator that is not suspended. Errors as suspend(); out_of_memory of any rank on every
  /// rank, which ends the communicator.
  void resume();
  /// Returns this communicator's GPU memory without its pairs'; zeros without a device. Any thread.
  GpuMemory gpu_memory() const;
  /// Throws the error of enqueued calls on the GPU so far: timeout (naming the awaited rank),
  /// peer_lost, aborted. Does not block, except up to 1 s if NCCL has failed between nodes, since
  /// only another rank may know the cause. Synchronise the stream first to cover all of the
  /// stream's calls. After timeout and peer_lost the synchronisation itself fails: the call has no
  /// result, so the stream fails, and with the stream this process's work on the GPU. Over nodes,
  /// call check() in the thread that makes calls: only that thread learns of failures on other
  /// nodes.
  void check();
  /// CUDA ordinal of this rank's GPU, or kNoDevice.
  int device() const;
  /// Name of the library that carries messages between nodes; empty = all ranks are on the same
  /// node.
  std::string transport() const;
  /// Older name of transport().
  std::string carrier() const { return transport(); }
  /// Topology of the GPUs that enqueue() makes plans for; topology() without a device.
  const Topology& device_topology() const;
  /// Path of the tuning table of this communicator's GPUs, or of the table that the drop-in reads
  /// on such GPUs under an NCCL of that version ("2.28.9"). Empty without a device, or if no table
  /// is read.
  std::string tuning_file(const std::string& nccl = "") const;
  /// True if this communicator has a device and CUDA knows the pointer as device memory.
  bool on_device(const void* pointer) const;

  /// Returns the communicator of this rank and `peer`; copy and send_recv of a pair are messages
  /// between the two. The lower rank is rank 0. Both ranks make the pair's calls in the same order,
  /// independently of other calls. Both must call pair(): the first call waits for the peer
  /// (arrive_s), and throws peer_lost if the peer ends. The pair lives as long as this
  /// communicator. On GPUs the pair's kernels take few SMs, so that several pairs' calls run at the
  /// same time.
  Communicator& pair(int peer);

  /// Verifies and runs a plan. All ranks must pass equal plans.
  void run(const Plan& plan, const void* input, void* output, double scalar = 1.0);
  /// Joins the other ranks' call with an error instead of a request; the call throws the error on
  /// every rank. For callers with arguments too wrong to form a request. Returns the error that all
  /// ranks got; none if the call failed earlier (a rank is lost).
  std::optional<Error> refuse(ErrorCode code, const std::string& reason);
  /// Returns when every rank has called barrier().
  void barrier();
  /// Returns every rank's bytes, in rank order. For small data: set-up, checks, tests.
  std::vector<std::string> exchange(const std::string& mine);

  /// Returns the plan that run(request) would use.
  Plan plan_for(const Request& request, const CallOptions& options = {}) const;
  /// Explains the choice for people: the plan, its shares, the other candidates and the reason
  /// against each.
  std::string explain(const Request& request) const;
  Counters counters() const;
  /// Sets arrive_s and deadline_s of this rank's later calls on host memory. Local: each rank sets
  /// its own. Calls on GPU memory and pairs keep the deadlines of create(). Any thread.
  /// Error(invalid_argument) for values that are no seconds above 0.
  void set_host_deadlines(double arrive_s, double deadline_s);
  /// Ends every pending and later call of this rank with Error(aborted). May be called from any
  /// thread; does not contact other ranks.
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
