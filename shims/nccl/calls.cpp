// Entry points of collectives, messages and groups. Each collective becomes a Request and is served
// by plait or forwarded unchanged to NCCL (serve.hpp decides). No exception leaves these functions.
#include <algorithm>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/log.hpp"
#include "base/memory_held.hpp"
#include "comm/transport/nccl/native.hpp"
#include "shims/nccl/attach.hpp"
#include "shims/nccl/call_config.hpp"
#include "shims/nccl/exports.hpp"
#include "shims/nccl/serve.hpp"
#include "shims/nccl/strict.hpp"

namespace plait::nccl {

constinit thread_local CallContext call_context [[gnu::tls_model("initial-exec")]];

namespace {

/// Frees a thread's spare group at the thread's end.
struct SpareGroup {
  ~SpareGroup() { delete std::exchange(call_context.spare, nullptr); }
  void is_watched() const {}
};

}  // namespace

CallGroup& open_group() {
  if (call_context.open == nullptr) call_context.open = std::exchange(call_context.spare, nullptr);
  if (call_context.open == nullptr) {
    static thread_local const SpareGroup at_end;  // only here, since access is a function call
    at_end.is_watched();
    call_context.open = new CallGroup;
  }
  return *call_context.open;
}

void GroupEnd::operator()(CallGroup* ended) const {
  ended->clear();
  if (call_context.spare == nullptr)
    call_context.spare = ended;
  else
    delete ended;
}

namespace {

/// Arguments of a collective, not yet checked.
struct NcclArgs {
  Collective collective;
  std::size_t count;
  int type;
  int op;
  int root;
  const void* input;
  void* output;
  Comm comm;
  Stream stream;
  CallWish wish = {};
};

/// A call in the communicator's flight recorder.
class CallRecord {
 public:
  CallRecord(const CommTable::Pin& pin, const FlightCall& call)
      : ring_(pin->flight == nullptr ? nullptr : &pin->flight->ring()) {
    if (ring_ == nullptr) return;
    if (call_context.depth != 0 && pin->phase.load() == AttachPhase::attached) note_group(pin);
    recorded_.emplace(ring_, call);
  }
  CallRecord(const CallRecord&) = delete;
  CallRecord& operator=(const CallRecord&) = delete;
  /// A call that threw was not made.
  ~CallRecord() {
    if (recorded_ && !has_result_) recorded_->refused();
  }
  /// Returns the call's result. Other ranks do not wait for a refused call. Calls of a group, and
  /// those in progress, are enqueued later.
  Result of(Result result) {
    has_result_ = true;
    if (!recorded_) return result;
    if (result == ncclInvalidArgument || result == ncclInvalidUsage)
      recorded_->refused();
    else if (result != ncclInProgress && call_context.depth == 0)
      recorded_->enqueued();
    return result;
  }

 private:
  void note_group(const CommTable::Pin& pin) const {
    std::vector<RecordedInGroup>& all = open_group().recorded;
    for (const RecordedInGroup& one : all)
      if (one.state.get() == &*pin) return;
    all.push_back({pin.shared(), ring_->place()});
  }

