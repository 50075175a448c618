// A rank on a GPU: context, streams, memory, and the order of calls. Communicators (src/comm/gpu)
// and the NCCL drop-in hand calls to this class. A CudaRank enqueues engines and plans on streams.
// No call waits on the host, and CUDA graphs may capture and replay every call.
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/memory_held.hpp"
#include "gpu/abi/lane_args.hpp"
#include "gpu/arena/arena.hpp"
#include "gpu/arena/pinned_memory.hpp"
#include "gpu/consensus/agreed_share.hpp"
#include "gpu/consensus/lazy_arena.hpp"
#include "gpu/device/call_order.hpp"
#include "gpu/device/event_marker.hpp"
#include "gpu/device/kernels.hpp"
#include "gpu/engine/engine.hpp"
#include "gpu/engine/kernel_families.hpp"
#include "gpu/host_path/host_gather.hpp"
#include "gpu/host_path/host_reducer.hpp"
#include "gpu/lanes/bound_plan.hpp"
#include "gpu/norm/norm_call.hpp"
#include "gpu/p2p/message_memory.hpp"
#include "gpu/p2p/messages.hpp"
#include "gpu/scale/scaled_input.hpp"
#include "gpu/select/usual_group.hpp"
#include "plait/error.hpp"
#include "plait/gpu_memory.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

/// Zeroed page mapped by all ranks: a part for each step of the large arena.
struct LargeArenaPage {
  LazyArenaPage steps[kLargeStepCount];
};

struct CudaRankOptions {
  int device = 0;  ///< CUDA ordinal
  int rank = 0;
  int ranks = 1;
  std::vector<std::string> names;  ///< Rank names for error messages; empty = print the number.
  DeviceArenaSizes sizes;          ///< Fixed sizes of arena parts; 0 = size by `memory`.
  ArenaOptions memory;             ///< The rank sets `two_tiers` if `lazy_arena` is given.
  /// Hands files of GPU memory to ranks that are processes: arenas are at fixed addresses then.
  /// Null = CUDA IPC.
  OpenFileExchange files;
  /// To agree on the first call with each step of the large arena; null = allocate all memory at
  /// once.
  LargeArenaPage* lazy_arena = nullptr;
  /// Total seconds that all calls together wait for a step of the large arena, at most.
  double large_arena_wait_s = 1;
  /// Zeroed page mapped by all ranks, to agree on the first call that has an arena: the rank opens
  /// later if all ranks have proved the paths between `gpus`. Needs lazy_arena, and a process for
  /// each rank. Null = the rank opens at once.
  LazyArenaPage* first_arena = nullptr;
  /// The same as large_arena_wait_s. Longer, since calls without an arena connect all of NCCL.
  double first_arena_wait_s = 5;
  std::vector<std::string> gpus;  ///< UUIDs by rank; empty = no path counts as proved.
  /// Allocates arenas in host memory, since GPUs do not address each other; null = arenas lie in
  /// GPU memory, which all GPUs of the ranks address.
  HostMemory arenas_in_host;
  /// Allocates host memory mapped by all ranks and returns each rank's ring. All ranks call this
  /// together during the allocation of the large arena. The memory outlives the rank. Null = no
  /// host path.
  std::function<std::vector<std::byte*>(const Exchange&)> rings;
  std::uint64_t ring_bytes = 0;           ///< Ring bytes for plans.
  std::uint64_t exchange_ring_bytes = 0;  ///< Ring bytes behind those; large calls use both.
  /// Zeroed page mapped by all ranks, for parts that CPU cores reduce. Null = CPU cores reduce
  /// nothing.
  HostFlags* host_flags = nullptr;
  /// kMessageHostBytes mapped by both ranks of two, for the host-memory share of long messages;
  /// null = none.
  std::byte* message_slots = nullptr;
  /// Zeroed page mapped by all ranks, to agree on the share of large calls that goes through host
  /// memory. Null = no share.
  AgreedNumber::NumberPage* share_page = nullptr;
  /// Seconds without a large call after which the large arena at fixed addresses is given up, if no
  /// capture has used it; 0 = never.
  double trim_s = 0;
  bool orders_calls = true;  ///< false = the caller orders calls on different streams.
  bool mixes_graphs = true;  ///< Order graphs with eager calls and with each other.
  double wait_s = 600.0;     ///< Deadline of a kernel's wait for a peer.
  /// Most blocks of a kernel, to leave SMs to other kernels. 0 = a block per SM.
  unsigned most_blocks = 0;
  bool overlap_compute = false;  ///< Large calls use few SMs, as if most_blocks were set.
  SumOrder sum_order = SumOrder::rank_order;  ///< Rank order or a tree.
  bool messages = false;                      ///< Allocate slots for point-to-point messages.
  bool norms = true;     ///< Load the kernels of all_reduce_rms_norm; the same on all ranks.
  bool factors = false;  ///< Load the kernel of enqueue_products(); the same on all ranks.
  /// By rank, of arenas in host memory: ranks with equal numbers map each other's memory for plans.
  std::vector<int> islands;
  /// Check every path between GPUs. false = paths are known to work, or unused.
  bool proves_paths = true;
  LaneLaunchConfig config;
};

