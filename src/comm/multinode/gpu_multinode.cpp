// Sets up and calls NCCL between nodes. The transport communicator carries NCCL's unique ids. A
// detached thread makes the communicators while the caller waits with a deadline, since NCCL may
// wait for ever for a missing rank.
#include "comm/multinode/gpu_multinode.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <thread>

#include "base/env.hpp"
#include "base/error_reason.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "comm/choose/multinode_choice.hpp"
#include "comm/node/setup.hpp"
#include "comm/transport/nccl/native.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

using nccl::Comm;
using nccl::Result;
using nccl::UniqueId;

constexpr double kEndS = 2.0;      // the longest wait for own work, and for NCCL's end
constexpr double kExplainS = 1.0;  // time for peers to publish why NCCL failed
constexpr std::int64_t kPollEveryNs = 1'000'000;
constexpr std::size_t kMaxCrossNodeCalls = 4096;

std::string why_no_nccl() {
  // With NCCL_COMM_ID, NCCL gives every communicator the same id. plait makes several per rank.
  if (const std::string id = foreign_env("NCCL_COMM_ID"); !id.empty())
    return text(
        "GPUs of several nodes need a separate NCCL id for each communicator, found "
        "NCCL_COMM_ID={}, which gives all of them one id; unset it",
        id);
  const nccl::NativeNccl& native = nccl::native();
  if (native.why_absent.empty()) return {};
  return text(
      "GPUs of several nodes need NCCL between nodes: {}; install it (pip install "
      "nvidia-nccl-cu13) or set PLAIT_NCCL_LIB to its path",
      native.why_absent);
}

std::string new_id() {
  UniqueId id{};
  if (nccl::native().get_unique_id(&id) != nccl::ncclSuccess)
    throw Error(ErrorCode::unsupported, "ncclGetUniqueId failed: NCCL_DEBUG=WARN says why");
  return {id.bytes, sizeof id.bytes};
}

/// State shared with a thread whose NCCL call may never return. The caller may abandon the call.
struct BackgroundCall {
  std::mutex guard;
  std::condition_variable done;
  bool is_done = false, is_abandoned = false;
  Result result = nccl::ncclSuccess;
  Comm comm = nullptr;
};

/// Runs `work` in a thread with the GPU's context current. Throws Error(timeout), the error of
/// deadline.check, or peer_lost.
Comm run_until_deadline(cuda::Context context, const Deadline& deadline, const std::string& what,
                        const std::function<Result(Comm*)>& work) {
  const auto call = std::make_shared<BackgroundCall>();
  quiet_thread([call, context, work] {
    Comm comm = nullptr;
    Result result = nccl::ncclUnhandledCudaError;
    if (cuda::api().context_push(context) == cuda::kSuccess) {
      result = work(&comm);
      cuda::Context popped = nullptr;
      cuda::api().context_pop(&popped);
    }
    std::unique_lock lock(call->guard);
    call->result = result;
    call->comm = comm;
    call->is_done = true;
    call->done.notify_all();
    const bool is_late = call->is_abandoned && comm != nullptr;
    lock.unlock();
    if (is_late) nccl::native().abort(comm);
  }).detach();
  std::unique_lock lock(call->guard);
  while (!call->is_done) {
    call->done.wait_for(lock, std::chrono::milliseconds(10));
    if (call->is_done) break;
    std::optional<Error> failure;
    if (deadline.check) failure = attempt(deadline.check);
    if (!failure && now_ns() > deadline.at_ns)
      failure = Error(ErrorCode::timeout, text("{}: NCCL has not come back by the deadline", what));
    if (!failure) continue;
    call->is_abandoned = true;  // the thread aborts a communicator that comes later
    throw Error(*failure);
  }
  if (call->result != nccl::ncclSuccess)
    throw Error(ErrorCode::peer_lost,
                text("{} failed with NCCL's error {}: NCCL_DEBUG=WARN says why", what,
                     static_cast<int>(call->result)));
  return call->comm;
}