  FlightRing* const ring_;
  std::optional<RecordedCall> recorded_;
  bool has_result_ = false;
};

void note_enqueued(const CommState& state) {
  if (state.flight != nullptr) state.flight->ring().enqueued_all();
}

/// Takes the group's calls back from the flight recorders: the group was refused or simulated.
void withdraw(const CallGroup& group) {
  for (const RecordedInGroup& one : group.recorded) {
    one.state->flight->ring().withdraw_after(one.before);
    note_enqueued(*one.state);
  }
}

bool translated(const NcclArgs& args, CommState& state, CollectiveCall& call) {
  LimitedRequest& request = call.request;
  request.limits = args.wish.limits;
  request.collective = args.collective;
  request.limits.engines_move =
      (request.limits.engines_move || state.configured.engines_move) && !reduces(args.collective);
  request.count = args.count;
  request.ranks = state.ranks;
  request.root = args.root;
  call.input = args.input;
  call.output = args.output;
  call.stream = args.stream;
  if (args.root < 0 || args.root >= state.ranks) return false;  // NCCL reports the error
  if (!translate_type(args.type, request.type)) return false;
  if (translate_op(args.op, request.op)) return true;
  if (!reduces(args.collective)) return false;
  request.op = ReduceOp::sum;
  call.factor = state.scaled_sums.find(args.op, args.type);
  return call.factor.has_value();
}

/// Forwards a call of a known communicator to NCCL, in order with calls that plait served.
template <class NativeCall>
Result forward_in_order(const CommTable::Pin& pin, Stream stream, NativeCall native_call) {
  if (pin->phase.load(std::memory_order_acquire) != AttachPhase::attached &&
      pin->launches == nullptr)
    return native_call();
  const bool is_alone = call_context.depth == 0;  // else NCCL launches at the end of the group
  std::optional<StreamOrder::Position> position;
  if (is_alone) position = begin_forwarded(*pin, stream);
  const Result result = native_call();
  if (result != ncclSuccess && result != ncclInProgress) {
    cancel_call(*pin, position);
    return result;
  }
  if (is_alone && result == ncclInProgress) {
    pin->late.add([state = &*pin, stream, position] {
      end_call(*state, stream, position);
      note_enqueued(*state);
    });
  } else if (is_alone) {
    end_call(*pin, stream, position);
  } else {
    std::vector<ForwardedStream>& forwarded = open_group().forwarded;
    if (forwarded.empty() || forwarded.back().stream != stream ||
        forwarded.back().state.get() != &*pin)
      forwarded.push_back({pin.shared(), stream, {}});
  }
  return result;
}

/// Forwards a call that plait never serves.
template <class NativeCall>
Result forward_only(Comm comm, Stream stream, NativeCall native_call) noexcept {
  try {
    if (call_context.in_native != 0) return native_call();
    const CommTable::Pin pin = comms().pin(comm);
    if (!pin) return native_call();
    if (const Result result = blocked(*pin); result != ncclSuccess) return result;
    return forward_in_order(pin, stream, native_call);
  } catch (const std::exception& error) {
    return result_of(error);
  }
}

/// The record of a collective, with the limits of its configuration. NCCL asks for equal limits on
/// all ranks and compares none. Calls within unlike limits wait for each other for ever.
FlightCall flight_collective(const CollectiveCall& made) {
  FlightCall call = flight_call(made.named());
  call.most_blocks = made.request.limits.most_blocks;
  call.engines_move = made.request.limits.engines_move;
  return call;
}

FlightCall flight_message(const MessageEnd& message) {
  FlightCall call;
  call.kind = message.sends ? FlightKind::send : FlightKind::receive;
  call.root = message.peer;
  call.count = message.bytes;
  return call;
}

/// Serves or forwards a send or receive of `count` elements. NCCL reports wrong arguments.
template <class NativeCall>
Result serve_message(MessageEnd message, std::size_t count, int type, Comm comm, Stream stream,
                     NativeCall native_call) noexcept {
  try {
    if (call_context.in_native != 0) return native_call();
    DataType known{};
    const bool is_known = translate_type(type, known);
    if (is_known) message.bytes = count * bytes_of(known);
    const CommTable::Pin pin = comms().pin(comm);
    if (pin)
      if (const Result result = blocked(*pin); result != ncclSuccess) return result;
    const bool served =
        pin && is_known && message.peer >= 0 && message.peer < pin->ranks && takes_messages(*pin);
    std::optional<CallRecord> record;
    if (pin && is_known) record.emplace(pin, flight_message(message));
    const auto recorded = [&](Result result) { return record ? record->of(result) : result; };
    if (is_known) count_message(message.sends, message.bytes, served);
    if (!pin) return native_call();
    if (!served) return recorded(forward_in_order(pin, stream, native_call));
    if (call_context.depth == 0) return recorded(enqueue(*pin, stream, {message}));
    open_group().messages.push_back({pin.shared(), {message, stream}});
    return recorded(ncclSuccess);
  } catch (const std::exception& error) {
    return result_of(error);
  }
}

template <class NativeCall>
Result serve(const NcclArgs& args, NativeCall native_call) noexcept {
  try {
    if (call_context.in_native != 0) return native_call();
    const CommTable::Pin pin = comms().pin(args.comm);
    const auto strict_result = [&](const CommState* state) {
      return refused(args.collective, args.count, args.type, args.op, args.comm, state, args.wish);
    };
    if (!pin) {
      const Result result = strict_result(nullptr);
      return result != ncclSuccess ? result : native_call();
    }
    if (const Result result = blocked(*pin); result != ncclSuccess) return result;
    CollectiveCall call;
    const bool known = translated(args, *pin, call);
    std::optional<CallRecord> record;
    if (known) record.emplace(pin, flight_collective(call));
    const auto recorded = [&](Result result) { return record ? record->of(result) : result; };
    if (known && !args.wish.is_for_nccl && takes(*pin, call)) {
      if (call_context.depth == 0) return recorded(enqueue(*pin, call));
      open_group().calls.push_back({pin.shared(), call});
      return recorded(ncclSuccess);
    }
    if (const Result result = strict_result(&*pin); result != ncclSuccess) return recorded(result);
    std::optional<CountedCall> counted;
    if (known) counted.emplace(call.named(), kByNccl, call.stream, call_context.depth == 0);
    return recorded(forward_in_order(pin, args.stream, native_call));
  } catch (const std::exception& error) {
    log(LogLevel::warn, -1, error.what());
    return result_of(error);
  }
}

/// Serves a collective, or forwards the call to NCCL's `function` with its arguments.
template <class Function, class... Arguments>
Result serve(const NcclArgs& args, Function NativeNccl::* function,
             Arguments... arguments) noexcept {
  return serve(args, [&] { return forward(native().*function, arguments...); });
}

/// Returns recorded calls in launch order: the first call of every communicator, then the second of
/// each, and so on. A launch may load code, and loading waits for all work on the GPU. Hence a
/// thread that drives several GPUs must not leave a kernel that waits for a peer whose kernel is
/// not yet launched.
std::vector<GroupedCall*> in_turns(std::vector<GroupedCall>& calls) {
  std::map<const CommState*, std::size_t> made;
  std::vector<std::pair<std::size_t, GroupedCall*>> turns;
  for (GroupedCall& call : calls) turns.emplace_back(made[call.state.get()]++, &call);
  std::stable_sort(turns.begin(), turns.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<GroupedCall*> ordered;
  for (const auto& turn : turns) ordered.push_back(turn.second);
  return ordered;
}

GroupStreams& streams_of(CallGroup& group, CommState* state, Stream stream) {
  for (GroupStreams& one : group.streams) {
    if (one.state != state) continue;
    if (one.main != stream &&
        std::find(one.others.begin(), one.others.end(), stream) == one.others.end())
      one.others.push_back(stream);
    return one;
  }
  return group.streams.emplace_back(GroupStreams{state, stream, {}, false, false});
}

Stream main_of(const CallGroup& group, const CommState* state, Stream stream) {
  for (const GroupStreams& one : group.streams)
    if (one.state == state) return one.main;
  return stream;
}

/// Joins the streams of each communicator. An NCCL group synchronises all streams of a
/// communicator's calls: the calls run after earlier work on the streams and before later work.
/// NCCL does so for its own calls. Calls that plait serves go on a main stream, and the main stream
/// waits for the other streams.
Result join_streams(CallGroup& group) {
  if (group.calls.empty() && group.messages.empty()) return ncclSuccess;
  for (const GroupedCall& one : group.calls)
    streams_of(group, one.state.get(), one.call.stream).has_served = true;
  for (const GroupedMessage& one : group.messages)
    streams_of(group, one.state.get(), one.sent.stream).has_served = true;
  for (const ForwardedStream& one : group.forwarded)
    streams_of(group, one.state.get(), one.stream).has_forwarded = true;
  std::erase_if(group.streams,
                [](const GroupStreams& one) { return !one.has_served || one.others.empty(); });
  if (group.streams.empty()) return ncclSuccess;
  for (GroupedCall& one : group.calls)
    one.call.stream = main_of(group, one.state.get(), one.call.stream);
  for (GroupedMessage& one : group.messages)
    one.sent.stream = main_of(group, one.state.get(), one.sent.stream);
  Result result = ncclSuccess;
  for (const GroupStreams& one : group.streams) {
    Result joined = join(one);
    if (joined == ncclSuccess && one.has_forwarded) joined = release(one);
    if (result == ncclSuccess) result = joined;
  }
  return result;
}

/// Ends the join after all calls of the group are enqueued: later work of all streams waits.
Result finish_streams(const GroupStreams& streams) {
  const Result joined = streams.has_forwarded ? join(streams) : ncclSuccess;
  return joined != ncclSuccess ? joined : release(streams);
}

/// Enqueues the recorded messages, all of a communicator as a single group.
Result enqueue_messages(const std::vector<GroupedMessage>& grouped) {
  struct MessageGroup {
    CommState* state;
    Stream stream;
    std::vector<MessageEnd> messages;
  };
  std::vector<MessageGroup> groups;
  for (const GroupedMessage& one : grouped) {
    const auto found = std::find_if(groups.begin(), groups.end(), [&](const MessageGroup& group) {
      return group.state == one.state.get();
    });
    MessageGroup& group =
        found != groups.end()
            ? *found
            : groups.emplace_back(MessageGroup{one.state.get(), one.sent.stream, {}});
    group.messages.push_back(one.sent.message);
  }
  Result result = ncclSuccess;
  for (const MessageGroup& group : groups)
    if (const Result one = enqueue(*group.state, group.stream, group.messages);
        result == ncclSuccess)
      result = one;
  return result;
}

/// Runs after NCCL has enqueued a call on the stream.
void end_forwarded(CommState& state, Stream stream,
                   const std::optional<StreamOrder::Position>& position) {
  if (state.launches != nullptr)
    state.launches->before(stream);  // behind plait's calls of this group
  end_call(state, stream, position);
}

/// Schedules the end of forwarded calls if NCCL launches the group in its own thread.
void end_late(CallGroup& group) {
  for (const ForwardedStream& one : group.forwarded) {
    CommState* const state = one.state.get();
    state->late.add([state, stream = one.stream, position = one.position] {
      end_forwarded(*state, stream, position);
      note_enqueued(*state);
    });
  }
  for (GroupStreams& one : group.streams)
    if (one.has_forwarded)
      one.state->late.add([streams = one] { static_cast<void>(finish_streams(streams)); });
  std::erase_if(group.streams, [](const GroupStreams& one) { return one.has_forwarded; });
}

/// Waits until NCCL has launched the group of non-blocking communicators, if recorded calls use
/// NCCL too (between nodes). Returns false without such calls. NCCL may also make children of the
/// recorded calls' communicators, and refuses calls meanwhile.
bool await_launched(const CallGroup& group) {
  bool uses_nccl = false;
  for (const GroupedCall& one : group.calls) {
    if (!one.state->engine->uses_nccl()) continue;
    uses_nccl = true;
    await_launched(*one.state);
  }
  if (!uses_nccl) return false;
  for (const ForwardedStream& one : group.forwarded) await_launched(*one.state);
  return true;
}

/// The first error of a group's steps at its end. A step that fails leaves no later step out:
/// NCCL's group would stay open, and streams of the program would run ahead of calls.
class GroupResult {
 public:
  void keep(Result one) {
    if (first_ == ncclSuccess) first_ = one;
  }
  template <class Step>
  void run(const Step& step) {
    try {
      if constexpr (std::is_void_v<std::invoke_result_t<Step>>)
        step();
      else
        keep(step());
    } catch (const std::exception& error) {
      log(LogLevel::warn, -1, error.what());
      keep(result_of(error));
    }
  }
  Result first() const { return first_; }

 private:
  Result first_ = ncclSuccess;
};

/// Ends the outermost group, the same way on all ranks: first plait's calls, in turns, then NCCL's.
Result end_group() noexcept {
  call_context.depth = 0;
  const EndedGroup ended(std::exchange(call_context.open, nullptr));
  if (ended == nullptr) return forward(native().group_end);
  GroupResult result;
  std::vector<GroupedCall*> calls;
  const auto enqueue_grouped = [&](bool using_nccl) {
    for (GroupedCall* grouped : calls)
      if (grouped->state->engine->uses_nccl() == using_nccl)
        result.run([&] { return enqueue(*grouped->state, grouped->call); });
  };
  result.run([&] {
    calls = in_turns(ended->calls);
    return join_streams(*ended);
  });
  enqueue_grouped(false);
  result.run([&] { return enqueue_messages(ended->messages); });
  for (ForwardedStream& one : ended->forwarded)
    result.run([&] { one.position = begin_forwarded(*one.state, one.stream); });
  const Result native_end = forward(native().group_end);
  if (native_end == ncclInvalidArgument || native_end == ncclInvalidUsage)
    if (ended->calls.empty() && ended->messages.empty()) withdraw(*ended);
  if (native_end != ncclSuccess && native_end != ncclInProgress) {
    for (const ForwardedStream& one : ended->forwarded) cancel_call(*one.state, one.position);
    for (const GroupStreams& one : ended->streams) result.run([&] { return finish_streams(one); });
    return native_end;
  }
  bool is_late = native_end == ncclInProgress;
  if (is_late) result.run([&] { is_late = !await_launched(*ended); });
  if (is_late) result.run([&] { end_late(*ended); });
  for (const ForwardedStream& one : ended->forwarded)
    if (!is_late) result.run([&] { end_forwarded(*one.state, one.stream, one.position); });
  enqueue_grouped(true);  // outside NCCL's group: the NCCL calls are launched at once
  for (const GroupStreams& one : ended->streams) result.run([&] { return finish_streams(one); });
  if (!is_late)
    for (const RecordedInGroup& one : ended->recorded) note_enqueued(*one.state);
  result.run([&] { return attach_new(ended->new_comms, native_end); });
  return result.first();
}

}  // namespace
}  // namespace plait::nccl

using namespace plait::nccl;
using plait::Collective;

Result ncclAllReduce(const void* input, void* output, std::size_t count, int type, int op,
                     Comm comm, Stream stream) {
  return serve({Collective::all_reduce, count, type, op, 0, input, output, comm, stream},
               &NativeNccl::all_reduce, input, output, count, type, op, comm, stream);
}

Result ncclReduceScatter(const void* input, void* output, std::size_t count, int type, int op,
                         Comm comm, Stream stream) {
  return serve({Collective::reduce_scatter, count, type, op, 0, input, output, comm, stream},
               &NativeNccl::reduce_scatter, input, output, count, type, op, comm, stream);
}

Result ncclAllGather(const void* input, void* output, std::size_t count, int type, Comm comm,
                     Stream stream) {
  return serve({Collective::all_gather, count, type, kSum, 0, input, output, comm, stream},
               &NativeNccl::all_gather, input, output, count, type, comm, stream);
}

Result ncclBroadcast(const void* input, void* output, std::size_t count, int type, int root,
                     Comm comm, Stream stream) {
  return serve({Collective::broadcast, count, type, kSum, root, input, output, comm, stream},
               &NativeNccl::broadcast, input, output, count, type, root, comm, stream);
}

Result ncclBcast(void* buffer, std::size_t count, int type, int root, Comm comm, Stream stream) {
  return serve({Collective::broadcast, count, type, kSum, root, buffer, buffer, comm, stream},
               &NativeNccl::bcast, buffer, count, type, root, comm, stream);
}

Result ncclReduce(const void* input, void* output, std::size_t count, int type, int op, int root,
                  Comm comm, Stream stream) {
  return serve({Collective::reduce, count, type, op, root, input, output, comm, stream},
               &NativeNccl::reduce, input, output, count, type, op, root, comm, stream);
}

Result ncclAlltoAll(const void* input, void* output, std::size_t count, int type, Comm comm,
                    Stream stream) {
  return serve({Collective::all_to_all, count, type, kSum, 0, input, output, comm, stream},
               &NativeNccl::all_to_all, input, output, count, type, comm, stream);
}

Result ncclGather(const void* input, void* output, std::size_t count, int type, int root, Comm comm,
                  Stream stream) {
  return serve({Collective::gather, count, type, kSum, root, input, output, comm, stream},
               &NativeNccl::gather, input, output, count, type, root, comm, stream);
}

Result ncclScatter(const void* input, void* output, std::size_t count, int type, int root,
                   Comm comm, Stream stream) {
  return serve({Collective::scatter, count, type, kSum, root, input, output, comm, stream},
               &NativeNccl::scatter, input, output, count, type, root, comm, stream);
}

Result ncclAllReduceConfig(const void* input, void* output, std::size_t count, int type, int op,
                           Comm comm, Stream stream, const void* config) {
  return serve(
      {Collective::all_reduce, count, type, op, 0, input, output, comm, stream, wish_of(config)},
      &NativeNccl::all_reduce_config, input, output, count, type, op, comm, stream, config);
}

Result ncclReduceScatterConfig(const void* input, void* output, std::size_t count, int type, int op,
                               Comm comm, Stream stream, const void* config) {
  return serve({Collective::reduce_scatter, count, type, op, 0, input, output, comm, stream,
                wish_of(config)},
               &NativeNccl::reduce_scatter_config, input, output, count, type, op, comm, stream,
               config);
}

Result ncclAllGatherConfig(const void* input, void* output, std::size_t count, int type, Comm comm,
                           Stream stream, const void* config) {
  return serve(
      {Collective::all_gather, count, type, kSum, 0, input, output, comm, stream, wish_of(config)},
      &NativeNccl::all_gather_config, input, output, count, type, comm, stream, config);
}

Result ncclBroadcastConfig(const void* input, void* output, std::size_t count, int type, int root,
                           Comm comm, Stream stream, const void* config) {
  return serve({Collective::broadcast, count, type, kSum, root, input, output, comm, stream,
                wish_of(config)},
               &NativeNccl::broadcast_config, input, output, count, type, root, comm, stream,
               config);
}

Result ncclReduceConfig(const void* input, void* output, std::size_t count, int type, int op,
                        int root, Comm comm, Stream stream, const void* config) {
  return serve(
      {Collective::reduce, count, type, op, root, input, output, comm, stream, wish_of(config)},
      &NativeNccl::reduce_config, input, output, count, type, op, root, comm, stream, config);
}

Result ncclAlltoAllConfig(const void* input, void* output, std::size_t count, int type, Comm comm,
                          Stream stream, const void* config) {
  return serve(
      {Collective::all_to_all, count, type, kSum, 0, input, output, comm, stream, wish_of(config)},
      &NativeNccl::all_to_all_config, input, output, count, type, comm, stream, config);
}

Result ncclGatherConfig(const void* input, void* output, std::size_t count, int type, int root,
                        Comm comm, Stream stream, const void* config) {
  return serve(
      {Collective::gather, count, type, kSum, root, input, output, comm, stream, wish_of(config)},
      &NativeNccl::gather_config, input, output, count, type, root, comm, stream, config);
}

Result ncclScatterConfig(const void* input, void* output, std::size_t count, int type, int root,
                         Comm comm, Stream stream, const void* config) {
  return serve(
      {Collective::scatter, count, type, kSum, root, input, output, comm, stream, wish_of(config)},
      &NativeNccl::scatter_config, input, output, count, type, root, comm, stream, config);
}

Result ncclPutSignal(const void* input, std::size_t count, int type, int peer, void* window,
                     std::size_t offset, int signal, int context, unsigned flags, Comm comm,
                     Stream stream) {
  return forward_only(comm, stream, [&] {
    return forward(native().put_signal, input, count, type, peer, window, offset, signal, context,
                   flags, comm, stream);
  });
}

Result ncclSignal(int peer, int signal, int context, unsigned flags, Comm comm, Stream stream) {
  return forward_only(comm, stream, [&] {
    return forward(native().signal, peer, signal, context, flags, comm, stream);
  });
}

Result ncclWaitSignal(int count, void* signals, Comm comm, Stream stream) {
  return forward_only(comm, stream,
                      [&] { return forward(native().wait_signal, count, signals, comm, stream); });
}

/// NCCL checks the arguments, and numbers the sums of a communicator.
Result ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, Comm comm) {
  const Result result = forward(native().make_scaled_sum, op, scalar, type, residence, comm);
  if (result != ncclSuccess || call_context.in_native != 0) return result;
  try {
    if (const CommTable::Pin pin = comms().pin(comm))
      pin->scaled_sums.add(*op, type, scalar, residence == kScalarDevice);
  } catch (const std::exception& error) {  // no memory for the entry: the calls are NCCL's
    plait::log(plait::LogLevel::info, -1, error.what());
  }
  return result;
}

