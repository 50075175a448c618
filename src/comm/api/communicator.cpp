// Communicator: the public functions. Calls on host memory go to the host side, calls on GPU memory
// to the device side (communicator_state.cpp makes both).
#include "plait/communicator.hpp"

#include "base/error_reason.hpp"
#include "base/text.hpp"
#include "comm/api/communicator_state.hpp"

namespace plait {

int Communicator::rank() const { return state_->rank(); }
int Communicator::ranks() const { return state_->ranks(); }
std::string Communicator::transport() const { return state_->host->transport(); }
const Topology& Communicator::topology() const { return state_->host->joined().topology; }

void Communicator::enqueue(const Request& given, const void* input, void* output, void* stream,
                           const CallOptions& options) {
  const std::optional<Request> blocks =
      given.counts.empty() ? std::nullopt : std::optional(normal(given));
  const Request& request = blocks ? *blocks : given;
  with_prefix(state_->about, [&] {
    const std::unique_lock<std::mutex> lock = state_->host->begin_on_device(CallKind::collective);
    state_->device->enqueue(request, input, output, stream, options);
  });
}

void Communicator::adopt_device(int device) { state_->adopt_device(device); }

void Communicator::suspend() {
  const auto finish = [&] { state_->device->finish_work(); };
  state_->without_device_calls(CallKind::suspend, finish, [&] { state_->device->suspend(); });
}

void Communicator::resume() {
  state_->without_device_calls(CallKind::resume, [] {}, [&] { state_->device->resume(); });
}

GpuMemory Communicator::gpu_memory() const { return state_->device->gpu_memory(); }

void Communicator::check() {
  with_prefix(state_->device_about, [&] { state_->device->check(); });
  // Pairs across nodes use this communicator's GPUs.
  for (Communicator* pair : state_->pairs->made())
    if (pair->device() != kNoDevice) pair->check();
}

int Communicator::device() const { return state_->device->ordinal(); }

const Topology& Communicator::device_topology() const {
  return state_->device->topology_or(topology());
}

std::string Communicator::tuning_file(const std::string& nccl) const {
  return state_->device->tuning_file(nccl);
}

bool Communicator::on_device(const void* pointer) const {
  return device() != kNoDevice && state_->device->on_device(pointer);
}

void Communicator::run(const Plan& given, const void* input, void* output, double scalar) {
  State& state = *state_;
  std::shared_ptr<const ProvedPlan> plan;
  CallDescriptor mine = describe(CallKind::plan, given.request, "");
  mine.scalar = scalar;
  const std::optional<Error> failure = attempt([&] {
    if (given.request.ranks != ranks())
      throw Error(ErrorCode::invalid_argument,
                  text("plan for {} ranks, communicator of {}", given.request.ranks, ranks()));
    if (!state.host->accepts(given.request.devices))
      throw Error(
          ErrorCode::invalid_argument,
          "plan: wanted one for this communicator's devices (plan_for), since its ranks are "
          "on several nodes");
    plan = state.chooser.proved(given);
    check_buffers(plan->plan.request, rank(), input, output, state.writable);
    mine.plan_hash = plan->hash;
  });
  if (failure) set_error(mine, *failure);
  state.host->in_call(mine, [&] { state.run(plan, input, output); });
}

void Communicator::barrier() {
  state_->host->in_call(describe(CallKind::barrier, {}, ""), [] {});
}

std::vector<std::string> Communicator::exchange(const std::string& mine) {
  constexpr std::size_t kMost = 1 << 20;
  CallDescriptor descriptor = describe(CallKind::exchange, {}, "");
  if (mine.size() > kMost)
    set_error(descriptor,
              Error(ErrorCode::invalid_argument,
                    text("exchange: wanted at most {} bytes, found {}", kMost, mine.size())));
  std::vector<std::string> all;
  state_->host->in_call(descriptor, [&] { all = state_->host->exchange(mine); });
  return all;
}

std::optional<Error> Communicator::refuse(ErrorCode code, const std::string& reason) {
  CallDescriptor mine = describe(CallKind::collective, {}, "");
  set_error(mine, Error(code == ErrorCode::ok ? ErrorCode::internal : code, reason));
  try {
    state_->host->in_call(mine, [] {});
  } catch (const AgreedError& agreed) {
    return agreed;
  } catch (const Error&) {  // the caller has another error to report
  }
  return std::nullopt;
}

Communicator& Communicator::pair(int peer) {
  State& state = *state_;
  if (peer < 0 || peer >= ranks() || peer == rank())
    throw Error(ErrorCode::invalid_argument,
                text("wanted another rank of {} to send to or receive from, found {} at rank {}",
                     ranks(), peer, rank()));
  if (!state.host->is_owner())
    throw Error(ErrorCode::invalid_argument,
                "this communicator belongs to the process that forked; make one in the child");
  if (const auto earlier = state.host->failed()) throw Error(*earlier);
  if (!state.about.empty()) return *this;  // this communicator is the pair
  const int place = state.host->place_of(peer);
  Communicator& made = place < 0 ? state.far_pair(peer) : state.pairs->get(place);
  if (state.host->peers().aborted()) made.abort();  // abort() came before the pair was made
  return made;
}

Plan Communicator::plan_for(const Request& request, const CallOptions& options) const {
  return state_->plan_for(state_->placed(request), options)->plan;
}

std::string Communicator::explain(const Request& request) const {
  return state_->chooser.explain(state_->placed(request)) + state_->device->explain(request);
}

Counters Communicator::counters() const {
  Counters counters = state_->counters.counters();
  state_->device->add_to(counters);
  for (const Communicator* pair : state_->all_pairs()) add(counters, pair->counters());
  return counters;
}

void Communicator::set_host_deadlines(double arrive_s, double deadline_s) {
  require_deadlines(arrive_s, deadline_s);
  state_->host->set_deadlines(arrive_s, deadline_s);
}

void Communicator::abort() noexcept {
  if (!state_->host->is_owner()) return;
  state_->host->abort();
  state_->pairs->abort();
  {
    const std::lock_guard lock(state_->guard);
    for (const auto& [peer, one] : state_->far_pairs)
      if (one != nullptr) one->abort();
  }
  state_->device->abort();
  state_->host->raise_abort();
}

}  // namespace plait
