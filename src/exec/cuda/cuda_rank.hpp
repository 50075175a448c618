// One rank on one GPU: its context, streams and memory, and the order of its calls. Calls by
// engines and plans are put on streams here; none waits on the host, and all may be captured into
// CUDA graphs and replayed any number of times.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exec/cuda/device/arena.hpp"
#include "exec/cuda/device/call_order.hpp"
#include "exec/cuda/device/event_marker.hpp"
#include "exec/cuda/device/kernel_families.hpp"
#include "exec/cuda/device/kernels.hpp"
#include "exec/cuda/engine.hpp"
#include "exec/cuda/host/host_gather.hpp"
#include "exec/cuda/lanes/bound_plan.hpp"
#include "exec/cuda/lanes/lane_args.hpp"
#include "exec/cuda/messages/messages.hpp"
#include "exec/cuda/share/agreed_share.hpp"
#include "exec/cuda/share/lazy_arena.hpp"
#include "plait/error.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

struct CudaRankOptions {
  int device = 0;  ///< CUDA ordinal
  int rank = 0;
  int ranks = 1;
  std::vector<std::string> names;       ///< of each in errors, where that is not its number
  DeviceArenaSizes sizes;               ///< of parts that are to be of that size; 0 = by `memory`
  ArenaOptions memory;                  ///< `two_tiers` follows from `growth`
  LazyArenaPage* lazy_arena = nullptr;  ///< zeros that all ranks map, to agree from which call on
                                        ///< there is room for large ones; null = all room at once
  double large_arena_wait_s = 1;        ///< how long calls wait for that room, all together
  /// Makes host memory that all ranks map, and says where each rank's is; all ranks together, where
  /// room for large calls is made. It outlives the rank. Null = no host path.
  std::function<std::vector<std::byte*>(const Exchange&)> rings;
  std::uint64_t ring_bytes = 0;           ///< of a ring, for plans
  std::uint64_t exchange_ring_bytes = 0;  ///< behind them: large calls take both
  HostWords* host_words = nullptr;        ///< a page of zeros that all ranks map, for parts that
                                          ///< CPU cores reduce; null = none
  std::byte* message_slots = nullptr;  ///< kMessageHostBytes that both ranks of two map, for long
                                       ///< messages' share through host memory; null = none
  AgreedNumber::NumberPage* share_page =
      nullptr;                    ///< zeros that all ranks map, to agree on the share
                                  ///< of large calls through host memory; null = none
  bool orders_calls = true;       ///< false = who calls sees to the order between streams
  bool mixes_graphs = true;       ///< graphs are ordered beside eager calls and each other
  double wait_s = 600.0;          ///< how long a kernel waits for a peer before it gives up
  unsigned most_blocks = 0;       ///< of a kernel, to leave SMs to others; 0 = one an SM
  bool beside_computing = false;  ///< large calls take few SMs, as where most_blocks is set
  bool messages = false;          ///< room for messages between single ranks
  bool proves_paths = true;       ///< false = they are known to work, or nothing runs on them
  LaneSpread spread;
};

/// What copies: the copy engines, one stream a lane (large messages, no SMs while copying), or one
/// kernel for all lanes. `automatic`: kernels for what is small, and inside graphs, whose branches
/// may not run side by side.
enum class CopiedBy { automatic, copy_engines, one_kernel };

class CudaRank : public EngineRank {
 public:
  /// All ranks together. Error(no_device) without GPUs, unsupported without device code.
  CudaRank(const CudaRankOptions& options, const Exchange& exchange);
  /// Frees at once: no peer may have anything under way to this rank any more, as has_ended() says
  /// of each of them. Waits for all that runs on the GPU.
  ~CudaRank() override;

  /// What all ranks agreed on, with all room.
  const Group& full_group() const { return full_group_; }
  /// With the first room alone; where it does not grow, the same.
  const Group& small_arena_group() const { return small_group_; }
  /// Large calls have room from some call on.
  bool has_lazy_arena() const { return lazy_arena_ != nullptr; }
  /// Where it grows: of the next call that wants the later room, whether it is there. The same on
  /// all ranks, which ask for the same calls.
  bool reserve_large_arena(CallMode call);
  /// The call asked for last was not made after all.
  void cancel_reservation() { lazy_arena_->cancel_last(); }
  /// Why reserve_large_arena() says no.
  std::string why_no_large_arena() const;
  /// True where some rank has begun to make it, so that this one should.
  bool should_allocate_large_arena() const { return has_lazy_arena() && lazy_arena_->is_wanted(); }
  void begin_large_arena() { lazy_arena_->begin(); }
  int rank() const override { return options_.rank; }
  int ranks() const { return options_.ranks; }
  Context context() const { return context_; }

