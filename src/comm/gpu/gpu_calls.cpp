// Prepares a call on the GPU once (by an engine, or as a proved and bound plan) and then only
// launches.
#include "comm/gpu/gpu_calls.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error_reason.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/choose/what_runs.hpp"
#include "comm/gpu/arena_hold.hpp"
#include "comm/node/setup.hpp"
#include "comm/shm/buffers.hpp"
#include "comm/shm/shown_memory.hpp"
#include "comm/shm/socket_files.hpp"
#include "driver/cuda/api.hpp"
#include "gpu/copy/exchange_cut.hpp"
#include "gpu/device/call_buffers.hpp"
#include "gpu/lanes/plan_memory.hpp"
#include "gpu/p2p/message_memory.hpp"
#include "gpu/select/gpu_tables.hpp"
#include "gpu/select/usual_group.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

/// A communicator of a single rank copies locally, and an empty call moves nothing.
bool is_local_copy(const Request& request) {
  return request.ranks == 1 && request.op != ReduceOp::premul_sum;
}

bool is_capturing(cuda::Stream stream) {
  int status = cuda::kCaptureNone;
  PLAIT_CUDA_CALL(stream_is_capturing, stream, &status);
  return status != cuda::kCaptureNone;
}

/// give_up of the resume() that this thread runs; null = none.
constinit thread_local const std::function<void()>* resumes_until = nullptr;

std::vector<std::byte*> bases_of(const std::vector<Mapping>& mappings) {
  std::vector<std::byte*> bases;
  for (const Mapping& one : mappings) bases.push_back(one.base());
  return bases;
}

}  // namespace

std::vector<double> scalars_of(const Request& request, const CallOptions& options) {
  if (request.op != ReduceOp::premul_sum) return {};
  std::vector<double> scalars;
  for (int rank = 0; rank < request.ranks; ++rank)
    scalars.push_back(scalar_of(options, rank, request.ranks));
  return scalars;
}

void add(Counters& counters, const Counters& more) {
  counters.calls += more.calls;
  for (const auto& [name, calls] : more.calls_of) counters.calls_of[name] += calls;
  for (const auto& [path, bytes] : more.bytes_of_path) counters.bytes_of_path[path] += bytes;
}

GpuCalls::GpuCalls(GpuGroup group, GpuCallsOptions options, const cuda::Exchange& exchange)
    : group_(std::move(group)), options_(std::move(options)) {
  make_rank(exchange);
  options_.share_memory = nullptr;                         // Of the set-up alone.
  first_ = selector(cuda_->small_arena_group(), nullptr);  // no memory for plans
  const auto by_plan = [this](const Request& one) { return plan_us(one); };
  const bool runs_plans = predicts() && cuda_->full_group().runs(cuda::kLaneKernels);
  whole_ = selector(cuda_->full_group(), runs_plans ? cuda::PredictPlan(by_plan) : nullptr);
  plans_ =
      std::make_unique<GpuPlans>(group_.topology, group_.devices_of_ranks(), cuda_->full_group(),
                                 options_.rank.ring_bytes, options_.forced, options_.bitwise);
}

bool GpuCalls::predicts() const { return group_.why_no_topology.empty() && !options_.beats_nccl; }

std::unique_ptr<const cuda::Selector> GpuCalls::selector(cuda::Group group,
                                                         cuda::PredictPlan predict_plan) const {
  const bool as_measured = options_.beats_nccl ? is_measured_beside_nccl(group_)
                                               : cuda::is_measured(group_.kind, group_.ranks);
  return std::make_unique<const cuda::Selector>(
      group, group_.tuning, as_measured,
      predicts() ? predictor(group_.topology, group, group_.devices) : nullptr,
      cuda::table_of(group_.kind), std::move(predict_plan));
}

GpuCalls::~GpuCalls() {
  const cuda::RelaxedCaptureMode relaxed;
  if (cuda::api().context_push(cuda_->context()) == cuda::kSuccess) {
    cuda::api().context_synchronize();  // otherwise freeing blocks launches
    planned_calls_.for_each([](GpuCall& call) { call.bound.reset(); });
    cuda::Context popped = nullptr;
    cuda::api().context_pop(&popped);
  }
}