/// Unique ids: `whole` for the communicator of all ranks, `rails` by rail.
struct NcclIds {
  std::string whole;
  std::vector<std::string> rails;
};

NcclIds agree_on_ids(const Nodes& nodes, int rank, const cuda::Exchange& exchange) {
  const bool is_first = nodes.mine == 0;
  std::string why = why_no_nccl(), whole, rail;
  int version = 0;
  const auto failure = attempt([&] {
    if (!why.empty()) return;
    version = nccl::native().version;
    if (is_first && nodes.place == 0) whole = new_id();
    if (is_first && nodes.place < rails_of(nodes)) rail = new_id();
  });
  if (failure) why = reason_of(*failure);
  std::vector<std::vector<std::string>> records;
  for (const std::string& record : exchange(pack({why, text("{}", version), whole, rail}))) {
    records.push_back(unpack(record));
    if (records.back().size() != 4)
      throw Error(ErrorCode::parse_error,
                  "NCCL set-up record of a rank is malformed: wanted 4 fields");
    const std::vector<std::string>& one = records.back();
    if (!one[0].empty())
      throw AgreedError(ErrorCode::unsupported, text("rank {}: {}", records.size() - 1, one[0]));
    if (one[1] != records[0][1])
      throw AgreedError(ErrorCode::mismatch, text("rank {} has NCCL {}, rank 0 has NCCL {}",
                                                  records.size() - 1, one[1], records[0][1]));
  }
  log(LogLevel::info, rank, text("NCCL {} between nodes, from {}", version, nccl::native().path));
  NcclIds ids;
  for (const int first : nodes.members[0]) {
    ids.rails.push_back(records[static_cast<std::size_t>(first)][3]);
    if (ids.whole.empty()) ids.whole = records[static_cast<std::size_t>(first)][2];
  }
  return ids;
}

Comm init_nccl(const std::string& bytes, int ranks, int rank, cuda::Context context,
               const Deadline& deadline, const std::string& what) {
  UniqueId id{};
  if (bytes.size() != sizeof id.bytes)
    throw Error(ErrorCode::parse_error,
                text("{}: wanted an id of NCCL, found {} bytes", what, bytes.size()));
  std::memcpy(id.bytes, bytes.data(), sizeof id.bytes);
  return run_until_deadline(context, deadline, what, [id, ranks, rank](Comm* comm) {
    return nccl::native().init_rank(comm, ranks, id, rank);
  });
}

/// Returns each rank's set-up error, "" = none. If a rank does not come, the thrown error begins
/// with this rank's own error.
std::vector<std::string> exchange_errors(const cuda::Exchange& exchange,
                                         const std::optional<Error>& failure) {
  try {
    return exchange(failure ? reason_of(*failure) : "");
  } catch (const Error& error) {
    if (!failure) throw;
    throw Error(error.code(), text("{}; {}", reason_of(*failure), reason_of(error)));
  }
}

CallOptions multinode_only(const CallOptions& forced) {
  return multinode_algo(forced.strategy).strategy.empty() ? CallOptions{} : forced;
}

}  // namespace