/// Engine that moves a plan's copies: copy engines, a stream per lane (large messages, no SM in use
/// while copying), or a single kernel for all lanes. `automatic` = kernels for small messages and
/// inside graphs, because branches of a graph may not run concurrently.
enum class CopiedBy { automatic, copy_engines, one_kernel };

class CudaRank : public EngineRank {
 public:
  /// Collective over all ranks. Error(no_device) without GPUs, unsupported without device code,
  /// NoDirectAccess if GPUs do not reach each other's memory.
  CudaRank(const CudaRankOptions& options, const Exchange& exchange);
  /// Frees at once, so every peer must have reported has_ended() before. Waits for all work on the
  /// GPU.
  ~CudaRank() override;

  /// The values all ranks agreed on, with both memory tiers.
  const Group& full_group() const { return full_group_; }
  /// The same group with the small arena alone; equal to full_group() without a lazy arena.
  const Group& small_arena_group() const { return small_group_; }
  /// Returns whether the next call of all ranks may use this rank's memory, and reserves the call's
  /// number until then. The answer is the same on all ranks, because all make the same calls. A
  /// rank that opens later begins to open here, and waits for a bounded time. Needed before calls
  /// if the options have first_arena.
  bool reserve_arena();
  /// True if reserve_arena() returns true from now on.
  bool is_open() const { return opening_ == nullptr || is_open_; }
  /// Rolls back the last reserve_arena() of a rank that was not open before.
  void cancel_arena();
  /// True if a peer has begun to open, and this rank should. Any thread; takes no lock.
  bool should_open() const noexcept {
    return opening_ != nullptr && opening_->is_wanted() && !opening_->is_ready();
  }
  void begin_opening() { opening_->begin(); }
  /// True if some rank has an arena, or has begun to open.
  bool has_begun_to_open() const noexcept { return opening_ == nullptr || opening_->is_wanted(); }
  /// The reason why reserve_arena() returned false; empty = not yet on all ranks.
  std::string why_not_open() const {
    return opening_ == nullptr ? std::string() : opening_->failure();
  }
  /// True if a later call allocates the large arena.
  bool has_lazy_arena() const { return large_.front().lazy != nullptr; }
  /// Returns whether the next call that needs these steps of the large arena (LargeStep) may use
  /// them, and reserves that call's number. Needs has_lazy_arena(), and steps != 0. The answer is
  /// the same on all ranks, because all make the same calls.
  bool reserve_large_arena(CallMode call, unsigned steps = kAllLargeSteps);
  /// Rolls back the last reserve_large_arena(), which was granted or not: the call was not
  /// enqueued.
  void cancel_reservation(unsigned steps, bool is_granted);
  /// The reason why reserve_large_arena() returned false.
  std::string why_no_large_arena() const;
  /// Steps of the large arena that some rank has begun to allocate, and this rank should too.
  unsigned wanted_steps() const;
  void begin_large_arena(unsigned steps);
  /// A call with a reservation of these steps has been enqueued.
  void end_large_call(unsigned steps = kAllLargeSteps);
  /// LazyArena::wants_trim() and trim(), of each step.
  bool wants_trim() const noexcept;
  void trim(const std::function<bool()>& have_ended);
  int rank() const override { return options_.rank; }
  int ranks() const { return options_.ranks; }
  Context context() const { return context_; }
  /// The memory that this rank holds, by part. Any thread.
  const MemoryHeld& memory() const { return held_; }