/// Whether host rings are needed: plans may use rings. Large calls of at most four ranks, a process
/// each, have measured host shares. Without links large calls may go through the rings as a whole.
bool GpuCalls::wants_rings() const {
  const bool has_shares =
      group_.in_processes && (group_.ranks <= 4 || !group_.through_host.empty());
  return options_.knows_links && (options_.rank.memory.plans || has_shares);
}

/// The first call is for the arena of small calls. A later call follows a failed attempt for the
/// large arena, whose memory goes first.
std::vector<std::byte*> GpuCalls::make_host_arenas(const cuda::Exchange& exchange,
                                                   std::uint64_t bytes) {
  const auto small = static_cast<std::size_t>(group_.ranks);
  if (host_arenas_.size() > small)
    host_arenas_.erase(host_arenas_.begin() + group_.ranks, host_arenas_.end());
  std::vector<Mapping> made = host_arenas_.empty() && options_.share_memory
                                  ? options_.share_memory(bytes)
                                  : show_memory(exchange, group_.rank, group_.ranks, bytes);
  std::vector<std::byte*> bases = bases_of(made);
  std::move(made.begin(), made.end(), std::back_inserter(host_arenas_));
  return bases;
}

void GpuCalls::make_rank(const cuda::Exchange& exchange) {
  cuda::CudaRankOptions& rank = options_.rank;
  rank.rank = group_.rank;
  rank.ranks = group_.ranks;
  rank.sum_order = options_.sum_order;
  rank.device = group_.ordinals[static_cast<std::size_t>(group_.rank)];
  if (rank.most_blocks != 0) rank.config.most_blocks = std::min(120u, rank.most_blocks);
  const bool with_slots = rank.messages && group_.ranks == 2;
  if (group_.ranks > 1)
    shared_page_ = memory_of_rank_0(exchange, group_.rank, GpuSharedPage::bytes(with_slots));
  auto* const shared_page = reinterpret_cast<GpuSharedPage*>(shared_page_.base());
  if (!group_.through_host.empty()) {
    if (rank.memory.budget_bytes == 0)
      rank.memory.budget_bytes =
          cuda::usual_host_bytes(group_.ranks) +
          (rank.messages ? cuda::message_memory_bytes(group_.ranks, rank.most_blocks) : 0);
    if (rank.memory.plans) rank.islands = group_.islands;
    rank.arenas_in_host = [this](const cuda::Exchange& arena_exchange, std::uint64_t bytes) {
      return make_host_arenas(arena_exchange, bytes);
    };
  }
  if (shared_page == nullptr && group_.ranks > 1)
    log(LogLevel::warn, group_.rank, "no host memory that all ranks map: no host path, no growth");
  if (shared_page != nullptr && wants_rings()) {
    rank.ring_bytes = cuda::kPlanRingBytes;
    rank.exchange_ring_bytes = cuda::kExchangeRingBytes;
    rank.rings = [this](const cuda::Exchange& ring_exchange) {
      rings_ = show_memory(ring_exchange, group_.rank, group_.ranks,
                           cuda::kPlanRingBytes + cuda::kExchangeRingBytes);
      return bases_of(rings_);
    };
    const bool has_links = group_.through_host.empty();
    if (group_.reach.host && (has_links || cuda::cores_take_calls(group_.ranks)))
      rank.host_flags = reinterpret_cast<cuda::HostFlags*>(shared_page->host);
    // Otherwise no share of large calls goes through host memory, or all of a call does.
    if (group_.reach.host && has_links) {
      rank.share_page = &shared_page->shares;
      if (with_slots) rank.message_slots = shared_page->message_slots;
    }
  }
  // A resume has no other way than files, so it waits for a late rank.
  if (group_.in_processes && group_.ranks > 1 && group_.through_host.empty() &&
      shared_page != nullptr)
    rank.files = [this] {
      return resumes_until == nullptr
                 ? open_socket_files()
                 : open_socket_files(std::min(options_.rank.wait_s, 86400.0), *resumes_until);
    };
  // Ranks of a process could block each other: see cuda::LazyArena.
  if (options_.has_lazy_arena && shared_page != nullptr && group_.reach.why_no_kernels.empty() &&
      group_.in_processes)
    rank.lazy_arena = &shared_page->lazy_arena;
  if (options_.opens_at_first_call && rank.lazy_arena != nullptr && group_.through_host.empty()) {
    rank.first_arena = &shared_page->first_arena;
    rank.gpus = group_.uuids;
  }
  cuda_ = std::make_unique<cuda::CudaRank>(rank, exchange);
  if (rank.trim_s > 0 && group_.ranks > 1 && !cuda_->has_lazy_arena())
    log(LogLevel::info, group_.rank,
        "PLAIT_TRIM_S has no effect: all memory is made with the communicator");
}