  /// True once nothing of this rank is queued or runs any more, so that it stores into no peer's
  /// memory. Asks, and never waits. knows_calls: where this rank does not order calls, whether who
  /// does knows that they have ended; else all that the GPU has to do must end first.
  bool has_ended(bool knows_calls = true) noexcept;
  /// Lets go of the peers' memory; only the destructor may come after. Waits for all that runs on
  /// the GPU.
  void unmap_peers() noexcept;
  Kernels& kernels() override { return *kernels_; }

  /// Prepares a plan, and waits for nothing that the GPU does. Keep it as long as graphs replay it.
  std::unique_ptr<BoundPlan> bind(const Plan& plan);
  /// Enqueues this rank's part after what `stream` holds and after this rank's earlier calls on any
  /// stream; what comes after it on `stream` sees the output. scalars: premul_sum, one a rank, or
  /// empty.
  void run(const BoundPlan& bound, const void* input, void* output, Stream stream,
           const std::vector<double>& scalars = {}, CopiedBy copied_by = CopiedBy::automatic);

  /// The engine's call, made ready once, where count is not 0, in that room. Error(unsupported)
  /// where the engine refuses.
  enum class ArenaTier { small, full };
  std::unique_ptr<PreparedCall> prepare(const Engine& engine, const Request& request,
                                        const Tuning& tuning = {},
                                        ArenaTier tier = ArenaTier::full);
  /// Same order of effects as run() of a plan.
  void run(PreparedCall& ready, const Request& request, const CallBuffers& buffers, Stream stream);

  const Group& group() const override {
    return tier_ == ArenaTier::full ? full_group_ : small_group_;
  }
  ArenaHeader& header(int owner) const override { return *arena_->header(owner); }
  char* at(ArenaPart part, int owner) const override;
  EngineQueue& queue() override { return *queue_; }
  const EnginePath& engine_path() const override { return engine_path_; }
  Event fork() const override { return fork_; }
  AgreedShare& agreed_share() override { return agreed_share_; }
  bool is_capturing(Stream stream) const override { return marker_.capturing(stream); }
  void fill_call(CallArgs& args, const Request& request) const override;

  /// True where messages() serves any message between two ranks; the same on all ranks.
  bool takes_messages() const { return full_group_.sizes.message_slot_bytes != 0; }
  /// This rank's ends of messages that all move side by side, whatever calls their other ends are
  /// in; those between the same two ranks in order. Same order of effects as run(). A sender may
  /// end before its peer has come; a peer that asks for another size is not noticed.
  void messages(const std::vector<MessageEnd>& messages, Stream stream,
                const MessageTuning& tuning = {});

  /// Error(timeout, peer_lost or aborted) where a kernel gave up, or what a call broke off with;
  /// costs two loads from host memory.
  void check() const;
  /// Kernels that wait end within milliseconds, without a result and without an error of their
  /// stream: the program does not want them any more. Any thread.
  void abort() noexcept;
  /// A call on `stream` ended with `error` before all of it was on its streams. Peers count the
  /// call, so nothing fits from here on: kernels that wait fail their stream, as after fail(), and
  /// check() and later calls throw. Nothing where the stream captures: there nothing has run.
  void break_off(Stream stream, const std::exception& error) noexcept;
  /// True once a call broke off.
  bool has_broken_off() const { return has_broken_off_.load(std::memory_order_acquire); }
  /// Kernels that wait, now or later, fail their stream within milliseconds: a rank is lost, and no
  /// call that waits for it may end as if it had a result. Nothing after abort(). Any thread.
  void fail() noexcept;
  /// Fails the stream where fail() was called before it comes here: behind what another library did
  /// for a call, which may have ended early then.
  void fail_if_peer_lost(Stream stream);