  /// GPU memory, by what suspend() frees. Arenas that are not at fixed addresses stay. Any thread.
  GpuMemory gpu_memory() const noexcept {
    return {held_.of(MemoryPart::streams) + held_.of(MemoryPart::products) + staying_.load(),
            suspendable_.load()};
  }
  /// Frees the arenas' memory until resume(). Addresses stay, so prepared calls and captured graphs
  /// do too. All ranks call this, if some rank has_begun_to_open() as all agree, and no work of any
  /// rank uses the arenas. Later calls throw.
  void suspend() noexcept;
  /// True from a suspend() that has freed memory to the resume(); the same on all ranks.
  bool is_suspended() const { return is_suspended_; }
  /// Throws Error(invalid_argument) between suspend() and resume().
  void require_resumed() const {
    if (is_suspended_) throw_suspended();
  }
  /// Brings the arenas back, with their flags and packets. All ranks call this together. After an
  /// error the rank counts as broken off.
  void resume(const Exchange& exchange);

  /// Returns true once no work of this rank is queued or running, so none of it stores into a
  /// peer's memory. Never blocks. knows_calls: if this rank does not order calls, whether the
  /// caller knows that all calls have ended; if not, all work on the GPU must end first.
  bool has_ended(bool knows_calls = true) noexcept;
  /// Whether a call that this rank orders has not ended on the GPU. Any thread; takes no lock.
  bool has_pending_calls() const noexcept { return marker_.is_ahead(); }
  /// Unmaps the peers' memory. Only the destructor may follow. Waits for all work on the GPU.
  void unmap_peers() noexcept;
  Kernels& kernels() override { return *kernels_; }

  /// Prepares a plan without waiting for the GPU. The result must outlive graphs that replay the
  /// plan.
  std::unique_ptr<BoundPlan> bind(const Plan& plan);
  /// Enqueues this rank's part behind the work on `stream` and behind this rank's earlier calls on
  /// any stream. Later work on `stream` sees the output. scalars: premul_sum, a factor per rank, or
  /// empty.
  void run(const BoundPlan& bound, const void* input, void* output, Stream stream,
           const std::vector<double>& scalars = {}, CopiedBy copied_by = CopiedBy::automatic);

  /// Prepares a call of the engine once, for this tier; count must not be 0. Error(unsupported) if
  /// the engine refuses.
  enum class ArenaTier { small, full };
  std::unique_ptr<PreparedCall> prepare(const Engine& engine, const Request& request,
                                        const Tuning& tuning = {},
                                        ArenaTier tier = ArenaTier::full);
  /// Enqueues a prepared call, in the same stream order as run() of a plan.
  void run(PreparedCall& ready, const Request& request, const CallBuffers& buffers, Stream stream);
  /// Prepares a call of all_reduce_rms_norm that one kernel serves, or the norm `alone`.
  std::unique_ptr<NormCall> prepare(const RmsNorm& norm, const NormTuning& tuning, bool alone,
                                    ArenaTier tier);
  void run(NormCall& call, const RmsNormBuffers& buffers, Stream stream);
  /// Enqueues the products of a pre-multiplied sum, in front of the sum. Waits for no peer. Needs
  /// the option `factors`.
  void enqueue_products(const ScaleArgs& args, unsigned most_blocks, Stream stream);
  /// Returns memory of this rank for products: of the GPU, or pinned host memory if the GPU is
  /// full. The memory lives as long as the rank, since graphs hold the address. A call that is
  /// ordered behind earlier calls may use it.
  char* memory_of_products(std::uint64_t bytes);

