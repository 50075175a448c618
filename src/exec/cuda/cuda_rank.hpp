// One rank on one GPU: plans and fused kernels on device buffers, in stream order. Never waits on
// the host; may be captured into CUDA graphs and replayed any number of times.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "exec/cuda/choices.hpp"
#include "exec/cuda/copies/rotation.hpp"
#include "exec/cuda/device/arena.hpp"
#include "exec/cuda/device/call_order.hpp"
#include "exec/cuda/device/event_marker.hpp"
#include "exec/cuda/device/kernel_families.hpp"
#include "exec/cuda/device/kernels.hpp"
#include "exec/cuda/host/host_gather.hpp"
#include "exec/cuda/lanes/bound_plan.hpp"
#include "exec/cuda/lanes/lane_args.hpp"
#include "exec/cuda/lines/line_cut.hpp"
#include "exec/cuda/messages/messages.hpp"
#include "exec/cuda/share/agreed_share.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

struct CudaRankOptions {
  int device = 0;  ///< CUDA ordinal
  int rank = 0;
  int ranks = 1;
  DeviceArenaSizes sizes;
  std::vector<std::byte*> rings;  ///< by rank: host memory that all ranks map; empty = no host path
  std::uint64_t ring_bytes = 0;   ///< of a ring, for plans
  std::uint64_t exchange_ring_bytes = 0;  ///< behind them: large calls take both
  HostWords* host_words = nullptr;        ///< a page of zeros that all ranks map, for parts that
                                          ///< CPU cores reduce; null = none
  Settled::Words* share_words = nullptr;  ///< zeros that all ranks map, to agree on the share of
                                          ///< large calls through host memory; null = none
  bool orders_calls = true;               ///< false = who calls sees to the order between streams
  bool mixes_graphs = true;               ///< graphs are ordered beside eager calls and each other
  double wait_s = 600.0;                  ///< how long a kernel waits for a peer before it gives up
  unsigned most_blocks = 0;  ///< of a fused kernel, to leave SMs to others; 0 = one an SM
  /// The most blocks of a tiled kernel. Each takes an SM, and other kernels need some too. 0 = 100;
  /// beside computing 64, which carry nearly as much, take no more from products than NCCL does,
  /// and let two calls run at once.
  unsigned most_tiled_blocks = 0;
  bool beside_computing = false;  ///< large calls take few SMs, as where most_blocks is set
  bool messages = false;          ///< room for messages between single ranks
  bool proves_paths = true;       ///< false = they are known to work, or nothing runs on them
  /// All ranks' GPUs and links are of a kind that choices.def was measured on: else none is ahead.
  bool as_measured = false;
  LaneSpread spread;
};

/// How a fused kernel is launched; zeros = chosen by size. `bare` must agree between ranks.
struct FusedTuning {
  unsigned blocks = 0;
  unsigned threads = 0;
  int ahead = -1;  ///< steps that pushing runs ahead; -1 = chosen. rotation of two ranks: how often
                   ///< the last piece is cut; must agree
  bool programmatic = true;
  std::uint32_t tile_units = 0;  ///< 16-byte units of a tile (tiled; must agree, as must `blocks`)
                                 ///< or of a piece (rotation; must agree)
  /// Share that goes through host memory; must agree. Two ranks' rotation: all that is exchanged
  /// of it, in whole chunks, of any collective. Else of an all_reduce, its results. -1 = the best,
  /// corrected by what earlier calls took (rotation of two ranks, tiled of three and four; none in
  /// graphs, nor where ranks are threads).
  int host_permille = -1;
  /// Share of an all_reduce that CPU cores reduce in host memory, beside the kernel (or engines),
  /// which then has no other share there; must agree.
  int host_cpu_permille = 0;
  int bare = -1;  ///< 1 = bare lines, 0 = flagged ones, -1 = chosen by type and size
};

/// What copies: the copy engines, one stream a lane (large messages, no SMs while copying), or one
/// kernel for all lanes. `automatic`: kernels for what is small, and inside graphs, whose branches
/// may not run side by side.
enum class Engine { automatic, copy_engines, one_kernel };

class CudaRank {
 public:
  /// All ranks together. Error(no_device) without GPUs, unsupported without device code.
  CudaRank(const CudaRankOptions& options, const Exchange& exchange);
  /// Frees at once: no peer may have anything under way to this rank any more, as has_ended() says
  /// of each of them. Waits for all that runs on the GPU.
  ~CudaRank();
  CudaRank(const CudaRank&) = delete;
  CudaRank& operator=(const CudaRank&) = delete;

