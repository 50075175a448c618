// Decides on calls, enqueues them on the engine, and logs both.
#include "shims/nccl/serve.hpp"

#include <chrono>
#include <thread>

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/transport/nccl/native.hpp"
#include "gpu/device/call_buffers.hpp"
#include "plait/error.hpp"
#include "shims/nccl/attach.hpp"
#include "shims/nccl/log_once.hpp"
#include "shims/nccl/settings.hpp"

namespace plait::nccl {
namespace {

constexpr Result kResults[] = {
#define PLAIT_ERROR(name, number, kind, exit_code, python_class, nccl_result, mpi_class, text) \
  nccl_result,
#include "plait/errors.def"
#undef PLAIT_ERROR
};

std::string why_not(const CommState& state, const CollectiveCall& call, bool lacks_arena) {
  const LimitedRequest& request = call.request;
  if (state.phase.load() != AttachPhase::attached) return state.reason;
  if ((state.served >> static_cast<unsigned>(request.collective) & 1u) == 0)
    return "not in PLAIT_OPS";
  if (message_bytes(request) < state.min_bytes) return "smaller than PLAIT_MIN_BYTES";
  if (request.count == 0) return "nothing to do";
  if (lacks_arena) return "its arena is not allocated on all ranks yet";
  if (request.limits != CallLimits{})
    return "no engine obeys the limits of the call's configuration";
  if (call.factor && state.engine->takes(request)) return state.engine->why_not_scaled(request);
  return state.engine->why_not(request);
}

/// Logs a line for each distinct call of a communicator.
void explain(const CommState& state, const std::string& what) {
  if (first_time(text("{} {}", state.number, what)))
    log(LogLevel::explain, state.rank, text("communicator {}: {}", state.comm, what));
}

void explain(const CommState& state, const CollectiveCall& call, bool taken, bool lacks_arena) {
  const LimitedRequest& request = call.request;
  const std::string why = taken ? state.engine->how(request) : why_not(state, call, lacks_arena);
  const char* const op = reduces(request.collective) ? name_of(call.named().op) : "-";
  explain(state, text("{} {} {} {} over {} ranks: {}{}", name_of(request.collective), request.count,
                      name_of(request.type), op, request.ranks, taken ? "plait" : "NCCL",
                      why.empty() ? "" : text(" ({})", why)));
}

void require_resumed(const CommState& state) {
  if (state.suspended.load())
    throw Error(ErrorCode::invalid_argument,
                "the communicator is suspended: call ncclCommResume on all ranks first");
}

/// Throws the error of calls on a communicator that has ended.
void require_alive(const CommState& state) {
  if (state.phase.load() == AttachPhase::aborted)
    throw Error(ErrorCode::aborted, "the communicator was aborted");
  if (state.killed.load())
    throw Error(ErrorCode::peer_lost, "a rank of the communicator has died or failed");
  require_resumed(state);
  state.engine->check();
}

/// Returns the result of a call that was not enqueued.
Result failed(const CommState& state, const char* what, const std::exception& error) {
  log(LogLevel::warn, state.rank,
      text("{} on communicator {} failed: {}", what, state.comm, error.what()));
  return state.has_lost.load() ? ncclRemoteError : result_of(error);
}

/// True if the arguments are wrong, or all ranks refuse the call.
bool is_refusal(const std::exception& error) {
  const auto* const known = dynamic_cast<const Error*>(&error);
  return known != nullptr &&
         (known->code() == ErrorCode::invalid_argument || known->code() == ErrorCode::unsupported);
}

/// Returns the result of a call that may be partly enqueued. The peers count the call and are told,
/// unless the call was refused, or the communicator had ended.
Result broke_off(const CommState& state, const char* what, Stream stream,
                 const std::exception& error, bool was_eager) {
  const bool is_over = state.phase.load() == AttachPhase::aborted || state.killed.load();
  if (!is_refusal(error) && !is_over) state.engine->break_off(stream, error, was_eager);
  if (state.engine->has_broken_off() && !is_over) publish_failed(state.liveness_index);
  return failed(state, what, error);
}

/// True if a call must fail instead of asking for an arena.
bool is_over(const CommState& state) {
  return state.killed.load() || state.phase.load() != AttachPhase::attached;
}

/// All ranks count requests that want an arena, hence errors of a single rank must come first. A
/// group records the request, since the call may be dropped with the group.
bool reserve_arena(CommState& state, const CollectiveCall& call) {
  if (is_over(state) || !state.engine->wants_arena(call.request)) return true;
  require_resumed(state);
  cuda::check_alignment(call.request, state.rank, call.input, call.output);
  const bool in_group = call_context.depth != 0;
  ReservedInGroup* in = nullptr;
  if (const CommTable::Pin pin = in_group ? comms().pin(state.comm) : CommTable::Pin())
    in = &open_group().reservations.emplace_back(ReservedInGroup{pin.shared(), {}});
  const ArenaReservation reserved = state.engine->reserve(call.request, call.stream, in_group);
  if (in != nullptr) in->reserved = reserved;
  return reserved.is_granted || is_over(state);
}

StreamOrder::Position begin_served(CommState& state, Stream stream) {
  if (state.launches != nullptr) state.launches->before(stream);
  return state.order.before_served(*state.marker, stream);
}

}  // namespace

Result result_of(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  return known == nullptr ? ncclInternalError : kResults[static_cast<int>(known->code())];
}

bool takes(CommState& state, const CollectiveCall& call) {
  const LimitedRequest& request = call.request;
  const bool wanted =
      state.phase.load(std::memory_order_acquire) == AttachPhase::attached && request.count != 0 &&
      (state.served >> static_cast<unsigned>(request.collective) & 1u) != 0 &&
      message_bytes(request) >= state.min_bytes &&
      (call.factor ? state.engine->why_not_scaled(request) == nullptr
                   : state.engine->takes(request));
  const bool taken = wanted && reserve_arena(state, call);
  if (log_enabled(LogLevel::explain)) explain(state, call, taken, wanted && !taken);
  return taken;
}

bool takes_messages(CommState& state) {
  const bool attached = state.phase.load(std::memory_order_acquire) == AttachPhase::attached;
  const bool wanted = (state.served >> static_cast<unsigned>(Collective::send_recv) & 1u) != 0;
  const bool taken = attached && wanted && state.engine->takes_messages();
  if (log_enabled(LogLevel::explain))
    explain(state, text("send and receive: {}", taken       ? "plait"
                                                : !attached ? text("NCCL ({})", state.reason)
                                                : !wanted   ? "NCCL (send_recv is not in PLAIT_OPS)"
                                                            : "NCCL (not measured to be faster)"));
  return taken;
}

std::optional<StreamOrder::Position> begin_forwarded(CommState& state, Stream stream) {
  if (state.launches != nullptr) state.launches->before(stream);
  if (state.phase.load(std::memory_order_acquire) != AttachPhase::attached) return std::nullopt;
  return state.order.before_forwarded(*state.marker, stream);
}

void end_call(CommState& state, Stream stream,
              const std::optional<StreamOrder::Position>& position) {
  if (position) state.order.after(*state.marker, stream, *position);
  if (state.launches != nullptr) state.launches->after(stream);
}

void cancel_call(CommState& state, const std::optional<StreamOrder::Position>& position) {
  if (position) state.order.cancel();
}

namespace {

/// Runs `work` to enqueue a call on `stream`, if the communicator is alive. work(is_eager) sets
/// is_eager once the call has begun on a stream that does not capture.
template <class Work>
Result put(CommState& state, const char* what, Stream stream, const Work& work) {
  try {
    require_alive(state);
  } catch (const std::exception& error) {
    return failed(state, what, error);
  }
  bool is_eager = false;
  try {
    work(is_eager);
    return ncclSuccess;
  } catch (const std::exception& error) {
    return broke_off(state, what, stream, error, is_eager);
  }
}

/// The same, behind the communicator's earlier calls on any stream. A refused call has an end too:
/// the communicator goes on, and part of the call may be on the stream.
template <class Work>
Result put_in_order(CommState& state, const char* what, Stream stream, const Work& work) {
  return put(state, what, stream, [&](bool& is_eager) {
    const StreamOrder::Position position = begin_served(state, stream);
    is_eager = position.capture == 0;
    try {
      work();
    } catch (const std::exception& error) {
      if (is_refusal(error) && !state.engine->has_broken_off()) end_call(state, stream, position);
      throw;
    }
    end_call(state, stream, position);
  });
}

}  // namespace

Result enqueue(CommState& state, const CollectiveCall& call) {
  return put_in_order(state, name_of(call.request.collective), call.stream, [&] {
    CountedCall counted(call.named(), kByPlait, call.stream);
    counted.done_by(
        call.factor ? state.engine->enqueue_scaled(call.request, *call.factor, call.input,
                                                   call.output, call.stream)
                    : state.engine->enqueue(call.request, call.input, call.output, call.stream));
  });
}

Result enqueue(CommState& state, Stream stream, const std::vector<MessageEnd>& group) {
  return put_in_order(state, "a group of sends and receives", stream,
                      [&] { state.engine->messages(group, stream); });
}

namespace {

constexpr const char* kGroupsStreams = "the streams of a group";

}  // namespace

Result join(const GroupStreams& streams) {
  return put(*streams.state, kGroupsStreams, streams.main, [&](bool&) {
    Marker& marker = *streams.state->joint;
    for (Stream other : streams.others) {
      marker.record(other);
      marker.wait(streams.main);
    }
  });
}

Result release(const GroupStreams& streams) {
  return put(*streams.state, kGroupsStreams, streams.main, [&](bool&) {
    Marker& marker = *streams.state->joint;
    marker.record(streams.main);
    for (Stream other : streams.others) marker.wait(other);
  });
}

namespace {

Result state_of(const CommState& state) {
  const InNative inside;
  Result said = ncclSuccess;
  const Result queried = native().async_error(state.comm, &said);
  return queried == ncclSuccess ? said : queried;
}

}  // namespace

void await_launched(CommState& state) {
  while (!state.cancelled.load() && state_of(state) == ncclInProgress)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  state.late.done();
}

Result blocked(CommState& state) {
  const AttachPhase phase = state.phase.load(std::memory_order_acquire);
  if (phase == AttachPhase::attaching && !await_attached(state, settings().env.arrive_s))
    return ncclInProgress;
  if (state.making.load(std::memory_order_acquire) != 0 &&
      !await_children(state, settings().env.arrive_s))
    return ncclInProgress;
  if (state.late.any()) {  // NCCL refuses calls of a communicator in progress
    if (state_of(state) == ncclInProgress) return ncclInvalidArgument;
    state.late.done();
  }
  return state.phase.load() == AttachPhase::failed ? state.error : ncclSuccess;
}

}  // namespace plait::nccl