bool GpuCalls::agree_on_suspend(bool can, const std::function<void()>& give_up) {
  auto* const page = reinterpret_cast<GpuSharedPage*>(shared_page_.base());
  if (page == nullptr || !group_.in_processes) return can;  // else no memory goes
  const cuda::SuspendVote::Vote all = suspends_.agree(page->suspends, group_.rank, group_.ranks,
                                                      {can, cuda_->has_begun_to_open()}, give_up);
  has_arena_to_suspend_ = all.has_arena;
  return all.can;
}

/// Rounds of an attempt are even in number: exchange by exchange, records of two rounds lie side by
/// side, so the next attempt's first round overwrites no record that a rank may still read.
void GpuCalls::resume(const std::function<void()>& give_up) {
  if (!cuda_->is_suspended()) return;
  auto* const page = reinterpret_cast<GpuSharedPage*>(shared_page_.base());
  cuda::PageExchange exchange(page->resumes, group_.rank, group_.ranks);
  exchange.begin(++resumes_);
  resumes_until = &give_up;
  try {
    cuda_->resume([&](const std::string& mine) { return exchange.exchange(mine, give_up); });
    resumes_until = nullptr;
  } catch (const std::exception& error) {
    resumes_until = nullptr;
    exchange.fail(error.what(), as_error(error).code());
    cuda_->break_off(nullptr, error, true);
    throw;
  }
}

void GpuCalls::check_memory(const Request& request, int rank, const void* input,
                            const void* output) const {
  const cuda::Current current(cuda_->context());
  const auto check_one = [&](const char* name, const void* pointer, std::uint64_t bytes) {
    if (bytes == 0) return;
    if (pointer == nullptr)
      throw Error(ErrorCode::invalid_argument,
                  text("{}: wanted {} bytes on GPU {}, found null", name, bytes, ordinal()));
    const cuda::PointerLocation place = cuda::place_of(pointer);
    if (place.memory != cuda::kMemoryOnDevice)
      throw Error(ErrorCode::invalid_argument,
                  text("{}: wanted memory of GPU {}, found host memory; copy it there, or call "
                       "without a stream",
                       name, ordinal()));
    if (place.ordinal != ordinal())
      throw Error(ErrorCode::invalid_argument,
                  text("{}: wanted memory of GPU {}, found memory of GPU {}; make the communicator "
                       "with that device",
                       name, ordinal(), place.ordinal));
  };
  check_one("input", input, input_bytes(request, rank));
  check_one("output", output, output_bytes(request, rank));
  if (!usable_as_is(request, rank, input, output))
    throw Error(ErrorCode::invalid_argument,
                text("input and output overlap other than in place ({}): use buffers apart, or "
                     "NCCL's in-place layout",
                     name_of(request)));
}

bool GpuCalls::on_device(const void* pointer) const {
  if (pointer == nullptr) return false;
  const cuda::Current current(cuda_->context());
  return cuda::place_of(pointer).memory == cuda::kMemoryOnDevice;
}

void GpuCalls::bind_plan(GpuCall& call, const CallOptions& options) {
  const cuda::RelaxedCaptureMode relaxed;  // for captures of other threads
  CallRecord& counted = *call.counted;
  const Request& request = counted.request;
  if (!group_.why_no_topology.empty())
    throw Error(ErrorCode::unsupported,
                text("{} of {} elements on GPUs wants a plan, and {}", name_of(request),
                     amount_of(request), group_.why_no_topology));
  counted.request.devices = group_.devices;
  counted.plan = plans_->chooser().plan_for(request, options);
  counted.as = counted.plan->counted_as;
  call.bound = cuda_->bind(counted.plan->plan);
}