Result ncclRedOpDestroy(int op, Comm comm) {
  if (call_context.in_native != 0) return forward(native().end_scaled_sum, op, comm);
  const CommTable::Pin pin = comms().pin(comm);
  if (!pin) return forward(native().end_scaled_sum, op, comm);
  // Before NCCL gives the number to another thread's sum.
  auto removed = pin->scaled_sums.remove(op);
  const Result result = forward(native().end_scaled_sum, op, comm);
  if (result != ncclSuccess) pin->scaled_sums.put_back(std::move(removed));
  return result;
}

Result ncclSend(const void* input, std::size_t count, int type, int peer, Comm comm,
                Stream stream) {
  return serve_message({true, peer, const_cast<void*>(input), 0}, count, type, comm, stream, [&] {
    return forward(native().send, input, count, type, peer, comm, stream);
  });
}

Result ncclRecv(void* output, std::size_t count, int type, int peer, Comm comm, Stream stream) {
  return serve_message({false, peer, output, 0}, count, type, comm, stream, [&] {
    return forward(native().receive, output, count, type, peer, comm, stream);
  });
}

Result ncclGroupStart() {
  if (call_context.in_native != 0) return native().group_start();
  const Result result = forward(native().group_start);
  if (result == ncclSuccess) ++call_context.depth;
  return result;
}

