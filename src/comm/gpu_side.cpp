// A call on the GPU: its request is made ready once (by an engine, or a plan proved and bound),
// then only launched. The decision follows from the request and agreed settings alone.
#include "comm/gpu_side.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/text.hpp"
#include "comm/buffers.hpp"
#include "comm/descriptor.hpp"
#include "comm/what_runs.hpp"
#include "driver/cuda/api.hpp"
#include "exec/cuda/copies/exchange_cut.hpp"
#include "exec/cuda/device/call_buffers.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

/// One rank's share of nothing, or of itself: there is nobody to wait for.
bool is_local_copy(const Request& request) {
  return request.ranks == 1 && request.op != ReduceOp::premul_sum;
}

bool is_capturing(cuda::Stream stream) {
  int status = cuda::kCaptureNone;
  PLAIT_CUDA_CALL(stream_is_capturing, stream, &status);
  return status != cuda::kCaptureNone;
}

std::vector<double> scalars_of(const Request& request, const CallOptions& options) {
  if (request.op != ReduceOp::premul_sum) return {};
  if (options.scalars.empty())
    return std::vector<double>(static_cast<std::size_t>(request.ranks), options.scalar);
  if (options.scalars.size() != static_cast<std::size_t>(request.ranks))
    throw Error(ErrorCode::invalid_argument, text("scalars: wanted one for each of ", request.ranks,
                                                  " ranks, found ", options.scalars.size()));
  return options.scalars;
}

}  // namespace

void add(Counters& counters, const Counters& more) {
  counters.calls += more.calls;
  for (const auto& [name, calls] : more.calls_of) counters.calls_of[name] += calls;
  for (const auto& [path, bytes] : more.bytes_of_path) counters.bytes_of_path[path] += bytes;
}

void GpuSide::check_memory(const Request& request, const void* input, const void* output) const {
  const cuda::Current current(cuda_->context());
  const auto check_one = [&](const char* name, const void* pointer, std::uint64_t bytes) {
    if (bytes == 0) return;
    if (pointer == nullptr)
      throw Error(ErrorCode::invalid_argument,
                  text(name, ": wanted ", bytes, " bytes on GPU ", ordinal_, ", found null"));
    const cuda::Place place = cuda::place_of(pointer);
    if (place.memory != cuda::kMemoryOnDevice)
      throw Error(ErrorCode::invalid_argument,
                  text(name, ": wanted memory of GPU ", ordinal_,
                       ", found host memory; copy it there, or call without a stream"));
    if (place.ordinal != ordinal_)
      throw Error(ErrorCode::invalid_argument,
                  text(name, ": wanted memory of GPU ", ordinal_, ", found memory of GPU ",
                       place.ordinal, "; make the communicator with that device"));
  };
  check_one("input", input, input_bytes(request, options_.rank));
  check_one("output", output, output_bytes(request, options_.rank));
  if (!usable_as_is(request, options_.rank, input, output))
    throw Error(ErrorCode::invalid_argument,
                text("input and output overlap other than in place (", name_of(request.collective),
                     "): use buffers apart, or NCCL's in-place layout"));
}

bool GpuSide::on_device(const void* pointer) const {
  if (pointer == nullptr) return false;
  const cuda::Current current(cuda_->context());
  return cuda::place_of(pointer).memory == cuda::kMemoryOnDevice;
}

void GpuSide::bind_plan(Call& call, const CallOptions& options, cuda::Stream stream) {
  Counted& counted = *call.counted;
  const Request& request = counted.request;
  if (is_capturing(stream))
    throw Error(ErrorCode::invalid_argument,
                text("the first ", name_of(request.collective), " of ", request.count,
                     " elements by a plan cannot be captured: call it once before the capture"));
  if (!why_no_topology_.empty())
    throw Error(ErrorCode::unsupported,
                text(name_of(request.collective), " of ", request.count,
                     " elements on GPUs wants a plan, and ", why_no_topology_));
  counted.request.devices = devices_;
  counted.plan = chooser_->plan_for(request, options);
  counted.as = counted.plan->counted_as;
  call.bound = cuda_->bind(counted.plan->plan);
}