  const Group& group() const override {
    return tier_ == ArenaTier::full ? full_group_ : small_group_;
  }
  char* at(const FlagsRow& row, int owner) const override { return arena_->at(row, owner); }
  char* at(const ArenaPart& part, int owner) const override;
  const std::uint32_t* poisoned(const ArenaPart& part) const override;
  EngineQueue& queue() override { return *queue_; }
  const EnginePath& engine_path() const override { return engine_path_; }
  bool reserve_long_inbox(Stream stream) override;
  void end_long_inbox() override;
  Event fork() const override { return fork_; }
  AgreedShare& agreed_share() override { return agreed_share_; }
  bool is_capturing(Stream stream) const override { return marker_.capturing(stream); }
  void fill_call(CallArgs& args, const Request& request) const override;

  /// True if messages() serves any message between two ranks; the same on all ranks.
  bool takes_messages() const { return full_group_.sizes[kMessageMemory] != 0; }
  /// Enqueues this rank's ends of messages. All messages progress concurrently, however the peers
  /// group theirs; messages between two ranks match in order. Stream order as for run(). A sender
  /// may finish before the receiver has come. A size mismatch between the ends is not detected.
  void messages(const std::vector<MessageEnd>& messages, Stream stream,
                const MessageTuning& tuning = {});

  /// Throws Error(timeout, peer_lost or aborted) if a kernel gave up, or the error that broke off a
  /// call. Costs two loads from host memory.
  void check() const;
  /// Ends waiting kernels within milliseconds, without a result and without a stream error, because
  /// the program no longer wants the result. Any thread.
  void abort() noexcept;
  /// Marks the rank as broken: a call on `stream` threw `error` before all its work was enqueued.
  /// Peers count the call, so call numbers no longer match. Waiting kernels fail their stream, as
  /// after fail(), and check() and later calls throw. Does nothing while `stream` captures, since
  /// no work has run. was_eager: whether the call began on a stream that did not capture; another
  /// thread may have begun a capture since, which forbids a query of the legacy stream.
  void break_off(Stream stream, const std::exception& error, bool was_eager) noexcept;
  /// True once a call has broken off.
  bool has_broken_off() const { return has_broken_off_.load(std::memory_order_acquire); }
  /// Makes present and future waiting kernels fail their stream within milliseconds: a rank is
  /// lost, and no call that waits for that rank may report success. Does nothing after abort(). Any
  /// thread.
  void fail() noexcept;
  /// Enqueues a kernel that fails the stream if fail() was called before the kernel runs. Placed
  /// behind another library's part of a call, since that part may have ended early.
  void fail_if_peer_lost(Stream stream);