double GpuCalls::plan_us(const Request& request) const {
  const RequestKey key = request_key(request);
  const std::lock_guard lock(plan_us_guard_);
  if (const double* const cached = plan_us_.find(key)) return *cached;
  const auto plan_for = [&](const Request& one) {
    return plans_->chooser().plan_for(placed(one), {})->plan;
  };
  return plan_us_.add(key, plan_predictor(group_.topology, plan_for)(request),
                      [](const double&) {});
}

const CallOptions& GpuCalls::wanted_by(const CallOptions& options) const {
  return options.strategy.empty() && !options_.forced.strategy.empty() ? options_.forced : options;
}

std::optional<cuda::EngineChoice> GpuCalls::chosen(const cuda::Selector& selector,
                                                   const Request& request,
                                                   const CallOptions& wanted, Launch launch) const {
  if (options_.beats_nccl && wanted.strategy.empty()) return selector.no_slower_than_nccl(request);
  return selector.best(request, {wanted.strategy, wanted.params, launch == Launch::graph});
}

/// Returns none if a plan serves the request.
std::optional<cuda::EngineChoice> GpuCalls::choose_engine(const Request& request,
                                                          const CallOptions& wanted, ArenaTier tier,
                                                          Launch launch) const {
  const bool names_engine =
      !wanted.strategy.empty() && cuda::engine_named(wanted.strategy, request) != nullptr;
  if (!wanted.strategy.empty() && !names_engine) return std::nullopt;
  if (!group_.reach.why_no_kernels.empty()) {
    if (!names_engine) return std::nullopt;
    throw Error(ErrorCode::unsupported,
                text("{}: {}", wanted.strategy, group_.reach.why_no_kernels));
  }
  const std::optional<cuda::EngineChoice> choice =
      chosen(selector_of(tier), request, wanted, launch);
  if (choice && !group_.reach.host &&
      (choice->tuning.host_permille > 0 || choice->tuning.host_cpu_permille > 0))
    throw Error(ErrorCode::unsupported, "a part through host memory: masks leave no way there");
  return choice;
}

void GpuCalls::prepare_choice(GpuCall& call, const cuda::EngineChoice& choice, ArenaTier tier) {
  CallRecord& counted = *call.counted;
  call.ready = cuda_->prepare(*choice.engine, counted.request, choice.tuning, tier);
  const std::vector<const cuda::Engine*>& all = cuda::engines();
  call.engine = static_cast<int>(std::find(all.begin(), all.end(), choice.engine) - all.begin());
  counted.choice = choice;
  counted.as = text("{}/{}", name_of(counted.request), cuda::label(choice));
}

GpuCalls::GpuCall GpuCalls::prepare(const Request& request, const CallOptions& options,
                                    ArenaTier tier, Launch launch) {
  GpuCall call;
  CallRecord& counted = *call.counted;
  counted.request = request;
  counted.tier = tier;
  counted.as = text("{}/local", name_of(request));
  if (request.count == 0 || is_local_copy(request)) return call;
  const CallOptions& wanted = wanted_by(options);
  if (const std::optional<cuda::EngineChoice> choice =
          choose_engine(request, wanted, tier, launch)) {
    prepare_choice(call, *choice, tier);
    call.differs_in_graphs =
        !options_.beats_nccl && launch == Launch::eager &&
        selector_of(tier).differs_in_graphs(request, {wanted.strategy, wanted.params});
    return call;
  }
  if (wanted.strategy.empty() && !wanted.params.empty())
    throw Error(ErrorCode::invalid_argument,
                text("params: a plan serves this {}; name the strategy that they are for",
                     name_of(request)));
  if (tier == ArenaTier::small)
    throw Error(ErrorCode::unsupported,
                text("{} of {} elements wants a plan, and there is no room for plans: {}",
                     name_of(request), amount_of(request), cuda_->why_no_large_arena()));
  bind_plan(call, wanted);
  return call;
}

