// Streams, events and shared buffers of the GPUs of a process, and the enqueueing of calls.
#include "gpu/copy_pair/one_process.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "base/text.hpp"
#include "gpu/device/copy_batch.hpp"
#include "gpu/device/direct_access.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr std::size_t kBegin = 0, kEnd = 1, kFirstEvent = 2;
constexpr std::size_t kReady = 0, kDirectEnd = 1, kHostEnd = 2, kTimes = 3;  // Gpu::times
constexpr Result kPeerAccessUnsupported = 217;  // The driver then stages copies itself.

/// If NCCL's settings forbid direct access, the driver stages copies between the two GPUs too.
bool may_address(int from, int to) {
  const DirectAccess allowed = direct_access();
  return allowed.most >= Distance::sys ||
         (allowed.most > Distance::loc &&
          distance_between(uuid_of(from), uuid_of(to)) <= allowed.most);
}

DevicePointer address(const void* pointer) { return reinterpret_cast<DevicePointer>(pointer); }

/// By rank, the lanes that read the rank's input: a lane of a direct path and a lane of a path
/// through host memory.
std::vector<BoundCopies::Sender> senders_of(const Plan& plan) {
  constexpr std::size_t kNone = ~std::size_t{0};
  std::map<int, BoundCopies::Sender> senders;
  for (std::size_t lane = 0; lane < plan.lanes.size(); ++lane)
    for (const Op& op : plan.lanes[lane].ops) {
      if (op.kind != OpKind::copy || op.srcs.front().space != Space::input || op.path < 0) continue;
      const bool is_host = plan.paths[static_cast<std::size_t>(op.path)].kind == PathKind::host;
      auto& sender = senders.try_emplace(plan.lanes[lane].rank, kNone, kNone).first->second;
      (is_host ? sender.host_lane : sender.direct_lane) = lane;
    }
  std::vector<BoundCopies::Sender> both;
  for (const auto& [rank, sender] : senders) {
    if (sender.direct_lane == kNone || sender.host_lane == kNone) return {};
    both.push_back(sender);
  }
  return both;
}

}  // namespace