GpuMultinode::GpuMultinode(const Nodes& nodes, NodeSide side, const GpuMultinodeOptions& options,
                           const cuda::Exchange& exchange, const Deadline& deadline)
    : PeerObserver(0),
      side_(std::move(side)),
      options_(options),
      rank_(nodes.peers()[static_cast<std::size_t>(nodes.place)]),
      ranks_(nodes.ranks()),
      order_(options.mixes_graphs) {
  const NcclIds ids = agree_on_ids(nodes, rank_, exchange);
  const cuda::Context context = side_.calls->rank().context();
  Comm whole = nullptr, rail = nullptr;
  std::unique_ptr<nccl::SideStream> aside;
  const auto failure = attempt([&] {
    whole = init_nccl(ids.whole, ranks_, rank_, context, deadline, "NCCL among all ranks");
    if (nodes.place < rails_of(nodes) && ranks_ > nodes.count())
      rail = init_nccl(ids.rails[static_cast<std::size_t>(nodes.place)], nodes.count(), nodes.mine,
                       context, deadline, text("NCCL on rail {}", nodes.place));
    aside = nccl::cuda_side_stream(side_.calls->ordinal());
    const cuda::Current current(context);
    marker_.open();
  });
  side_stream_ = aside.get();
  const InNode inside{nullptr, [this](const Request& request, const void* input, void* output,
                                      cuda::Stream stream) {
                        side_.calls->enqueue(request, input, output, stream, {});
                      }};
  runner_ = std::make_unique<NodeProgramRunner>(
      nodes, inside, std::move(aside), std::make_unique<nccl::NcclTransport>(whole, true, rail),
      multinode_only(options.forced), options.bitwise, options.order);
  try {
    for (const std::string& why : exchange_errors(exchange, failure))
      if (!why.empty()) throw AgreedError(failure ? failure->code() : ErrorCode::peer_lost, why);
  } catch (...) {
    runner_->nccl_transport().abort();
    throw;
  }
  watch(std::make_shared<WatchedPeers>(), *this, ObserverCalls::look_and_query);
}

GpuMultinode::~GpuMultinode() {
  unwatch(*this);
  const std::int64_t until_ns = deadline_in(kEndS);
  const auto is_over = [&] { return order_.knows_end() && !marker_.is_ahead(); };
  while (!is_over() && now_ns() < until_ns && !side_.failure())
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  nccl::NcclTransport& nccl_transport = runner_->nccl_transport();
  if (side_.failure() || !is_over()) {
    side_.calls->rank()
        .fail();  // fails the streams: calls that NCCL's abort cuts short must not report success
    nccl_transport.abort();
  }
  const auto ended = attempt([&] {
    run_until_deadline(
        side_.calls->rank().context(), {deadline_in(kEndS), nullptr}, "NCCL's end",
        [&nccl_transport](Comm*) { return nccl_transport.end(), nccl::ncclSuccess; });
  });
  nccl_transport.await_abort(kEndS);
  if (ended) {  // the thread still uses the communicators
    log(LogLevel::warn, rank_, reason_of(*ended));
    static_cast<void>(runner_.release());
  }
  const cuda::RelaxedCaptureMode relaxed;
  for (const CrossNodeCall& one : cross_calls_)
    for (const cuda::Event event : {one.started, one.ended})
      if (event != nullptr) cuda::api().event_destroy(event);
  marker_.close();
}

/// Refuses sums in NCCL's order if PLAIT_BITWISE=1 or a tree requires an order.
void GpuMultinode::require_order(const Request& request, const NodeProgram& program) const {
  const bool is_summed = request.op == ReduceOp::sum || request.op == ReduceOp::prod;
  const bool any_order = program.in_order || !reduces(request.collective) ||
                         !is_float(request.type) ||
                         (is_summed && ranks_ == 2 && program.is_library());
  if (is_tree(options_.order) && !any_order)
    throw Error(ErrorCode::unsupported,
                text("over nodes {} does not sum {} in the order {}: wanted an all_reduce's sum "
                     "over two nodes of 1, 2, 4, ... ranks each, in tree of fp32 or fp64",
                     program.label, name_of(request.type), name_of(options_.order)));
  if (options_.bitwise && !any_order)
    throw Error(
        ErrorCode::unsupported,
        text(
            "PLAIT_BITWISE=1 forbids NCCL's order of sums, in which {} adds {} over nodes: wanted "
            "integers, two ranks, or an all_reduce of fp32 or fp64 over two nodes of as many ranks",
            program.label, name_of(request.type)));
}