/// None where it takes a plan.
std::optional<cuda::Choice> GpuSide::choose_engine(const Request& request,
                                                   const CallOptions& wanted,
                                                   cuda::CudaRank::Room room) const {
  const bool names_engine =
      !wanted.strategy.empty() && cuda::engine_named(wanted.strategy, request) != nullptr;
  if (!wanted.strategy.empty() && !names_engine) return std::nullopt;
  if (!reach_.why_no_kernels.empty()) {
    if (!names_engine) return std::nullopt;
    throw Error(ErrorCode::unsupported, text(wanted.strategy, ": ", reach_.why_no_kernels));
  }
  const std::optional<cuda::Choice> choice =
      (room == cuda::CudaRank::Room::first ? *first_ : *whole_)
          .best(request, {wanted.strategy, wanted.params});
  if (choice && !reach_.host &&
      (choice->tuning.host_permille > 0 || choice->tuning.host_cpu_permille > 0))
    throw Error(ErrorCode::unsupported, "a part through host memory: masks leave no way there");
  return choice;
}

GpuSide::Call GpuSide::prepare(const Request& request, const CallOptions& options,
                               cuda::Stream stream, cuda::CudaRank::Room room) {
  Call call;
  Counted& counted = *call.counted;
  counted.request = request;
  counted.room = room;
  counted.as = text(name_of(request.collective), "/local");
  if (request.count == 0 || is_local_copy(request)) return call;
  const CallOptions& wanted =
      options.strategy.empty() && !joined_.forced.strategy.empty() ? joined_.forced : options;
  if (const std::optional<cuda::Choice> choice = choose_engine(request, wanted, room)) {
    call.ready = cuda_->prepare(*choice->engine, request, choice->tuning, room);
    counted.choice = *choice;
    counted.as = text(name_of(request.collective), "/", choice->engine->info().name);
    return call;
  }
  if (wanted.strategy.empty() && !wanted.params.empty())
    throw Error(ErrorCode::invalid_argument,
                text("params: a plan serves this ", name_of(request.collective),
                     "; name the strategy that they are for"));
  if (room == cuda::CudaRank::Room::first)
    throw Error(ErrorCode::unsupported,
                text(name_of(request.collective), " of ", request.count,
                     " elements wants a plan, whose room comes with the first such call outside a "
                     "capture: ",
                     cuda_->why_no_room()));
  bind_plan(call, wanted, stream);
  return call;
}

/// Of the request and what all ranks agreed on alone. A strategy that is asked for by name may want
/// anything.
bool GpuSide::wants_room(const Request& request, const CallOptions& options) const {
  if (!cuda_->grows() || request.count == 0) return false;
  return !options.strategy.empty() || !joined_.forced.strategy.empty() ||
         wants_later_room(*first_, *whole_, request);
}

/// What was made for the key; null where nothing was.
GpuSide::Call* GpuSide::known(const Key& key) {
  const std::lock_guard lock(guard_);
  Call* const call = calls_.find(key);
  return call != nullptr ? call : planned_calls_.find(key);
}

GpuSide::Call& GpuSide::keep(const Key& key, Call made) {
  const std::lock_guard lock(guard_);
  // Binding a plan has waited for all that the GPU was doing, so none that goes is in use.
  Calls& calls = made.bound == nullptr ? calls_ : planned_calls_;
  return calls.add(key, std::move(made),
                   [this](const Call& dropped) { count(*dropped.counted, dropped_); });
}

/// A call that wants more room than the first, by the room that there is for it on all ranks. These
/// count the same calls, so whatever could fail on one rank alone comes before. `key` is then that
/// of the call.
GpuSide::Call& GpuSide::by_room(Key& key, const Request& request, const CallOptions& options,
                                cuda::Stream stream) {
  const bool has_room =
      cuda_->has_room(is_capturing(stream) ? cuda::RoomCall::captured : cuda::RoomCall::alone);
  std::get<In>(key) = has_room ? In::whole : In::first;
  if (Call* const call = known(key)) return *call;
  try {
    return keep(key, prepare(request, options, stream,
                             has_room ? cuda::CudaRank::Room::whole : cuda::CudaRank::Room::first));
  } catch (...) {
    cuda_->forget_call();  // it was not made, and the program may make it again
    throw;
  }
}

