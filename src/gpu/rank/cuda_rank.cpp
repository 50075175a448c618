// Life of a rank, and the enqueueing of engines, messages and plans' lanes.
#include "gpu/rank/cuda_rank.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/log.hpp"
#include "base/text.hpp"
#include "gpu/abi/lane_args.hpp"
#include "gpu/arena/pinned_memory.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/device/call_buffers.hpp"
#include "gpu/device/neighbours.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/host_path/with_host_part.hpp"
#include "gpu/lanes/plan_memory.hpp"
#include "gpu/ll/ll_memory.hpp"
#include "gpu/path_check/path_check.hpp"
#include "gpu/select/all_resources.hpp"
#include "gpu/select/engines.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kStreamBytes = 600'000;  // Seen on an H200.

}  // namespace

CudaRank::CudaRank(const CudaRankOptions& options, const Exchange& exchange)
    : options_(options), order_(options.mixes_graphs) {
  if (options.ranks > kMaxCudaRanks)
    throw Error(ErrorCode::unsupported,
                text("wanted {} ranks on GPUs, at most {}", options.ranks, kMaxCudaRanks));
  PLAIT_CUDA_CALL(device_get, &device_, options.device);
  PLAIT_CUDA_CALL(primary_retain, &context_, device_);
  try {
    open(exchange);
  } catch (...) {
    close();
    throw;
  }
}

CudaRank::~CudaRank() { close(); }

/// Creates the missing streams consecutively, so that no two share a hardware queue. Streams are
/// created by the first call that needs streams, since a stream takes 0.6 MB of a GPU and the
/// driver keeps the memory after the stream ends.
void CudaRank::make_streams(std::vector<Stream>& streams, std::size_t count) {
  if (streams.size() == count) return;
  const RelaxedCaptureMode relaxed;
  const Current current(context_);
  int least = 0, greatest = 0;
  PLAIT_CUDA_CALL(stream_priority_range, &least, &greatest);
  while (streams.size() < count) {
    Stream made = nullptr;
    PLAIT_CUDA_CALL(stream_create, &made, kStreamNonBlocking, greatest);
    streams.push_back(made);
    held_.set(MemoryPart::streams, kStreamBytes * ++streams_made_);
  }
}

void CudaRank::make_events(std::vector<Event>& events, std::size_t count) {
  if (events.size() == count) return;
  const RelaxedCaptureMode relaxed;
  const Current current(context_);
  while (events.size() < count) {
    Event made = nullptr;
    PLAIT_CUDA_CALL(event_create, &made, kEventDisableTiming);
    events.push_back(made);
  }
}

/// Makes streams and events of copy engines.
void CudaRank::make_copy_streams() {
  make_streams(large_arena_streams_, kEngineStreams + kHostStreams);
  make_events(large_arena_events_, kEngineEvents + kHostEvents);
}

/// Calls by copy engines borrow the slots of tiles alone.
const std::uint32_t* CudaRank::poisoned(const ArenaPart& part) const {
  const bool is_borrowed = &part == &kTileMemory && borrowed_bytes(group()) != 0;
  return is_borrowed ? &flags(kEngineFlags, options_.rank)->poisoned : nullptr;
}

/// Frees everything that open() has created so far. The GPU must be idle.
void CudaRank::close() noexcept {
  opening_.reset();
  for (LargeArena& large : large_) large.lazy.reset();
  const RelaxedCaptureMode relaxed;
  if (api().context_push(context_) == kSuccess) {
    api().context_synchronize();
    if (arena_ != nullptr) neighbours().remove(device_, arena_->state(), upload());
    for (const auto* streams : {&upload_, &engine_streams_, &large_arena_streams_, &lane_streams_})
      for (Stream stream : *streams) api().stream_destroy(stream);
    for (const auto* events : {&marks_, &large_arena_events_})
      for (Event event : *events) api().event_destroy(event);
    for (Event event : {fork_, uploaded_})
      if (event != nullptr) api().event_destroy(event);
    marker_.close();
    agreed_share_.close();
    for (std::size_t at = large_.size(); at-- > 0;) large_[at].arena.reset();
    arena_.reset();
    queue_.reset();
    host_reducer_.reset();
    kernels_.reset();
    for (const ProductMemory& one : products_)
      if (one.on_host == nullptr) api().memory_free(one.address);
    products_.clear();
    forget_rings();
    if (words_registered_) unregister_pinned(reinterpret_cast<std::byte*>(options_.host_flags));
    if (slots_registered_) unregister_pinned(options_.message_slots);
    stop_memory_.reset();
    Context popped = nullptr;
    api().context_pop(&popped);
  }
  api().primary_release(device_);
}