void GpuMultinode::enqueue(const Request& request, const void* input, void* output, void* stream,
                           const CallOptions& options) {
  check(true);
  if (request.ranks != ranks_)
    throw Error(ErrorCode::invalid_argument,
                text("request for {} ranks, communicator of {}", request.ranks, ranks_));
  side_.calls->check_memory(request, rank_, input, output);
  if (request.count == 0) return;
  const std::shared_ptr<const NodeProgram> program = runner_->program(request, options);
  require_order(request, *program);
  const cuda::Current current(side_.calls->rank().context());
  const std::vector<double> scalars = scalars_of(request, options);
  const double scalar = scalars.empty() ? 1.0 : scalars[static_cast<std::size_t>(rank_)];
  const auto on = static_cast<cuda::Stream>(stream);
  put(on, kAll, true, [&] { runner_->enqueue(*program, input, output, on, scalar); });
  count(text("{}/{}", name_of(request.collective), program->label), program->bytes_between);
}

void GpuMultinode::message(int peer, const Request& request, int me, const void* input,
                           void* output, void* stream, bool polls) {
  check(polls);
  side_.calls->check_memory(request, me, input, output);
  if (request.count == 0) return;
  const bool both = request.collective == Collective::send_recv;
  const void* const sent = both || request.root == me ? input : nullptr;
  void* const received = both || request.peer == me ? output : nullptr;
  const std::uint64_t bytes = message_bytes(request);
  const cuda::Current current(side_.calls->rank().context());
  const auto on = static_cast<cuda::Stream>(stream);
  put(on, peer, polls, [&] {
    side_stream_->fork(on);
    runner_->nccl_transport().message(peer, sent, received, bytes, side_stream_->stream());
    side_stream_->mark(0);
    side_stream_->join(on, 0);
  });
  count(text("{}/library", name_of(request.collective)), sent == nullptr ? 0 : bytes);
}

void GpuMultinode::count(const std::string& as, std::uint64_t bytes) {
  const std::lock_guard lock(guard_);
  ++counters_.calls;
  ++counters_.calls_of[as];
  if (bytes != 0) counters_.bytes_of_path["nccl"] += bytes;
}

/// Enqueues after all earlier calls on any stream, since all calls share scratch memory. An abort
/// ends NCCL's kernels early, so a check enqueued after the call fails the stream.
void GpuMultinode::put(cuda::Stream stream, int peer, bool polls,
                       const std::function<void()>& work) {
  std::unique_lock one_at_a_time(calling_, std::defer_lock);
  while (!one_at_a_time.try_lock()) {  // another thread may be inside NCCL
    check(polls);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  inside_with_.store(peer);
  bool is_eager = false;
  try {
    put_in_order(stream, peer, is_eager, work);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unsupported) throw;  // on all ranks alike
    if (error.code() != ErrorCode::peer_lost && error.code() != ErrorCode::aborted) {
      side_.calls->rank().break_off(stream, error, is_eager);
      throw;
    }
    abort_nccl(error.code() == ErrorCode::aborted
                   ? error
                   : with_suspects(error.code(), reason_of(error), peer));
    check(polls);
    throw;
  }
}

/// is_eager: set once the call has begun on a stream that does not capture.
void GpuMultinode::put_in_order(cuda::Stream stream, int peer, bool& is_eager,
                                const std::function<void()>& work) {
  const cuda::StreamPlace place = order_.before(marker_, stream);
  is_eager = place.capture == 0;
  CrossNodeCall* const cross_call = is_eager ? free_cross_call() : nullptr;
  const cuda::Stream side = side_stream_->stream();
  if (cross_call != nullptr) {
    side_stream_->fork(stream);
    PLAIT_CUDA_CALL(event_record, cross_call->started, side);
  }
  try {
    work();
  } catch (const Error& error) {  // all ranks refuse and go on; a step may be on the stream
    if (error.code() == ErrorCode::unsupported) order_.after(marker_, stream, place);
    throw;
  }
  side_.calls->rank().fail_if_peer_lost(stream);
  if (cross_call != nullptr) {
    PLAIT_CUDA_CALL(event_record, cross_call->ended, side);
    const std::lock_guard lock(guard_);
    cross_call->peer = peer;
    cross_call->is_used = true;
    cross_call->seen_ns = 0;
  }
  order_.after(marker_, stream, place);
}