/// Returns the prepared call of the key; null if none exists.
GpuCalls::GpuCall* GpuCalls::find_call(const CallKey& key) {
  const std::lock_guard lock(guard_);
  GpuCall* const call = calls_.find(key);
  return call != nullptr ? call : planned_calls_.find(key);
}

GpuCalls::GpuCall& GpuCalls::insert_call(const CallKey& key, GpuCall made) {
  const std::lock_guard lock(guard_);
  if (made.bound != nullptr) made.captured_as = std::make_unique<const CallKey>(key);
  if (options_.finds_paths)
    for (const Launch launch : {Launch::graph, Launch::eager}) find_paths(*made.counted, launch);
  // Freeing waits for all work on the GPU: a dropped plan is not in use.
  Calls& calls = made.bound == nullptr ? calls_ : planned_calls_;
  return calls.add(key, std::move(made), [this](const GpuCall& dropped) { drop(dropped.counted); });
}

/// Bytes by path of a dropped call are computed when somebody reads the counters, or when too many
/// dropped calls wait.
void GpuCalls::drop(const std::shared_ptr<CallRecord>& counted) {
  constexpr std::size_t kMostDropped = 16384;
  if (dropped_.size() < kMostDropped) return dropped_.push_back(counted);
  count(*dropped_.front(), long_dropped_);
  dropped_.pop_front();
  dropped_.push_back(counted);
}

/// Returns `call` (with key `key`), or the graph variant while the stream captures.
GpuCalls::GpuCall& GpuCalls::as_launched(CallKey& key, GpuCall& call, const Request& request,
                                         const CallOptions& options, cuda::Stream stream) {
  if (!call.differs_in_graphs || !is_capturing(stream)) return call;
  std::get<Launch>(key) = Launch::graph;
  if (GpuCall* const captured = find_call(key)) return *captured;
  GpuCall made = prepare(request, options, call.counted->tier, Launch::graph);
  made.large_steps = call.large_steps;
  return insert_call(key, std::move(made));
}

/// Returns the call for the arena tier that all ranks have. Ranks count the calls that use the
/// large arena, so an error of a single rank must come before the call is counted.
GpuCalls::GpuCall& GpuCalls::by_tier(CallKey& key, unsigned steps, const Request& request,
                                     const CallOptions& options, cuda::Stream stream) {
  const bool has_large_arena = cuda_->reserve_large_arena(
      is_capturing(stream) ? cuda::CallMode::captured : cuda::CallMode::alone, steps);
  std::get<CallTier>(key) = has_large_arena ? CallTier::full : CallTier::small;
  try {
    GpuCall* call = find_call(key);
    if (call == nullptr) {
      const ArenaTier tier = has_large_arena ? ArenaTier::full : ArenaTier::small;
      GpuCall made = prepare(request, options, tier, Launch::eager);
      made.large_steps = has_large_arena ? steps : 0;
      call = &insert_call(key, std::move(made));
    }
    return as_launched(key, *call, request, options, stream);
  } catch (...) {
    // A call that this rank alone could not prepare is not counted, since the program may repeat
    // the call. A call that lacks memory is refused on all ranks, and a later call may get the
    // memory.
    if (has_large_arena) cuda_->cancel_reservation(steps, true);
    throw;
  }
}

GpuCalls::RequestKey GpuCalls::request_key(const Request& request) {
  return {static_cast<int>(request.collective),
          request.count,
          static_cast<int>(request.type),
          static_cast<int>(request.op),
          request.root,
          request.peer,
          request.counts};
}

GpuCalls::CallKey GpuCalls::key_of(const Request& request, const CallOptions& options) {
  return {request_key(request), options.strategy, options.params,
          CallTier::only,       Launch::eager,    limits_key({})};
}