/// Keeps a context current on this thread, through the given driver.
class OneProcess::Current {
 public:
  Current(const OneProcess& owner, Context context) : driver_(owner.driver_) {
    owner.check(driver_.context_push(context), "context_push");
  }
  ~Current() {
    Context popped = nullptr;
    driver_.context_pop(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Api& driver_;
};

/// A call in progress: resolves lanes, regions and events to driver handles.
class OneProcess::CopyCall {
 public:
  CopyCall(OneProcess& owner, const BoundCopies& bound, const std::vector<CopyBuffers>& ranks,
           bool is_timed)
      : owner_(owner),
        driver_(owner.driver_),
        bound_(bound),
        ranks_(ranks),
        is_timed_(is_timed),
        has_begun_(bound.steps.lanes.size(), false) {}

  void begin() {
    for (std::size_t rank = 0; rank < bound_.ranks; ++rank) {
      if (!takes_part(rank)) continue;
      GpuResources& gpu = gpu_of(rank);
      const Current current(owner_, gpu.context);
      if (bound_.steps.borrows)
        for (const int ordinal : owner_.last_)
          wait(ranks_[rank].stream, owner_.gpus_.at(ordinal).events[kEnd]);
      bool is_forked = false;
      for (std::size_t lane = 0; lane < lanes().size(); ++lane) {
        if (lanes()[lane].is_callers || rank_of(lane) != rank) continue;
        if (!is_forked) record(gpu.events[kBegin], ranks_[rank].stream);
        is_forked = true;
        wait(stream_of(lane), gpu.events[kBegin]);
      }
    }
  }

  void take(const CopyStep& step) {
    const auto lane = static_cast<std::size_t>(step.lane);
    enter(gpu_of(rank_of(lane)).context);
    switch (step.kind) {
      case CopyStep::CopyStepKind::copy:
        if (is_timed_ && !has_begun_[lane]) note_begin(lane);
        copy(step, stream_of(lane));
        break;
      case CopyStep::CopyStepKind::record: record(event_of(step.event), stream_of(lane)); break;
      case CopyStep::CopyStepKind::wait: wait(stream_of(lane), event_of(step.event)); break;
    }
  }

  void end() {
    const std::size_t first = bound_.steps.event_lanes.size();
    std::vector<Event> ended;  // By lane; recorded before the callers' streams wait for any.
    for (std::size_t lane = 0; lane < lanes().size(); ++lane) {
      GpuResources& gpu = gpu_of(rank_of(lane));
      const Event timed = is_timed_ ? timed_end(lane) : nullptr;
      ended.push_back(timed != nullptr ? timed : gpu.events[bound_.events[first + lane]]);
      if (lanes()[lane].is_callers && timed == nullptr) continue;
      enter(gpu.context);
      record(ended.back(), stream_of(lane));
    }
    for (std::size_t lane = 0; lane < lanes().size(); ++lane) {
      if (lanes()[lane].is_callers) continue;
      enter(gpu_of(rank_of(lane)).context);
      wait(ranks_[rank_of(lane)].stream, ended[lane]);
    }
    if (!bound_.steps.borrows) return;
    owner_.last_.clear();
    for (std::size_t rank = 0; rank < bound_.ranks; ++rank) {
      if (!takes_part(rank)) continue;
      GpuResources& gpu = gpu_of(rank);
      enter(gpu.context);
      record(gpu.events[kEnd], ranks_[rank].stream);
      owner_.last_.push_back(bound_.ordinals[rank]);
    }
  }

 private:
  /// Batches are for copies between GPUs only.
  void copy(const CopyStep& step, Stream stream) {
    const DevicePointer dst = address_of(step.dst), src = address_of(step.src);
    const bool is_by_host = step.dst.space == Space::ring || step.src.space == Space::ring;
    if (bound_.batches && !is_by_host && step.dst.rank != step.src.rank)
      return copy_to_others(
          driver_, stream,
          {{reinterpret_cast<char*>(dst), reinterpret_cast<const char*>(src), step.dst.bytes}});
    owner_.check(driver_.memory_copy_async(dst, src, step.dst.bytes, stream), "memory_copy_async");
  }
  /// Records the start of a direct lane before its first copy, behind its waits.
  void note_begin(std::size_t lane) {
    has_begun_[lane] = true;
    for (const BoundCopies::Sender& sender : bound_.senders)
      if (sender.direct_lane == lane) record(gpu_of(rank_of(lane)).times[kReady], stream_of(lane));
  }
  /// Event that times the end of the lane; null if the lane is not timed. The first lane of the
  /// host path ends once the receiver has emptied the last slot.
  Event timed_end(std::size_t lane) {
    for (const auto& [direct, host] : bound_.senders) {
      if (lane == direct) return gpu_of(rank_of(lane)).times[kDirectEnd];
      if (lane == host) return gpu_of(rank_of(lane)).times[kHostEnd];
    }
    return nullptr;
  }
  /// The context stays current between steps, since consecutive steps often use the same GPU.
  void enter(Context context) {
    if (current_.has_value() && entered_ == context) return;
    current_.reset();
    current_.emplace(owner_, context);
    entered_ = context;
  }
  const std::vector<CopyLane>& lanes() const { return bound_.steps.lanes; }
  std::size_t rank_of(std::size_t lane) const {
    return static_cast<std::size_t>(lanes()[lane].rank);
  }
  bool takes_part(std::size_t rank) const {
    return std::any_of(lanes().begin(), lanes().end(), [rank](const CopyLane& lane) {
      return static_cast<std::size_t>(lane.rank) == rank;
    });
  }
  GpuResources& gpu_of(std::size_t place) { return owner_.gpus_.at(bound_.ordinals[place]); }
  Stream stream_of(std::size_t lane) {
    const std::size_t rank = rank_of(lane);
    return lanes()[lane].is_callers ? ranks_[rank].stream
                                    : gpu_of(rank).streams[bound_.streams[lane]];
  }
  Event event_of(std::size_t event) {
    const auto lane = static_cast<std::size_t>(bound_.steps.event_lanes[event]);
    return gpu_of(rank_of(lane)).events[bound_.events[event]];
  }
  DevicePointer address_of(const Region& region) {
    const auto place = static_cast<std::size_t>(region.rank);
    switch (region.space) {
      case Space::input: return address(ranks_[place].input) + region.offset;
      case Space::output: return address(ranks_[place].output) + region.offset;
      case Space::scratch: return gpu_of(place).scratch + region.offset;
      case Space::ring: return address(gpu_of(place).ring) + region.offset;
      case Space::inbox: break;
    }
    throw Error(ErrorCode::internal, "copies of one process do not use inboxes");
  }
  void record(Event event, Stream stream) {
    owner_.check(driver_.event_record(event, stream), "event_record");
  }
  void wait(Stream stream, Event event) {
    owner_.check(driver_.stream_wait_event(stream, event, 0), "stream_wait_event");
  }

  OneProcess& owner_;
  const Api& driver_;
  const BoundCopies& bound_;
  const std::vector<CopyBuffers>& ranks_;
  const bool is_timed_;
  std::vector<bool> has_begun_;  // By lane.
  Context entered_ = nullptr;
  std::optional<Current> current_;
};

OneProcess::OneProcess(const Api& driver) : driver_(driver) {}

OneProcess::~OneProcess() { close(); }

void OneProcess::check(Result result, const char* call) const {
  if (result != kSuccess) require(result, call);
}

OneProcess::GpuResources& OneProcess::gpu(int ordinal) {
  const auto known = gpus_.find(ordinal);
  if (known != gpus_.end()) return known->second;
  GpuResources made;
  check(driver_.device_get(&made.device, ordinal), "device_get");
  check(driver_.primary_retain(&made.context, made.device), "primary_retain");
  return gpus_.emplace(ordinal, std::move(made)).first->second;
}

/// Enables peer access. Without peer access the driver stages copies through host memory by itself.
void OneProcess::enable_peer_access(const std::vector<int>& ordinals) {
  for (const int from : ordinals)
    for (const int to : ordinals) {
      if (from == to || !peer_pairs_.insert({from, to}).second) continue;
      int can = 0;
      check(driver_.device_can_access_peer(&can, gpu(from).device, gpu(to).device),
            "device_can_access_peer");
      if (can == 0 || !may_address(from, to)) continue;
      const Current current(*this, gpu(from).context);
      const Result result = driver_.context_enable_peer(gpu(to).context, 0);
      if (result != kPeerAccessAlreadyEnabled && result != kPeerAccessUnsupported)
        check(result, "context_enable_peer");
    }
}

void OneProcess::provide(GpuResources& gpu, std::size_t streams, std::size_t events, bool times) {
  const Current current(*this, gpu.context);
  while (gpu.streams.size() < streams) {
    Stream stream = nullptr;
    check(driver_.stream_create(&stream, kStreamNonBlocking, 0), "stream_create");
    gpu.streams.push_back(stream);
  }
  while (gpu.events.size() < events) {
    Event event = nullptr;
    check(driver_.event_create(&event, kEventDisableTiming), "event_create");
    gpu.events.push_back(event);
  }
  while (times && gpu.times.size() < kTimes) {
    Event event = nullptr;
    check(driver_.event_create(&event, 0), "event_create");
    gpu.times.push_back(event);
  }
}

void OneProcess::finish_last() {
  for (const int ordinal : last_)
    check(driver_.event_synchronize(gpus_.at(ordinal).events[kEnd]), "event_synchronize");
}

void OneProcess::lend_scratch(GpuResources& gpu, std::uint64_t bytes) {
  if (bytes <= gpu.scratch_bytes) return;
  finish_last();
  const Current current(*this, gpu.context);
  if (gpu.scratch != 0) check(driver_.memory_free(gpu.scratch), "memory_free");
  gpu.scratch = 0;
  gpu.scratch_bytes = 0;
  check(driver_.memory_alloc(&gpu.scratch, bytes), "memory_alloc");
  gpu.scratch_bytes = bytes;
}

void OneProcess::lend_ring(GpuResources& gpu, std::uint64_t bytes) {
  if (bytes <= gpu.ring_bytes) return;
  finish_last();
  const Current current(*this, gpu.context);
  if (gpu.ring != nullptr) {
    check(driver_.host_unregister(gpu.ring), "host_unregister");
    ::munmap(gpu.ring, gpu.ring_bytes);
  }
  gpu.ring = nullptr;
  gpu.ring_bytes = 0;
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (base == MAP_FAILED)
    throw Error(ErrorCode::out_of_memory, text("no memory for a host ring of {} bytes", bytes));
  const Result result = driver_.host_register(base, bytes, kHostRegisterPortable);
  if (result != kSuccess) ::munmap(base, bytes);
  check(result, "host_register");
  gpu.ring = base;
  gpu.ring_bytes = bytes;
}

BoundCopies OneProcess::bind(const Plan& plan, const std::vector<int>& ordinals) {
  const auto ranks = static_cast<std::size_t>(plan.request.ranks);
  if (ordinals.size() != ranks + plan.relay_devices.size())
    throw Error(ErrorCode::internal, text("wanted a GPU for each of {} places, found {}",
                                          ranks + plan.relay_devices.size(), ordinals.size()));
  BoundCopies bound{order_copies(plan),           ordinals, ranks, {}, {}, senders_of(plan),
                    plan.params.contains("batch")};
  std::map<int, std::size_t> streams, events;
  for (const CopyLane& lane : bound.steps.lanes) {
    const int ordinal = ordinals[static_cast<std::size_t>(lane.rank)];
    bound.streams.push_back(lane.is_callers ? 0 : streams[ordinal]++);
  }
  const auto number_event = [&](int lane) {
    const CopyLane& owner = bound.steps.lanes[static_cast<std::size_t>(lane)];
    std::size_t& used = events[ordinals[static_cast<std::size_t>(owner.rank)]];
    bound.events.push_back(kFirstEvent + used++);
  };
  for (const int lane : bound.steps.event_lanes) number_event(lane);
  for (std::size_t lane = 0; lane < bound.steps.lanes.size(); ++lane)
    number_event(static_cast<int>(lane));
  const std::lock_guard hold(guard_);
  for (std::size_t place = 0; place < ordinals.size(); ++place) {
    const int ordinal = ordinals[place];
    GpuResources& one = gpu(ordinal);
    provide(one, streams[ordinal], kFirstEvent + events[ordinal], !bound.senders.empty());
    lend_scratch(one, plan.scratch_bytes[place]);
    if (place < ranks) lend_ring(one, plan.ring_bytes[place]);
  }
  enable_peer_access(ordinals);
  return bound;
}

void OneProcess::refuse_capture(Stream stream) const {
  int status = kCaptureNone;
  check(driver_.stream_is_capturing(stream, &status), "stream_is_capturing");
  if (status != kCaptureNone)
    throw Error(ErrorCode::unsupported,
                "a copy between GPUs cannot be captured into a graph: it shares its host ring and "
                "relay GPU "
                "with later calls; make the call outside the capture");
}

void OneProcess::refuse_capture(int ordinal, Stream stream) {
  const std::lock_guard hold(guard_);
  const Current current(*this, gpu(ordinal).context);
  refuse_capture(stream);
}

void OneProcess::run(const BoundCopies& bound, const std::vector<CopyBuffers>& ranks,
                     bool is_timed) {
  if (ranks.size() != bound.ranks)
    throw Error(ErrorCode::internal,
                text("wanted buffers of {} ranks, found {}", bound.ranks, ranks.size()));
  const std::lock_guard hold(guard_);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Current current(*this, gpus_.at(bound.ordinals[rank]).context);
    refuse_capture(ranks[rank].stream);
  }
  is_timed = is_timed && timed_.empty() && !bound.senders.empty();
  CopyCall call(*this, bound, ranks, is_timed);
  try {
    call.begin();
    for (const CopyStep& step : bound.steps.steps) call.take(step);
    call.end();
  } catch (...) {
    abandon();
    throw;
  }
  if (!is_timed) return;
  for (const BoundCopies::Sender& sender : bound.senders)
    timed_.push_back(
        bound.ordinals[static_cast<std::size_t>(bound.steps.lanes[sender.direct_lane].rank)]);
}

std::optional<PathTimes> OneProcess::times() {
  const std::lock_guard hold(guard_);
  if (timed_.empty()) return std::nullopt;
  PathTimes times;
  for (const int ordinal : timed_) {
    const GpuResources& one = gpus_.at(ordinal);
    const Current current(*this, one.context);
    for (const std::size_t end : {kHostEnd, kDirectEnd}) {
      float ms = 0.0F;
      const Result result = driver_.event_elapsed(&ms, one.times[kReady], one.times[end]);
      if (result == kNotReady) return std::nullopt;
      if (result != kSuccess) timed_.clear();
      check(result, "event_elapsed");
      double& longest = end == kHostEnd ? times.host_ns : times.direct_ns;
      longest = std::max(longest, 1e6 * static_cast<double>(ms));
    }
  }
  timed_.clear();
  return times;
}

/// Cleans up after a call that failed half-way: queued work must not meet later calls' buffers.
void OneProcess::abandon() noexcept {
  for (auto& [ordinal, gpu] : gpus_) {
    if (driver_.context_push(gpu.context) != kSuccess) continue;
    for (const Stream stream : gpu.streams) driver_.stream_synchronize(stream);
    Context popped = nullptr;
    driver_.context_pop(&popped);
  }
}

void OneProcess::copy_within(int ordinal, void* dst, const void* src, std::uint64_t bytes,
                             Stream dst_stream, Stream src_stream) {
  const std::lock_guard hold(guard_);
  GpuResources& one = gpu(ordinal);
  provide(one, 0, kFirstEvent, false);
  const Current current(*this, one.context);
  for (Stream stream : {dst_stream, src_stream}) refuse_capture(stream);
  const bool are_two = dst_stream != src_stream;
  const auto follow = [&](Stream later, Stream earlier) {
    check(driver_.event_record(one.events[kBegin], earlier), "event_record");
    check(driver_.stream_wait_event(later, one.events[kBegin], 0), "stream_wait_event");
  };
  if (are_two) follow(src_stream, dst_stream);
  check(driver_.memory_copy_async(address(dst), address(src), bytes, src_stream),
        "memory_copy_async");
  if (are_two) follow(dst_stream, src_stream);
}

void OneProcess::close() noexcept {
  for (auto& [ordinal, one] : gpus_) {
    if (driver_.context_push(one.context) != kSuccess) continue;  // The driver has shut down.
    for (Stream stream : one.streams) driver_.stream_synchronize(stream);
    Context popped = nullptr;
    driver_.context_pop(&popped);
  }
  for (const int ordinal : last_) driver_.event_synchronize(gpus_.at(ordinal).events[kEnd]);
  for (auto& [ordinal, one] : gpus_) {
    if (driver_.context_push(one.context) != kSuccess) continue;
    for (Stream stream : one.streams) driver_.stream_destroy(stream);
    for (Event event : one.events) driver_.event_destroy(event);
    for (Event event : one.times) driver_.event_destroy(event);
    if (one.scratch != 0) driver_.memory_free(one.scratch);
    if (one.ring != nullptr) {
      driver_.host_unregister(one.ring);
      ::munmap(one.ring, one.ring_bytes);
    }
    Context popped = nullptr;
    driver_.context_pop(&popped);
    driver_.primary_release(one.device);
  }
}

}  // namespace plait::cuda