  int rank() const { return options_.rank; }
  int ranks() const { return options_.ranks; }
  Context context() const { return context_; }

  /// True once nothing of this rank is queued or runs any more, so that it stores into no peer's
  /// memory. Asks, and never waits. knows_calls: where this rank does not order calls, whether who
  /// does knows that they have ended; else all that the GPU has to do must end first.
  bool has_ended(bool knows_calls = true) noexcept;
  /// Lets go of the peers' memory; only the destructor may come after. Waits for all that runs on
  /// the GPU.
  void unmap_peers() noexcept;
  Kernels& kernels() { return *kernels_; }

  /// Prepares a plan; not while its stream is being captured. Keep it as long as graphs replay it.
  std::unique_ptr<BoundPlan> bind(const Plan& plan);
  /// Enqueues this rank's part after what `stream` holds and after this rank's earlier calls on any
  /// stream; what comes after it on `stream` sees the output. scalars: premul_sum, one a rank, or
  /// empty.
  void run(const BoundPlan& bound, const void* input, void* output, Stream stream,
           const std::vector<double>& scalars = {}, Engine engine = Engine::automatic);

  /// True where enqueue() serves the request; the same on all ranks.
  bool takes(const Request& request) const { return !fused_choice(request).empty(); }
  /// True where its kernel was measured, on such GPUs and links, to be no slower than NCCL; the
  /// same on all ranks.
  bool ahead(const Request& request) const;
  /// The collective by the kernel or engine that is fastest for it. Allocates nothing and never
  /// waits on the host, so it may be captured; same order of effects as run().
  void enqueue(const Request& request, const void* input, void* output, Stream stream,
               const std::vector<double>& scalars = {}) {
    run_fused(fused_choice(request), request, input, output, stream, scalars);
  }

  /// True where run_fused can do it.
  /// one_shot: all_reduces that fit the inbox. two_shot: all_reduces that fit it in three pieces.
  /// hop: collectives that fit the inbox. tiled: all collectives of all sizes.
  /// rotation: the same by copy engines. More than two ranks have only all_gathers so, unless slots
  /// were asked for (sizes, or most_blocks).
  bool has_fused(const std::string& kernel, const Request& request,
                 const FusedTuning& tuning = {}) const;
  /// Why has_fused is false of a kernel for any request: ": rank 1's GPU: ..."; empty where it is
  /// not.
  std::string because(const std::string& kernel) const;
  /// The fused kernel that is fastest for the request, as choices.def says; empty where none fits.
  /// The same on all ranks.
  std::string fused_choice(const Request& request) const;
  /// True where that is so because calls leave SMs to others, which tables measure apart.
  bool chosen_for_budget(const Request& request) const;
  /// Same order of effects as run(). Error(unsupported) where has_fused is false.
  void run_fused(const std::string& kernel, const Request& request, const void* input, void* output,
                 Stream stream, const std::vector<double>& scalars = {},
                 const FusedTuning& tuning = {});

  /// True where messages() serves any message between two ranks; the same on all ranks.
  bool takes_messages() const { return options_.sizes.message_slot_bytes != 0; }
  /// This rank's ends of messages that all move side by side, whatever calls their other ends are
  /// in; those between the same two ranks in order. Same order of effects as run(). A sender may
  /// end before its peer has come; a peer that asks for another size is not noticed.
  void messages(const std::vector<Message>& messages, Stream stream,
                const MessageTuning& tuning = {});

  /// Error(timeout, peer_lost or aborted) where a kernel gave up; costs one load from host memory.
  void check() const;
  /// Kernels that wait end within milliseconds, without a result and without an error of their
  /// stream: the program does not want them any more. Any thread.
  void abort() noexcept;
  /// Kernels that wait, now or later, fail their stream within milliseconds: a rank is lost, and no
  /// call that waits for it may end as if it had a result. Nothing after abort(). Any thread.
  void fail() noexcept;
  /// Fails the stream where fail() was called before it comes here: behind what another library did
  /// for a call, which may have ended early then.
  void heed(Stream stream);