GpuCalls::GpuCall& GpuCalls::prepared(const Request& request, const CallOptions& options,
                                      cuda::Stream stream, const void* input, void* output) {
  CallKey key = key_of(request, options);
  GpuCall* call = find_call(key);
  if (call == nullptr) {
    if (request.ranks != group_.ranks)
      throw Error(ErrorCode::invalid_argument,
                  text("request for {} ranks, communicator of {}", request.ranks, group_.ranks));
    checked(request, options_.checks);  // type, op, root, size
    GpuCall made;
    if (const unsigned steps = steps_needed(request, options); steps != 0) {
      made.large_steps = steps;
      made.is_by_tier = true;
    } else {
      made = prepare(request, options, tier_of(false), Launch::eager);
    }
    call = &insert_call(key, std::move(made));
  }
  check_memory(request, group_.rank, input, output);
  if (call->is_by_tier) {
    const std::string& strategy = wanted_by(options).strategy;
    const bool is_plans = !strategy.empty() && cuda::engine_named(strategy, request) == nullptr;
    if (!is_plans || reduces(request.collective))  // plans without reductions accept any memory
      cuda::check_alignment(request, group_.rank, input, output);
    return by_tier(key, call->large_steps, request, options, stream);
  }
  return as_launched(key, *call, request, options, stream);
}

std::vector<cuda::MessageEnd> message_ends(const Request& request, int rank, const void* input,
                                           void* output) {
  const std::uint64_t bytes = request.count * bytes_of(request.type);
  char* const from = static_cast<char*>(const_cast<void*>(input));  // a send only reads
  char* const to = static_cast<char*>(output);
  const int ranks = request.ranks;
  if (request.collective == Collective::send_recv)
    return {{true, (rank + 1) % ranks, from, bytes},
            {false, (rank + ranks - 1) % ranks, to, bytes}};
  std::vector<cuda::MessageEnd> all;
  for (int peer = 0; peer < ranks; ++peer) {
    const std::uint64_t at = static_cast<std::uint64_t>(peer) * bytes;
    all.push_back({true, peer, from + at, bytes});
    all.push_back({false, peer, to + at, bytes});
  }
  return all;
}

/// Makes the call by the kernel that serves sends and receives under NCCL.
void GpuCalls::enqueue_messages(const Request& request, const void* input, void* output,
                                cuda::Stream stream) {
  if (!cuda_->takes_messages())
    throw Error(ErrorCode::unsupported,
                "strategy messages: the communicator has no memory for sends and receives; wanted "
                "CommunicatorOptions::messages on two or more ranks");
  if (request.collective != Collective::send_recv && request.collective != Collective::all_to_all)
    throw Error(ErrorCode::unsupported, text("strategy messages: wanted send_recv or all_to_all, "
                                             "found {}",
                                             name_of(request.collective)));
  if (request.ranks != group_.ranks)
    throw Error(ErrorCode::invalid_argument,
                text("request for {} ranks, communicator of {}", request.ranks, group_.ranks));
  if (!checked(request, options_.checks).counts.empty())
    throw Error(ErrorCode::unsupported,
                "strategy messages: wanted blocks of one count, found a count for each rank");
  check_memory(request, group_.rank, input, output);
  CountedCall counted(request, kByPlait, stream);
  cuda_->messages(message_ends(request, group_.rank, input, output), stream);
  counted.done_by(kByPlait);
}

void GpuCalls::enqueue(const Request& request, const void* input, void* output, cuda::Stream stream,
                       const CallOptions& options) {
  const cuda::Current current(cuda_->context());
  if (options.strategy == cuda::kMessagesRow)
    return enqueue_messages(request, input, output, stream);
  const std::vector<double> scalars = scalars_of(request, options);
  GpuCall& call = prepared(request, options, stream, input, output);
  CountedCall counted(request, kByPlait, stream);
  launch(call, request, input, output, stream, scalars);
  counted.done_by(call.engine < 0 ? kByPlait : kByEngine + call.engine);
}