/// Returns null if thousands of calls are under way: the earlier calls are watched.
GpuMultinode::CrossNodeCall* GpuMultinode::free_cross_call() {
  const std::lock_guard lock(guard_);
  for (CrossNodeCall& one : cross_calls_)
    if (!one.is_used) return &one;
  if (cross_calls_.size() == kMaxCrossNodeCalls) return nullptr;
  CrossNodeCall made;
  for (cuda::Event* event : {&made.started, &made.ended})
    PLAIT_CUDA_CALL(event_create, event, cuda::kEventDisableTiming);
  return &cross_calls_.emplace_back(made);
}

/// Returns the error with the ranks that may be lost: `peer`, or all ranks of other nodes.
Error GpuMultinode::with_suspects(ErrorCode code, const std::string& what, int peer) const {
  const auto name = [this](int rank) {
    return side_.name ? side_.name(rank) : text("rank {}", rank);
  };
  if (peer != kAll) return {code, text("{}; is {} gone?", what, name(peer))};
  const std::vector<int>& here = runner_->nodes().peers();
  std::string names;
  for (int rank = 0; rank < ranks_; ++rank)
    if (std::find(here.begin(), here.end(), rank) == here.end())
      names += text("{}{}", names.empty() ? "" : ", ", name(rank));
  return {code, text("{}; is one of these gone: {}?", what, names)};
}

/// Returns an error if a call has been inside NCCL for arrive_s. NCCL connects at first use, and
/// waits there for a missing rank.
std::optional<Error> GpuMultinode::stuck_in_nccl() {
  const std::int64_t since_ns = runner_->nccl_transport().inside_since_ns();
  if (since_ns == 0 || static_cast<double>(now_ns() - since_ns) <= options_.arrive_s * 1e9)
    return std::nullopt;
  return with_suspects(
      ErrorCode::timeout,
      text("a call between nodes has been inside NCCL for {} s", options_.arrive_s),
      inside_with_.load());
}

/// Returns an error if a call has been running on the GPU for arrive_s. The time counts from the
/// call's start on the GPU, since the program's own work before the call may take long. No lock is
/// held during the driver's event queries, since the driver may block. Used entries stay unchanged.
std::optional<Error> GpuMultinode::stalled_call() {
  const cuda::RelaxedCaptureMode relaxed;
  std::vector<CrossNodeCall*> in_flight;
  {
    const std::lock_guard lock(guard_);
    for (CrossNodeCall& one : cross_calls_)
      if (one.is_used) in_flight.push_back(&one);
  }
  for (CrossNodeCall* one : in_flight) {
    if (cuda::api().event_query(one->started) == cuda::kNotReady) continue;
    if (cuda::api().event_query(one->ended) != cuda::kNotReady) {
      const std::lock_guard lock(guard_);
      one->is_used = false;
      continue;
    }
    if (one->seen_ns == 0) one->seen_ns = now_ns();
    if (static_cast<double>(now_ns() - one->seen_ns) > options_.arrive_s * 1e9)
      return with_suspects(ErrorCode::timeout,
                           text("a call between nodes has stood still for {} s", options_.arrive_s),
                           one->peer);
  }
  return std::nullopt;
}

/// Fails the streams first: calls that the abort cuts short must not report success.
void GpuMultinode::fail_and_abort() noexcept {
  side_.calls->rank().fail();
  runner_->nccl_transport().abort();
}

void GpuMultinode::abort_nccl(const Error& said) {
  {
    const std::lock_guard lock(guard_);
    if (nccl_error_) return;
    nccl_error_ = said;
    explain_until_ns_ = deadline_in(side_.poll_failures ? kExplainS : 0);
  }
  fail_and_abort();
}

/// The first rank that finds a lost rank of the node reports the loss, in the node and to other
/// nodes.
void GpuMultinode::look() {
  if (side_.failure()) return fail_and_abort();
  if (const auto caught = stuck_in_nccl()) abort_nccl(*caught);
  adopt_nccl_error();
}