void CudaRank::fill_call(CallArgs& args, const Request& request) const {
  set_wait_args(args);
  set_scalars(args, {});
  args.rank = options_.rank;
  args.ranks = options_.ranks;
  set_reduction(args, request, options_.sum_order);
  args.behind_bus = full_group_.through_host ? 1 : 0;
}

CudaRank::TierScope::TierScope(CudaRank& of, ArenaTier tier) : rank(of) {
  if (tier == ArenaTier::full && !rank.has_copy_path_ && rank.granted_ == 0)
    throw Error(ErrorCode::internal, "large-message arena used before it was allocated");
  rank.tier_ = tier;
}

std::unique_ptr<PreparedCall> CudaRank::prepare(const Engine& engine, const Request& request,
                                                const Tuning& tuning, ArenaTier tier) {
  const TierScope scope(*this, tier);
  const std::string why = why_not(engine, request, tuning, group());
  if (!why.empty())
    throw Error(ErrorCode::unsupported,
                text("{} does not take {} {} over {} ranks: {}", engine.info().name, request.count,
                     name_of(request.type), request.ranks, why));
  const Current current(context_);
  return prepare_with_host_part(engine, request, tuning, *this);
}

void CudaRank::run(PreparedCall& ready, const Request& request, const CallBuffers& buffers,
                   Stream stream) {
  check_alignment(request, options_.rank, buffers.input, buffers.output);
  const Current current(context_);
  in_order(stream, [&] { ready.enqueue(buffers, stream); });
}

void CudaRank::messages(const std::vector<MessageEnd>& messages, Stream stream,
                        const MessageTuning& tuning) {
  if (!takes_messages())
    throw Error(
        ErrorCode::unsupported,
        text("point-to-point messages have no slots on this communicator{}{}",
             full_group_.runs(kMessageKernels) ? "" : ": ", full_group_.lacks(kMessageKernels)));
  const MessageLaunchConfig config{
      message_channels(options_.ranks, full_group_.most_message_blocks), tuning,
      message_slots_ == 0 ? 0
                          : std::min<std::uint32_t>(tuning.host_channels, kMessageHostChannels)};
  const std::vector<MessageArgs> launches =
      plan_messages(messages, options_.rank, options_.ranks, config);
  const Current current(context_);
  in_order(stream, [&] {
    for (const MessageArgs& args : launches) launch_messages(args, stream);
  });
}

void CudaRank::launch_messages(MessageArgs args, Stream stream) {
  set_wait_args(args);
  args.rank = options_.rank;
  args.ranks = options_.ranks;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    args.flags[rank] = flags(kMessageFlags, rank);
    args.slots[rank] = at(kMessageMemory, rank);
    args.packets[rank] = at(kMessagePackets, rank);
  }
  args.host_slots = reinterpret_cast<char*>(message_slots_);
  KernelLaunchConfig wide;
  wide.threads = 2 * kMessageTeamThreads;
  wide.blocks = message_blocks(args);
  if (!full_group_.runs(kBulkMessageKernels)) args.bulk = 0;
  wide.shared_bytes = args.bulk != 0 ? 2 * kMessageTeamBytes : 0;
  wide.programmatic = true;
  kernels_->launch(kernels_->find("plait_messages"), wide, stream, {&args});
}