 private:
  bool is_quiet() noexcept;
  bool is_captured(Stream stream) const noexcept;
  void open(const Exchange& exchange);
  void agree_on_group();
  void make_streams(std::vector<Stream>& streams, std::size_t count);
  void open_engine_path();
  void allocate_large_arena(const Exchange& exchange);
  void use_large_arena();
  const DeviceArena& whole_arena(ArenaPart part) const;
  void close() noexcept;
  void map_stop_page();
  void make_rings(const Exchange& exchange);
  void forget_rings() noexcept;
  void prove_paths(const Exchange& exchange);
  void open_host_path();
  LaneArgs lane_args(const BoundPlan& bound, const void* input, void* output,
                     const std::vector<double>& scalars) const;
  bool uses_one_kernel(const BoundPlan& bound, CopiedBy copied_by, Stream stream) const;
  void end_lanes(const LaneArgs& args, Stream stream);
  void run_whole(const BoundPlan& bound, LaneArgs& args, Stream stream);
  void run_streams(const BoundPlan& bound, LaneArgs& args, Stream stream);
  void run_lane(const BoundPlan& bound, const BoundLane& lane, LaneArgs& args, std::size_t first);
  /// What every kernel that waits is told.
  template <class Args>
  void set_wait_args(Args& args) const {
    args.state = arena_->state();
    args.stop_page = reinterpret_cast<StopPage*>(device_stop_page_);
    args.wait_ns = static_cast<std::uint64_t>(options_.wait_s * 1e9);
  }
  /// Behind earlier calls on any stream, if that is this rank's to see to. What may fail without
  /// harm comes before: from here on peers count the call.
  template <class Work>
  void in_order(Stream stream, const Work& work) {
    if (has_broken_off()) throw_broken_off();
    try {
      if (!options_.orders_calls) return work();
      const StreamPlace place = order_.before(marker_, stream);
      work();
      order_.after(marker_, stream, place);
    } catch (const std::exception& error) {
      break_off(stream, error);
      throw;
    }
  }
  [[noreturn]] void throw_broken_off() const;
  std::string rank_name(std::size_t rank) const;
  void open_message_slots();
  void launch_messages(MessageArgs args, Stream stream);
  Stream upload() const { return upload_.front(); }
  void await_uploads(Stream stream);

  CudaRankOptions options_;
  Group full_group_, small_group_;
  ArenaTier tier_ = ArenaTier::full;  // that calls are prepared for
  bool has_large_arena_ = false;      // so this rank's calls may use it
  Device device_ = 0;
  Context context_ = nullptr;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<HostReducer> host_reducer_;
  std::unique_ptr<DriverQueue> queue_;
  std::unique_ptr<DeviceArena> arena_;
  std::unique_ptr<DeviceArena> large_arena_;  // until has_large_arena_, of the thread that makes it
  std::unique_ptr<KernelFamilies> families_;
  std::vector<Stream> upload_;                         // one, which brings plans to the GPU
  std::vector<Stream> engine_streams_, lane_streams_;  // of copy engines and plans, once in use
  std::vector<Stream>
      large_arena_streams_;  // engine_streams_ until has_large_arena_, of later_'s thread
  AgreedShare agreed_share_;
  EventMarker marker_{api()};
  CallOrder<EventMarker, Stream> order_;
  std::atomic<bool> has_broken_off_{false};
  ErrorCode broken_code_ = ErrorCode::internal;  // set before has_broken_off_, as the next one
  std::string broken_reason_;
  Event fork_ = nullptr;
  Event uploaded_ = nullptr;       // behind the plan bound last
  bool has_uploads_ = false;       // that may be under way
  std::vector<Event> marks_;       // one a stream
  StopPage* stop_page_ = nullptr;  // host address
  DevicePointer device_stop_page_ = 0;
  std::vector<std::byte*> host_rings_;  // by rank; so far as they are registered
  std::vector<DevicePointer> rings_;    // the same, as the device sees them
  EnginePath engine_path_;
  bool words_registered_ = false, slots_registered_ = false;
  DevicePointer message_slots_ = 0;           // of host memory; 0 = none
  std::shared_ptr<std::atomic<bool>> quiet_;  // the GPU has done all that it had to do at some time
  std::unique_ptr<LazyArena> lazy_arena_;     // last: its thread uses the others
};

}  // namespace plait::cuda