void GpuCalls::launch(GpuCall& call, const Request& request, const void* input, void* output,
                      cuda::Stream stream, const std::vector<double>& scalars) {
  const ArenaHold hold(*cuda_, call.large_steps);
  if (call.bound != nullptr) {
    if (call.captured_as != nullptr && is_capturing(stream)) {
      const std::lock_guard lock(guard_);
      planned_calls_.pin(*std::exchange(call.captured_as, nullptr));
    }
    cuda_->run(*call.bound, input, output, stream, scalars);
  } else if (request.count == 0) {
    // Nothing to move, on any rank.
  } else if (is_local_copy(request)) {
    if (input != output)
      PLAIT_CUDA_CALL(memory_copy_async, reinterpret_cast<cuda::DevicePointer>(output),
                      reinterpret_cast<cuda::DevicePointer>(input), input_bytes(request, 0),
                      stream);
  } else {
    cuda_->run(*call.ready, request, {input, output, scalars}, stream);
  }
  // Smaller calls have no share through host memory, and move the same bytes in a graph.
  constexpr std::uint64_t kLeastShared =
      std::min({cuda::kLeastSharedBytes, cuda::kLeastExchangedBytes, cuda::kLeastGatheredBytes});
  const bool captured = message_bytes(request) >= kLeastShared && is_capturing(stream);
  const Launch launch = captured ? Launch::graph : Launch::eager;
  call.counted->calls[static_cast<std::size_t>(launch)].fetch_add(1, std::memory_order_relaxed);
}

/// If masks keep kernels from links, plans serve as many calls as possible: NCCL would use the
/// masked links.
const GpuCalls::Offer& GpuCalls::offer(const LimitedRequest& request) {
  OfferKey key{request_key(request), limits_key(request.limits)};
  if (last_offer_ != nullptr && last_key_ == key) return *last_offer_;
  last_key_ = std::move(key);
  if ((last_offer_ = offers_.find(last_key_)) != nullptr) return *last_offer_;
  if (request.limits != CallLimits{})
    return *(last_offer_ = &offers_.add(last_key_, limited_offer(request), [](const Offer&) {}));
  Offer made;
  const auto failure = attempt([&] {
    if (request.count == 0) return;
    made.large_steps = steps_needed(request, {});
    const ArenaTier tier = tier_of(made.large_steps != 0);
    made.is_taken = choose_engine(request, options_.forced, tier, Launch::eager).has_value();
    const bool by_plan = !group_.reach.why_no_kernels.empty() || !options_.forced.strategy.empty();
    if (made.is_taken || !by_plan) return;
    static_cast<void>(plans_->chooser().plan_for(placed(request), options_.forced));
    made = {.is_taken = true, .large_steps = cuda_->has_lazy_arena() ? cuda::kAllLargeSteps : 0};
  });
  if (failure) made = {};
  return *(last_offer_ = &offers_.add(last_key_, made, [](const Offer&) {}));
}

std::vector<FlightMemory> GpuCalls::held() const {
  std::vector<FlightMemory> parts;
  for (std::size_t at = 0; at < kMemoryParts; ++at) {
    const auto part = static_cast<MemoryPart>(at);
    if (const std::uint64_t bytes = cuda_->memory().of(part); bytes != 0)
      parts.push_back({name_of(part), bytes});
  }
  return parts;
}

bool GpuCalls::takes(const LimitedRequest& request) { return offer(request).is_taken; }

int GpuCalls::enqueue_taken(const LimitedRequest& request, const void* input, void* output,
                            cuda::Stream stream) {
  const unsigned steps = large_steps(request);
  CallKey key = key_of(request, {});
  std::get<CallTier>(key) = steps != 0 ? CallTier::full : CallTier::only;
  std::get<LimitsKey>(key) = limits_key(request.limits);
  GpuCall* call = find_call(key);
  if (call == nullptr) {
    ArenaHold hold(*cuda_, steps);  // ends if the call is refused
    const ArenaTier tier = tier_of(steps != 0);
    GpuCall made = request.limits == CallLimits{} ? prepare(request, {}, tier, Launch::eager)
                                                  : prepare_limited(request, tier);
    made.large_steps = steps;
    call = &insert_call(key, std::move(made));
    hold.keep();
  }
  launch(*call, request, input, output, stream, {});
  return call->engine;
}

Request GpuCalls::placed(const Request& request) const {
  Request there = request;
  there.devices = group_.devices;
  return there;
}

