// Runs a collective on host memory: looks up or makes the plan, publishes the call, and runs the
// plan.
#include <functional>
#include <utility>

#include "base/text.hpp"
#include "comm/api/communicator_state.hpp"
#include "comm/shm/buffers.hpp"

namespace plait {

/// Places the request on this communicator's devices if the caller names none.
Request Communicator::State::placed(const Request& request) const {
  Request there = normal(request);
  if (there.devices.empty()) there.devices = host->devices();
  return there;
}

std::shared_ptr<const ProvedPlan> Communicator::State::plan_for(const Request& request,
                                                                const CallOptions& how) {
  if (request.count > 1 << 20) check_size(checked(request, host->joined().topology));
  return chooser.plan_for(request, how);
}

/// Runs and counts a plan inside a call.
void Communicator::State::run(const std::shared_ptr<const ProvedPlan>& plan, const void* input,
                              void* output) {
  host->run(*plan, input, output);
  counters.count(plan);
}

/// Returns the call's plan and descriptor. Throws Error if no plan serves the call.
std::shared_ptr<const CachedCall> Communicator::State::call_of(const Request& given,
                                                               const CallOptions& how) {
  const std::uint64_t like = given.count * 31 + static_cast<std::uint64_t>(given.collective) * 7 +
                             static_cast<std::uint64_t>(given.root);
  std::shared_ptr<const CachedCall>& place = cached_calls[like % cached_calls.size()];
  {
    const std::lock_guard lock(guard);
    if (place != nullptr && place->is_of(given, how)) return place;
  }
  const Request request = placed(given);
  if (request.ranks != ranks())
    throw Error(ErrorCode::invalid_argument,
                text("request for {} ranks, communicator of {}", request.ranks, ranks()));
  if (!host->accepts(request.devices))
    throw Error(ErrorCode::invalid_argument,
                "devices: ranks on several nodes are where their launcher put them");
  auto made = std::make_shared<CachedCall>();
  made->request = given;
  made->strategy = how.strategy;
  made->params = how.params;
  made->plan = plan_for(request, how);
  made->shown = describe(CallKind::collective, request, wanted_label(how));
  made->shown.plan_hash = made->plan->hash;
  const std::lock_guard lock(guard);
  return place = std::move(made);
}

/// Runs a collective. norm: the arguments of all_reduce_rms_norm around the call, which ranks
/// compare too; null = none.
void Communicator::State::run_call(const Request& given, const void* input, void* output,
                                   const CallOptions& options, const RmsNorm* norm) {
  std::shared_ptr<const CachedCall> call;
  double scalar = options.scalar;
  const auto prepare = [&] {
    scalar = scalar_of(options, rank(), ranks());
    call = call_of(given, options);
    check_buffers(call->plan->plan.request, rank(), input, output, writable);
  };
  const std::optional<Error> failure = attempt(std::cref(prepare));
  const auto body = [&] { run(call->plan, input, output); };
  if (!failure && scalar == 1.0 && norm == nullptr)
    return with_prefix(about, [&] { host->in_call(call->shown, std::cref(body)); });
  CallDescriptor mine = describe(CallKind::collective, given, wanted_label(options));
  if (failure)
    set_error(mine, *failure);
  else
    mine = call->shown;
  if (!failure && norm != nullptr) set_norm(mine, *norm);
  mine.scalar = scalar;
  with_prefix(about, [&] { host->in_call(mine, std::cref(body)); });
}

void Communicator::run(const Request& given, const void* input, void* output,
                       const CallOptions& options) {
  state_->run_call(given, input, output, options);
}

}  // namespace plait