 private:
  bool is_quiet() noexcept;
  void open(const Exchange& exchange);
  void choose_sizes();
  unsigned most_message_blocks() const;
  void close() noexcept;
  const FusedChoice* choice_for(const Request& request) const;
  unsigned blocks_for(const FusedTuning& tuning) const;
  unsigned blocks_with_room() const;
  unsigned blocks_beside_copies(const FusedTuning& tuning) const;
  unsigned most_threads(bool is_lean) const;
  bool leaves_sms() const;
  bool streams_run_apart() const;
  void map_host_memory();
  void prove_paths(const Exchange& exchange);
  void open_host_path();
  LaneArgs lane_args(const BoundPlan& bound, const void* input, void* output,
                     const std::vector<double>& scalars) const;
  bool uses_one_kernel(const BoundPlan& bound, Engine engine, Stream stream) const;
  void end_lanes(const LaneArgs& args, Stream stream);
  void run_whole(const BoundPlan& bound, LaneArgs& args, Stream stream);
  void run_streams(const BoundPlan& bound, LaneArgs& args, Stream stream);
  void run_lane(const BoundPlan& bound, const BoundLane& lane, LaneArgs& args, std::size_t first);
  /// What every kernel that waits is told.
  template <class Args>
  void tell_of_waits(Args& args) const {
    args.state = arena_->state();
    args.lifeline = reinterpret_cast<Lifeline*>(device_lifeline_);
    args.wait_ns = static_cast<std::uint64_t>(options_.wait_s * 1e9);
  }
  /// Behind earlier calls on any stream, if that is this rank's to see to.
  template <class Work>
  void in_order(Stream stream, const Work& work) {
    if (!options_.orders_calls) return work();
    const StreamPlace place = order_.before(marker_, stream);
    work();
    order_.after(marker_, stream, place);
  }
  void fill_call(CallArgs& args, const Request& request, const void* input, void* output,
                 const std::vector<double>& scalars) const;
  LineCut line_cut(const std::string& kernel, const Request& request, bool bare) const;
  LineCut hop_cut(const Request& request) const;
  void launch_messages(MessageArgs args, Stream stream);
  void run_kernel(const std::string& kernel, const Request& request, const void* input,
                  void* output, Stream stream, const std::vector<double>& scalars,
                  const FusedTuning& tuning);
  void run_beside_host(const std::string& kernel, const Request& request, const void* input,
                       void* output, Stream stream, const std::vector<double>& scalars,
                       const FusedTuning& tuning);
  void run_lines(const std::string& kernel, const Request& request, const void* input, void* output,
                 Stream stream, const std::vector<double>& scalars, const FusedTuning& tuning);
  void run_hop(const Request& request, const void* input, void* output, Stream stream,
               const std::vector<double>& scalars, const FusedTuning& tuning);
  void run_rotation(const Request& request, const void* input, void* output, Stream stream,
                    const std::vector<double>& scalars, const FusedTuning& tuning);
  void run_engine_ring(const Request& request, const void* input, void* output, Stream stream,
                       std::uint64_t piece_bytes);
  void run_exchange(const Request& request, const void* input, void* output, Stream stream,
                    const std::vector<double>& scalars, const FusedTuning& tuning,
                    std::uint64_t piece_bytes);
  void run_tiled(const Request& request, const void* input, void* output, Stream stream,
                 const std::vector<double>& scalars, const FusedTuning& tuning);
  void scatter_stretch(const GatherStretch& stretch, const std::string& kernel,
                       const Request& request, const void* input, void* output, Stream stream,
                       const std::vector<double>& scalars, const FusedTuning& tuning);
  HostCut cut_cores_part(std::uint64_t bytes, const FusedTuning& tuning) const;
  bool can_gather(const std::string& kernel, const Request& request) const;
  bool corrects_gather(const std::string& kernel, const Request& request, Stream stream,
                       const FusedTuning& tuning) const;
  std::uint32_t gather_permille(const std::string& kernel, const Request& request,
                                const FusedTuning& tuning) const;
  bool chooses_bare(const Request& request, const FusedTuning& tuning) const;

  CudaRankOptions options_;
  bool only_rings_ = false;  // all that copy engines' slots have room for
  Device device_ = 0;
  Context context_ = nullptr;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<HostReducer> host_reducer_;
  std::unique_ptr<DriverQueue> queue_;
  std::unique_ptr<DeviceArena> arena_;
  std::unique_ptr<KernelFamilies> families_;
  std::vector<Stream> streams_;
  AgreedShare agreed_share_;
  EventMarker marker_{api()};
  CallOrder<EventMarker, Stream> order_;
  Event fork_ = nullptr;
  std::vector<Event> marks_;      // one a stream
  Lifeline* lifeline_ = nullptr;  // host address
  DevicePointer device_lifeline_ = 0;
  std::vector<DevicePointer> rings_;  // device address by rank
  EnginePath engine_path_;
  std::size_t registered_ = 0;  // of options_.rings
  bool words_registered_ = false;
  std::shared_ptr<std::atomic<bool>> quiet_;  // the GPU has done all that it had to do at some time
};

}  // namespace plait::cuda