/// Calls may run meanwhile: bytes are computed after the lock is released.
void GpuCalls::add_to(Counters& counters) const {
  std::vector<std::shared_ptr<CallRecord>> counted;
  {
    const std::lock_guard lock(guard_);
    add(counters, long_dropped_);
    counted.assign(dropped_.begin(), dropped_.end());
    for (const Calls* calls : {&calls_, &planned_calls_})
      calls->for_each([&](const GpuCall& call) { counted.push_back(call.counted); });
  }
  for (const std::shared_ptr<CallRecord>& call : counted) count(*call, counters);
  if (const std::uint64_t calls = fused_norms_.load(); calls != 0) {
    counters.calls += calls;
    counters.calls_of["all_reduce_rms_norm/fused"] += calls;
  }
}

void GpuCalls::count(CallRecord& call, Counters& counters) const {
  for (const Launch launch : {Launch::graph, Launch::eager}) {
    const auto which = static_cast<std::size_t>(launch);
    const std::uint64_t calls = call.calls[which].load();
    if (calls == 0) continue;
    counters.calls += calls;
    counters.calls_of[call.as] += calls;
    find_paths(call, launch);
    for (const auto& [path, bytes] : call.paths[which].bytes)
      counters.bytes_of_path[path] += bytes * calls;
  }
}

void GpuCalls::find_paths(CallRecord& call, Launch launch) const {
  auto& paths = call.paths[static_cast<std::size_t>(launch)];
  std::call_once(paths.once, [&] { paths.bytes = bytes_of_path(call, launch); });
}

/// Bytes by path of an engine's call come from the engine's plan; none if no links are known.
std::map<std::string, std::uint64_t> GpuCalls::bytes_of_path(const CallRecord& call,
                                                             Launch launch) const {
  if (call.plan != nullptr) return call.plan->bytes_of_path;
  if (call.choice.engine == nullptr || !group_.why_no_topology.empty()) return {};
  std::map<std::string, std::uint64_t> bytes;
  static_cast<void>(attempt([&] {
    bytes = bytes_per_path(plan_as_launched(
        call.choice, group_.topology, checked(placed(call.request), group_.topology),
        call.tier == ArenaTier::small ? cuda_->small_arena_group() : cuda_->full_group(), launch));
  }));
  return bytes;
}

std::string GpuCalls::choice_of(const LimitedRequest& request) {
  std::string said;
  const auto failure = attempt([&] {
    const ArenaTier tier = tier_of(large_steps(request) != 0);
    if (request.limits != CallLimits{}) {
      const std::optional<cuda::EngineChoice> choice = limited_choice(request, tier);
      said = choice ? text("engine {} within the call's limits", cuda::label(*choice)) : "";
      return;
    }
    if (choose_engine(request, options_.forced, tier, Launch::eager))
      said = selector_of(tier).explain(request, {options_.forced.strategy, options_.forced.params});
    else
      said = "chosen: plan " + plans_->chooser().plan_for(placed(request), options_.forced)->label;
  });
  return failure ? reason_of(*failure) : said.substr(0, said.find('\n'));
}

std::string GpuCalls::explain(const Request& request) {
  std::string lines = text("on GPU {}:\n", ordinal());
  const CallOptions& forced = options_.forced;
  if (const std::optional<cuda::EngineChoice> choice =
          choose_engine(request, forced, ArenaTier::full, Launch::eager)) {
    lines += whole_->explain(request, {forced.strategy, forced.params});
    if (!group_.why_no_topology.empty()) return lines;
    std::string said;
    const auto failure = attempt([&] {
      said = print(what_runs(*choice, group_.topology, checked(placed(request), group_.topology),
                             cuda_->full_group(), Launch::eager));
    });
    return lines + (failure ? text("  not predicted: {}\n", reason_of(*failure)) : said);
  }
  if (!group_.reach.why_no_kernels.empty())
    lines += text("no kernel: {}\n", group_.reach.why_no_kernels);
  if (!group_.why_no_topology.empty()) return lines + text("no plan: {}\n", group_.why_no_topology);
  return lines + plans_->chooser().explain(placed(request));
}

}  // namespace plait