Result ncclGroupEnd() {
  if (call_context.in_native != 0) return native().group_end();
  if (call_context.depth == 1) return end_group();
  if (call_context.depth > 1) --call_context.depth;
  return forward(native().group_end);
}

Result ncclGroupSimulateEnd(void* info) {
  // Nothing is launched: the recorded calls are dropped with the group.
  if (call_context.depth > 0 && --call_context.depth == 0) {
    const EndedGroup dropped(std::exchange(call_context.open, nullptr));
    if (dropped != nullptr) {
      // Last first: a roll-back finds its call by the number of calls that remain.
      for (auto one = dropped->reservations.rbegin(); one != dropped->reservations.rend(); ++one)
        one->state->engine->cancel(one->reserved);
      withdraw(*dropped);
    }
  }
  return forward(native().group_simulate_end, info);
}

int plait_nccl_counters(plait::CounterRow* rows, int capacity) {
  const std::vector<plait::CounterRow> all = plait::counter_rows();
  std::copy_n(all.begin(), std::min(capacity, static_cast<int>(all.size())), rows);
  return static_cast<int>(all.size());
}

std::uint64_t plait_nccl_memory(int part, const char** name) {
  const std::vector<plait::MemoryOfPart> all = plait::memory_by_part();
  const bool is_held = part >= 0 && part < static_cast<int>(all.size());
  *name = is_held ? plait::name_of(all[static_cast<std::size_t>(part)].part) : nullptr;
  return is_held ? all[static_cast<std::size_t>(part)].now : 0;
}
