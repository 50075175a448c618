// Starts and ends non-blocking collectives: the state's thread runs a call, a thread of the program
// completes the request.
#include "shims/mpi/collective/collective_request.hpp"

#include <utility>

#include "shims/mpi/abi/status.hpp"
#include "shims/mpi/args/counting.hpp"
#include "shims/mpi/collective/explain.hpp"

namespace plait::mpi {

std::unique_ptr<CollectiveRequest> make_collective_request(const ServedCall& call,
                                                           const CollectiveArgs& args) {
  ServedComm& state = *call.state;
  try {
    auto made = std::make_unique<CollectiveRequest>(state.shared_from_this(),
                                                    call.agrees && !call.shape.has_own_counts());
    Participation& participation = made->participation;
    participation.try_to([&] {
      const char* why = nullptr;
      const int gpu = state.has_gpus() ? gpu_of_call(args, call.shape, state.position(), why) : -1;
      participation.packed.emplace(args, call.shape, state.position(), gpu);
      participation.packed->retain_types();
    });
    return made;
  } catch (...) {
    state.abort_own();  // later calls would pair with wrong calls of the ranks
    throw;
  }
}

namespace {

void explain_if_staged(const ServedCall& call, const CollectiveArgs& args) {
  static_cast<void>(attempt([&] {
    const RankPosition& position = call.state->position();
    const char* why = "no blocking call has found all ranks' buffers on GPUs";
    if (call.state->has_gpus() && gpu_of_call(args, call.shape, position, why) >= 0) return;
    if (touches_gpu_memory(args, position)) explain_staging(args, why);
  }));
}

}  // namespace

int start_served(const ServedCall& call, const CollectiveArgs& args, void* request) {
  const ProgramThreadScope here;
  try {
    throw_if_revoked(args.comm);
    if (is_explaining()) explain_if_staged(call, args);
    std::unique_ptr<CollectiveRequest> made = make_collective_request(call, args);
    CollectiveRequest& operation = *made;
    int code = 0;
    const std::optional<Error> missed = attempt(
        [&] { code = start_grequest(std::move(made), call.state->retained_comm(), request); });
    if (missed || code != 0) call.state->abort_own();
    if (missed) throw Error(*missed);
    if (code == 0) call.state->begin(operation);
    return code;
  } catch (const std::exception& caught) {
    return report(args.comm, caught);
  }
}

/// Also notices revocations, since plait's thread calls no MPI.
bool CollectiveRequest::has_ended() {
  if (!ended.load(std::memory_order_acquire)) {
    if (has_ulfm() && rate_limit_.is_due() && comm.is_revoked())
      if (const std::shared_ptr<ServedComm> at = abortable.lock()) at->abort();
    return false;
  }
  if (!error) error = attempt([&] { participation.packed->end(); });
  participation.packed.reset();  // here MPI datatypes may be freed
  if (!error) return true;
  if (participation.native_code != 0) {
    code = participation.native_code;
    return true;
  }
  const std::optional<int> found = comm.code_of(*error, failed_ns_);
  code = found.value_or(0);
  return found.has_value();
}

void CollectiveRequest::fill(void* status) const {
  const Abi& abi = native().abi;
  native().Status_set_elements(status, abi.byte, 0);
  native().Status_set_cancelled(status, 0);
  auto* const source = reinterpret_cast<int*>(static_cast<std::byte*>(status) + abi.source_at);
  source[0] = abi.any_source;
  source[1] = abi.any_tag;
}

void on_collective_ended(CollectiveRequest& operation) {
  operation.ended.store(true, std::memory_order_release);
  wake_sleepers();
}

}  // namespace plait::mpi