GpuSide::Call& GpuSide::prepared(const Request& request, const CallOptions& options,
                                 cuda::Stream stream, const void* input, void* output) {
  using Room = cuda::CudaRank::Room;
  Key key{static_cast<int>(request.collective),
          request.count,
          static_cast<int>(request.type),
          static_cast<int>(request.op),
          request.root,
          request.peer,
          options.strategy,
          options.params,
          In::one_room};
  Call* call = known(key);
  if (call == nullptr) {
    if (request.ranks != options_.ranks)
      throw Error(ErrorCode::invalid_argument,
                  text("request for ", request.ranks, " ranks, communicator of ", options_.ranks));
    checked(request, joined_.topology);  // type, op, root, size
    Call made;
    if (wants_room(request, options))
      made.wants_room = true;
    else
      made = prepare(request, options, stream, cuda_->grows() ? Room::first : Room::whole);
    call = &keep(key, std::move(made));
  }
  check_memory(request, input, output);
  if (call->wants_room) {
    cuda::check_alignment(request, options_.rank, input, output);
    call = &by_room(key, request, options, stream);
  }
  if (call->bound != nullptr && !call->captured && is_capturing(stream)) {
    call->captured = true;
    const std::lock_guard lock(guard_);
    planned_calls_.keep(key);
  }
  return *call;
}

void GpuSide::enqueue(const Request& request, const void* input, void* output, void* stream_given,
                      const CallOptions& options) {
  auto* const stream = static_cast<cuda::Stream>(stream_given);
  if (failed_.load(std::memory_order_relaxed))
    throw Error(ErrorCode::aborted,
                text("this communicator's GPU side ended earlier: ", cause()->what()));
  cuda_->check();
  const cuda::Current current(cuda_->context());
  const std::vector<double> scalars = scalars_of(request, options);
  Call& call = prepared(request, options, stream, input, output);
  if (call.bound != nullptr) {
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
  // Smaller ones move the same bytes in a graph, and are spared the question.
  const bool captured = message_bytes(request) >= cuda::kLeastSharedBytes && is_capturing(stream);
  const Launch launch = captured ? Launch::graph : Launch::eager;
  call.counted->calls[static_cast<std::size_t>(launch)].fetch_add(1, std::memory_order_relaxed);
}

/// Calls go on meanwhile: what they move is found out when the lock is given back.
void GpuSide::add_to(Counters& counters) const {
  std::vector<std::shared_ptr<Counted>> counted;
  {
    const std::lock_guard lock(guard_);
    add(counters, dropped_);
    for (const Calls* calls : {&calls_, &planned_calls_})
      calls->for_each([&](const Call& call) { counted.push_back(call.counted); });
  }
  for (const std::shared_ptr<Counted>& call : counted) count(*call, counters);
}

void GpuSide::count(Counted& call, Counters& counters) const {
  for (const Launch launch : {Launch::graph, Launch::eager}) {
    const auto which = static_cast<std::size_t>(launch);
    const std::uint64_t calls = call.calls[which].load();
    if (calls == 0) continue;
    counters.calls += calls;
    counters.calls_of[call.as] += calls;
    std::call_once(call.paths[which].once,
                   [&] { call.paths[which].bytes = bytes_of_path(call, launch); });
    for (const auto& [path, bytes] : call.paths[which].bytes)
      counters.bytes_of_path[path] += bytes * calls;
  }
}

/// Of engines as their plans say; nothing where no links are known to name paths by.
std::map<std::string, std::uint64_t> GpuSide::bytes_of_path(const Counted& call,
                                                            Launch launch) const {
  if (call.plan != nullptr) return call.plan->bytes_of_path;
  if (call.choice.engine == nullptr || !why_no_topology_.empty()) return {};
  std::map<std::string, std::uint64_t> bytes;
  static_cast<void>(attempt([&] {
    Request placed = call.request;
    placed.devices = devices_;
    bytes = bytes_per_path(
        plan_as_launched(call.choice, topology_, checked(placed, topology_),
                         call.room == cuda::CudaRank::Room::first ? first_group_ : group_, launch));
  }));
  return bytes;
}

std::string GpuSide::explain(const Request& request) {
  std::string lines = text("on GPU ", ordinal_, ":\n");
  const CallOptions& forced = joined_.forced;
  if (const std::optional<cuda::Choice> choice =
          choose_engine(request, forced, cuda::CudaRank::Room::whole)) {
    lines += whole_->explain(request, {forced.strategy, forced.params});
    if (!why_no_topology_.empty()) return lines;
    Request placed = request;
    placed.devices = devices_;
    return lines +
           print(what_runs(*choice, topology_, checked(placed, topology_), group_, Launch::eager));
  }
  if (!reach_.why_no_kernels.empty()) lines += text("no kernel: ", reach_.why_no_kernels, "\n");
  if (!why_no_topology_.empty()) return lines + text("no plan: ", why_no_topology_, "\n");
  Request placed = request;
  placed.devices = devices_;
  return lines + chooser_->explain(placed);
}

}  // namespace plait