 private:
  static constexpr std::size_t kStopPageBytes = 4096;
  static constexpr std::size_t kStreams = 30;  // Streams must not share a hardware queue (32).
  static_assert(kStreams >= kEngineEvents && kStreams >= kEngineStreams + kHostStreams);
  bool is_quiet() noexcept;
  bool is_captured(Stream stream) const noexcept;
  void open(const Exchange& exchange);
  void open_later();
  bool agree_on_processes(const Exchange& exchange);
  void agree_on_group();
  void agree_on_host_path();
  void share_arena(const Exchange& exchange);
  void open_memory();
  bool end_opening() noexcept;
  void drop_first_arena() noexcept;
  void make_streams(std::vector<Stream>& streams, std::size_t count);
  void make_events(std::vector<Event>& events, std::size_t count);
  void make_copy_streams();
  void open_engine_path();
  struct LargeArena;
  bool is_in_steps() const { return arena_->is_fixed(); }
  void find_steps();
  unsigned used_steps(unsigned steps) const;
  std::vector<const ArenaPart*> parts_of_step(std::size_t at) const;
  std::uint64_t bytes_of_step(std::size_t at) const;
  std::unique_ptr<DeviceArena> make_large_arena(std::size_t at) const;
  void share_large_arena(std::size_t at, const Exchange& exchange, Stream stream);
  void allocate_large_arena(std::size_t at, const Exchange& exchange);
  void use_copy_path();
  void give_up_large_arena(LargeArena& large) noexcept;
  const DeviceArena& arena_of(const ArenaPart& part) const;
  void cancel_arenas() noexcept;
  void close() noexcept;
  void map_stop_page();
  void make_rings(const Exchange& exchange);
  char* host_memory_of_products(std::uint64_t bytes);
  void forget_rings() noexcept;
  void prove_paths(const Exchange& exchange);
  std::string broken_path_of(const std::vector<int>& members, bool of_island,
                             const Exchange& exchange);
  void open_host_path();
  LaneArgs lane_args(const BoundPlan& bound, const void* input, void* output,
                     const std::vector<double>& scalars) const;
  bool uses_one_kernel(const BoundPlan& bound, CopiedBy copied_by, Stream stream) const;
  void end_lanes(const LaneArgs& args, Stream stream);
  void run_whole(const BoundPlan& bound, LaneArgs& args, Stream stream);
  void run_streams(const BoundPlan& bound, LaneArgs& args, Stream stream);
  void run_lane(const BoundPlan& bound, const BoundLane& lane, LaneArgs& args, std::size_t first);
  /// Fills in the arguments that every waiting kernel needs.
  template <class Args>
  void set_wait_args(Args& args) const {
    args.state = arena_->state();
    args.stop_page = reinterpret_cast<StopPage*>(device_stop_page_);
    args.wait_ns = static_cast<std::uint64_t>(options_.wait_s * 1e9);
  }
  /// Runs `work` behind earlier calls on any stream, if this rank orders calls. Work that may fail
  /// harmlessly comes before: from here on peers count the call.
  template <class Work>
  void in_order(Stream stream, const Work& work) {
    if (has_broken_off()) throw_broken_off();
    require_resumed();
    bool is_eager = false;
    try {
      if (!options_.orders_calls) return work();
      const StreamPlace place = order_.before(marker_, stream);
      is_eager = place.capture == 0;
      work();
      order_.after(marker_, stream, place);
    } catch (const std::exception& error) {
      break_off(stream, error, is_eager);
      throw;
    }
  }
  /// Makes group() and the services of prepare() those of a tier. Throws Error(internal) if the
  /// tier needs the large arena before it is allocated.
  struct TierScope {
    TierScope(CudaRank& of, ArenaTier tier);
    ~TierScope() { rank.tier_ = ArenaTier::full; }
    TierScope(const TierScope&) = delete;
    TierScope& operator=(const TierScope&) = delete;
    CudaRank& rank;
  };
  [[noreturn]] void throw_broken_off() const;
  [[noreturn]] void throw_suspended() const;
  void count_memory() noexcept;
  std::string rank_name(std::size_t rank) const;
  void open_message_slots();
  void launch_messages(MessageArgs args, Stream stream);
  Stream upload() const { return upload_.front(); }
  void await_uploads(Stream stream);