std::unique_ptr<BoundPlan> CudaRank::bind(const Plan& plan) {
  const Current current(context_);
  if (plan.request.ranks != options_.ranks)
    throw Error(ErrorCode::mismatch, text("plan is for {} ranks, the communicator has {}",
                                          plan.request.ranks, options_.ranks));
  if (!full_group_.runs(kLaneKernels))
    throw Error(ErrorCode::unsupported,
                text("plans do not run here: {}", full_group_.lacks(kLaneKernels)));
  auto bound = std::make_unique<BoundPlan>(plan, options_.rank, *arena_, full_group_.sizes,
                                           options_.ring_bytes, options_.config, upload());
  PLAIT_CUDA_CALL(event_record, uploaded_, upload());
  has_uploads_ = true;
  std::size_t streams = 0;
  for (const BoundLane& lane : bound->lanes()) streams += lane.copies ? 3 : 1;
  if (streams > kStreams)
    throw Error(ErrorCode::unsupported,
                text("plan needs {} streams per rank; at most {} run side by side on a GPU",
                     streams, kStreams));
  return bound;
}

/// Orders `stream` behind plan uploads. The capturing thread waits on the host, since a replayed
/// graph would not wait for the upload; the copy itself waits only for the hardware queue.
void CudaRank::await_uploads(Stream stream) {
  if (!has_uploads_) return;
  if (!is_capturing(stream)) {
    PLAIT_CUDA_CALL(stream_wait_event, stream, uploaded_, 0);
    has_uploads_ = api().stream_query(upload()) != kSuccess;
    return;
  }
  constexpr auto kLongest = std::chrono::seconds(5);
  const RelaxedCaptureMode relaxed;
  const auto end = std::chrono::steady_clock::now() + kLongest;
  while (api().stream_query(upload()) == kNotReady) {
    if (std::chrono::steady_clock::now() > end)
      throw Error(
          ErrorCode::timeout,
          "tables of a plan were not uploaded in time for its first, captured call; make the call "
          "once before the capture");
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  has_uploads_ = false;
}

LaneArgs CudaRank::lane_args(const BoundPlan& bound, const void* input, void* output,
                             const std::vector<double>& scalars) const {
  const Plan& plan = bound.plan();
  LaneArgs args{};
  args.ops = bound.ops();
  args.sources = bound.sources();
  args.counters = bound.counters();
  args.inbox_half_bytes = full_group_.sizes[kPlanInbox];
  set_wait_args(args);
  args.ranks = options_.ranks;
  args.rank = options_.rank;
  if (options_.ranks == 2)  // With more ranks all copies go by kernels.
    for (int rank = 0; rank < options_.ranks; ++rank)
      args.poisoned[rank] = &flags(kEngineFlags, rank)->poisoned;
  set_reduction(args, plan.request, plan.sum_order);
  args.epochs = epochs_per_call(plan);
  args.inbox_calls = bound.uses_inbox() ? 1 : 0;
  std::fill(std::ranges::copy(scalars, args.scalars).out, std::end(args.scalars), 1.0);
  args.bases[0] = static_cast<char*>(const_cast<void*>(input));
  args.bases[1] = static_cast<char*>(output);
  for (int rank = 0; rank < options_.ranks; ++rank) {
    args.bases[base_index(Space::scratch, rank)] = at(kPlanScratch, rank);
    args.bases[base_index(Space::inbox, rank)] = at(kPlanInbox, rank);
    if (!rings_.empty())
      args.bases[base_index(Space::ring, rank)] =
          reinterpret_cast<char*>(rings_[static_cast<std::size_t>(rank)]);
  }
  return args;
}

bool CudaRank::uses_one_kernel(const BoundPlan& bound, CopiedBy copied_by, Stream stream) const {
  if (copied_by == CopiedBy::copy_engines && options_.ranks > 2)
    throw Error(ErrorCode::unsupported, text("copy engines run plans of 2 ranks only, found {}: "
                                             "more were seen to hang; use one kernel",
                                             options_.ranks));
  if (copied_by != CopiedBy::automatic) return copied_by == CopiedBy::one_kernel;
  constexpr std::uint64_t kCopyEngineBytes = 256ull << 20;
  // Copy engines of four and more GPUs have been seen to hang (E-0016).
  return is_capturing(stream) || options_.ranks > 2 || !has_copy_engines(full_group_) ||
         message_bytes(bound.plan().request) < kCopyEngineBytes;
}

void CudaRank::run(const BoundPlan& bound, const void* input, void* output, Stream stream,
                   const std::vector<double>& scalars, CopiedBy copied_by) {
  if (reduces(bound.plan().request.collective))  // Calls that only move data accept any alignment.
    check_alignment(bound.plan().request, options_.rank, input, output);
  const Current current(context_);
  const bool by_one_kernel = uses_one_kernel(bound, copied_by, stream);
  if (!by_one_kernel) {
    make_streams(lane_streams_, kStreams);
    make_events(marks_, kStreams);
    has_lane_streams_ = true;  // Last: has_ended() may read the streams from now on.
  }
  in_order(stream, [&] {
    await_uploads(stream);
    LaneArgs args = lane_args(bound, input, output, scalars);
    if (by_one_kernel)
      run_whole(bound, args, stream);
    else
      run_streams(bound, args, stream);
  });
}

void CudaRank::end_lanes(const LaneArgs& args, Stream stream) {
  LaneEnd end{args.state,  args.stop_page,  args.wait_ns, args.poisoned[args.rank],
              args.epochs, args.inbox_calls};
  kernels_->launch(kernels_->find("plait_end_call"), {1, 1, false}, stream, {&end});
}

void CudaRank::run_whole(const BoundPlan& bound, LaneArgs& args, Stream stream) {
  if (bound.whole_count() == 0) {  // Nothing to do on this rank, but the call counts.
    end_lanes(args, stream);
    return;
  }
  args.lanes = bound.segments() + bound.first_whole();
  args.lane_count = bound.whole_count();
  args.ends_call = 1;
  kernels_->launch(kernels_->find(lane_kernel(bound.plan().request)),
                   {bound.whole_blocks(), 512, false}, stream, {&args});
}

/// Enqueues a lane. A lane with copies uses three streams: waits run ahead and signals follow, so
/// copies are back to back and no copy engine idles while a flag travels. Lane order holds: a copy
/// starts after all preceding waits, and a signal after all preceding ops. A wait may run early,
/// which only weakens the order.
void CudaRank::run_lane(const BoundPlan& bound, const BoundLane& lane, LaneArgs& args,
                        std::size_t first) {
  Function kernel = kernels_->find(lane_kernel(bound.plan().request));
  const std::size_t main = first, waits = lane.copies ? first + 1 : first,
                    signals = lane.copies ? first + 2 : first;
  bool waited = false;  // The waits stream is ahead of the main stream.
  for (const LaneStep& step : lane.steps) {
    const bool waiting = step.work == LaneStep::LaneWork::waits,
               signalling = step.work == LaneStep::LaneWork::signals;
    if (waited && !waiting && lane.copies) {
      PLAIT_CUDA_CALL(event_record, marks_[waits], lane_streams_[waits]);
      PLAIT_CUDA_CALL(stream_wait_event, lane_streams_[main], marks_[waits], 0);
      waited = false;
    }
    if (step.work == LaneStep::LaneWork::copy) {
      const auto dst = reinterpret_cast<DevicePointer>(args.bases[step.dst.base]) + step.dst.offset;
      const auto src = reinterpret_cast<DevicePointer>(args.bases[step.src.base]) + step.src.offset;
      PLAIT_CUDA_CALL(memory_copy_async, dst, src, step.bytes, lane_streams_[main]);
      continue;
    }
    if (signalling && lane.copies) {
      PLAIT_CUDA_CALL(event_record, marks_[main], lane_streams_[main]);
      PLAIT_CUDA_CALL(stream_wait_event, lane_streams_[signals], marks_[main], 0);
    }
    args.lanes = bound.segments() + step.segment;
    args.lane_count = 1;
    Stream stream = lane_streams_[waiting ? waits : signalling ? signals : main];
    kernels_->launch(kernel, {step.blocks, step.threads, false}, stream, {&args});
    waited = waited || waiting;
  }
}

void CudaRank::run_streams(const BoundPlan& bound, LaneArgs& args, Stream stream) {
  PLAIT_CUDA_CALL(event_record, fork_, stream);
  std::size_t used = 0;
  for (const BoundLane& lane : bound.lanes()) {
    const std::size_t width = lane.copies ? 3 : 1;
    for (std::size_t i = used; i < used + width; ++i)
      PLAIT_CUDA_CALL(stream_wait_event, lane_streams_[i], fork_, 0);
    run_lane(bound, lane, args, used);
    used += width;
  }
  for (std::size_t i = 0; i < used; ++i) {
    PLAIT_CUDA_CALL(event_record, marks_[i], lane_streams_[i]);
    PLAIT_CUDA_CALL(stream_wait_event, stream, marks_[i], 0);
  }
  end_lanes(args, stream);
}

std::string CudaRank::rank_name(std::size_t rank) const {
  return options_.names.empty() ? text("rank {}", rank) : options_.names[rank];
}

void CudaRank::check() const {
  if (has_broken_off()) throw_broken_off();
  const auto code =
      std::atomic_ref<std::uint32_t>(stop_page_->fault.code).load(std::memory_order_acquire);
  if (code == kNoFault) return;
  const KernelFault& fault = stop_page_->fault;
  const std::string me = rank_name(static_cast<std::size_t>(options_.rank));
  const std::string peer = fault.peer == kNoPeer ? "a rank of another node" : rank_name(fault.peer);
  const std::string place =
      fault.lane == ~0u ? text("a fused kernel") : text("lane {} op {}", fault.lane, fault.where);
  if (code == kFaultAborted)
    throw Error(ErrorCode::aborted, text("{} stopped waiting for {} in {}", me, peer, place));
  constexpr const char* kNext =
      ". The call has no result, so its stream and this process's work on the GPU have failed: "
      "restart the program";
  if (code == kFaultLost)
    throw Error(ErrorCode::peer_lost,
                text("{} waited for {} in {} when a rank was lost{}", me, peer, place, kNext));
  throw Error(ErrorCode::timeout, text("{} waited {} s for {} in {}; check that rank{}", me,
                                       options_.wait_s, peer, place, kNext));
}

void CudaRank::cancel_arenas() noexcept {
  if (opening_ != nullptr) opening_->cancel();
  for (LargeArena& large : large_)
    if (large.lazy != nullptr) large.lazy->cancel();
}

void CudaRank::abort() noexcept {
  cancel_arenas();
  std::atomic_ref<std::uint32_t>(stop_page_->stop).store(kFaultAborted, std::memory_order_release);
}

void CudaRank::fail() noexcept {
  cancel_arenas();
  std::uint32_t expected = kNoFault;
  std::atomic_ref<std::uint32_t>(stop_page_->stop)
      .compare_exchange_strong(expected, kFaultLost, std::memory_order_release);
}

void CudaRank::break_off(Stream stream, const std::exception& error, bool was_eager) noexcept {
  if (has_broken_off() || (!was_eager && is_captured(stream))) return;
  try {
    const auto* const known = dynamic_cast<const Error*>(&error);
    if (known != nullptr) broken_code_ = known->code();
    broken_reason_ = error.what();
  } catch (const std::exception&) {  // Out of memory for the text.
  }
  has_broken_off_.store(true, std::memory_order_release);
  fail();
}

void CudaRank::throw_broken_off() const {
  throw Error(
      broken_code_,
      text(
          "a call of {} failed before all of its work was enqueued ({}). Peers count this call, so "
          "the communicator accepts no more calls and waiting kernels fail: restart the program",
          rank_name(static_cast<std::size_t>(options_.rank)), broken_reason_));
}

/// Also true if a capture of another thread forbids a query of the legacy stream.
bool CudaRank::is_captured(Stream stream) const noexcept {
  Context popped = nullptr;
  if (api().context_push(context_) != kSuccess) return false;
  int status = kCaptureNone;
  const Result result = api().stream_is_capturing(stream, &status);
  api().context_pop(&popped);
  return result == kCaptureImplicit || (result == kSuccess && status != kCaptureNone);
}

void CudaRank::fail_if_peer_lost(Stream stream) {
  const Current current(context_);
  PeerLostArgs args{arena_->state(), reinterpret_cast<StopPage*>(device_stop_page_)};
  kernels_->launch(kernels_->find("plait_fail_if_peer_lost"), {1, 1, false}, stream, {&args});
}

}  // namespace plait::cuda