void GpuMultinode::query() {
  if (side_.failure()) return;
  std::optional<Error> caught;
  if (const auto failed = runner_->nccl_transport().failure())
    caught = with_suspects(failed->code(), reason_of(*failed), kAll);
  else
    caught = stalled_call();
  if (caught) abort_nccl(*caught);
}

bool GpuMultinode::is_unexplained() {
  const std::lock_guard lock(guard_);
  return nccl_error_ && !side_.failure();
}

/// Takes NCCL's error as the cause once the time for explanations is over.
void GpuMultinode::adopt_nccl_error() {
  std::optional<Error> cause;
  {
    const std::lock_guard lock(guard_);
    if (nccl_error_ && now_ns() >= explain_until_ns_) cause = nccl_error_;
  }
  if (cause && !side_.failure()) side_.fail(*cause);
}

/// Polls in this thread: the watch thread may be busy with other communicators.
void GpuMultinode::await_explanation(bool polls) {
  while (is_unexplained()) {
    if (polls) poll_failures(true);
    adopt_nccl_error();
    if (is_unexplained()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void GpuMultinode::poll_failures(bool now) {
  const std::unique_lock alone(poll_guard_, std::try_to_lock);
  if (!alone.owns_lock() || (!now && now_ns() <= next_poll_ns_)) return;
  side_.poll_failures();
  next_poll_ns_ = now_ns() + kPollEveryNs;
}

/// Skips errors of NCCL: each node gets NCCL's errors from the local NCCL, and a send to a lost
/// node may fail. A thread that is polling now will find and publish the cause.
void GpuMultinode::publish_failure(const Error& cause) {
  {
    const std::lock_guard lock(guard_);
    if (nccl_error_ && reason_of(*nccl_error_) == reason_of(cause)) return;
  }
  const std::unique_lock alone(poll_guard_, std::try_to_lock);
  if (alone.owns_lock() && !std::exchange(has_published_, true)) side_.publish_failure(cause);
}

/// Streams fail only after the cause is known, or after NCCL has failed. Hence a stream's error is
/// the cause only if neither came first.
void GpuMultinode::check(bool polls) {
  polls &= side_.poll_failures != nullptr;
  if (polls) poll_failures(false);
  const auto caught = attempt([&] { side_.calls->rank().check(); });
  await_explanation(polls);
  if (caught && !side_.failure()) side_.fail(*caught);
  const std::optional<Error> cause = side_.failure();
  if (!cause) return;
  if (polls) publish_failure(*cause);
  throw Error(*cause);
}

std::string GpuMultinode::explain(const Request& request) {
  const std::shared_ptr<const NodeProgram> program = runner_->program(request, {});
  const Nodes& nodes = runner_->nodes();
  std::string lines =
      text("on GPUs of {} nodes: {}{}, NCCL {} between nodes{}\n", nodes.count(), program->label,
           program->why.empty() ? "" : text(" ({})", program->why), nccl::native().version,
           program->in_order && is_tree(options_.order) ? ", sums in a tree"
           : program->in_order                          ? ", sums in rank order"
           : reduces(request.collective)                ? ", sums in NCCL's order"
                                                        : "");
  std::vector<std::string> said;
  for (const NodeProgram::ProgramStep& step : program->steps) {
    std::string line = text("  {} of {} ", name_of(step.request.collective), step.request.count);
    if (step.kind == NodeStep::Action::inside)
      line += text("in the node, {}\n", side_.calls->choice_of(step.request));
    else if (step.kind == NodeStep::Action::across)
      line += step.whole ? "by NCCL among all ranks\n" : text("by NCCL on rail {}\n", nodes.place);
    else
      continue;
    if (std::find(said.begin(), said.end(), line) != said.end())
      continue;  // another piece of the same step
    said.push_back(line);
    lines += line;
  }
  return lines;
}

void GpuMultinode::add_to(Counters& counters) const {
  Counters in_node;
  side_.calls->add_to(in_node);
  const std::lock_guard lock(guard_);
  add(counters, counters_);
  for (const auto& [path, bytes] : in_node.bytes_of_path) counters.bytes_of_path[path] += bytes;
}

}  // namespace plait