  CudaRankOptions options_;
  MemoryHeld held_;
  std::mutex counting_;  // Guards sums of bytes while they are made.
  std::atomic<std::uint64_t> streams_made_{0}, staying_{0}, suspendable_{0};
  bool is_suspended_ = false;
  Group full_group_, small_group_;
  ArenaTier tier_ = ArenaTier::full;        // Tier that prepare() works for.
  unsigned steps_ = kCopyStep;              // Steps of the large arena that have something to make.
  std::atomic<unsigned> granted_{0};        // Steps of the large arena that some call has got.
  std::atomic<bool> has_copy_path_{false};  // engine_path_ has slots, rings and streams.
  std::atomic<bool> has_lane_streams_{false};  // lane_streams_ are complete, and stay so.
  CallMode reserved_as_ = CallMode::alone;     // of the last reserve_large_arena()
  Device device_ = 0;
  Context context_ = nullptr;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<HostReducer> host_reducer_;
  std::unique_ptr<DriverQueue> queue_;
  std::unique_ptr<DeviceArena> arena_;
  std::unique_ptr<KernelFamilies> families_;
  std::vector<Stream> upload_;  // A single stream, for uploads of plans to the GPU.
  std::vector<Stream> engine_streams_,
      lane_streams_;  // For copy engines and for plans; created at first use.
  std::vector<Stream>
      large_arena_streams_;  // Becomes engine_streams_; owned by LazyArena's thread until then.
  AgreedShare agreed_share_;
  EventMarker marker_{api()};
  CallOrder<EventMarker, Stream> order_;
  std::atomic<bool> has_broken_off_{false};
  // Written before has_broken_off_, as broken_reason_.
  ErrorCode broken_code_ = ErrorCode::internal;
  std::string broken_reason_;
  Event fork_ = nullptr;
  Event uploaded_ = nullptr;               // Recorded behind the upload of the plan bound last.
  bool has_uploads_ = false;               // Uploads may still be running.
  std::vector<Event> marks_;               // One per stream of lanes; created at first use.
  std::vector<Event> large_arena_events_;  // For copy engines, created with large_arena_streams_.
  std::unique_ptr<PinnedPages> stop_memory_;
  StopPage* stop_page_ = nullptr;  // Host address.
  DevicePointer device_stop_page_ = 0;
  std::vector<std::byte*> host_rings_;  // By rank; those registered so far.
  std::vector<DevicePointer> rings_;    // Device addresses of host_rings_.
  struct ProductMemory {
    std::uint64_t bytes;
    DevicePointer address;
    std::unique_ptr<PinnedPages> on_host;  // Null = GPU memory.
  };
  std::vector<ProductMemory> products_;
  EnginePath engine_path_;
  bool words_registered_ = false, slots_registered_ = false;
  DevicePointer message_slots_ = 0;  // Device address of host memory; 0 = none.
  std::shared_ptr<std::atomic<bool>>
      quiet_;             // True once the GPU had finished all work after has_ended() first asked.
  bool is_open_ = false;  // A call has got the arena. Of the thread of the calls.
  bool has_told_failure_ = false;     // Of the opening.
  std::atomic<bool> is_made_{false};  // The members of the opening are there.
  /// A step of the large arena. If arenas are not at fixed addresses, the first holds all parts.
  struct LargeArena {
    std::unique_ptr<DeviceArena> arena;  // Owned by lazy's thread until is_shared.
    std::atomic<bool> is_shared{false};  // All ranks have mapped the arena, once at least.
    std::atomic<bool> is_fixed{false};   // The arena can be given up; the same on all ranks.
    bool is_suspended = false;           // A suspend has freed the arena.
    /// Bytes that count() found: held on the GPU and on the host, and by what suspend() frees.
    std::atomic<std::uint64_t> gpu_bytes{0}, host_bytes{0}, staying{0}, suspendable{0};
    std::unique_ptr<LazyArena> lazy;  // Null = no lazy arena.
    void count() noexcept;
  };
  // Last members: their threads use the others. By LargeStep; copies go before tiles.
  std::array<LargeArena, kLargeStepCount> large_;
  std::unique_ptr<LazyArena> opening_;  // Null = opened with the constructor.
};

}  // namespace plait::cuda
