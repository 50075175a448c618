// Calls with a count per block where no rank knows all counts: ranks exchange the known counts.
#include "base/error_reason.hpp"
#include "base/text.hpp"
#include "comm/api/communicator_state.hpp"
#include "comm/choose/own_counts.hpp"

namespace plait {

/// Returns the request with the counts of all ranks.
Request Communicator::State::completed(const Request& given, const OwnCounts& mine) {
  Request request = given;
  request.counts.clear();
  CallDescriptor shown = describe(CallKind::counts, request, "");
  const std::optional<Error> wrong = attempt([&] {
    if (request.ranks != ranks())
      throw Error(ErrorCode::invalid_argument,
                  text("request for {} ranks, communicator of {}", request.ranks, ranks()));
    host->require_own_counts(request);
    check_own_counts(request, rank(), mine);
  });
  if (wrong) set_error(shown, *wrong);
  const auto take = [&] {
    try {
      request.counts = counts_of(request, host->own_counts());
    } catch (const Error& error) {  // the same error on all ranks
      throw AgreedError(error.code(), reason_of(error));
    }
  };
  host->in_call(shown, take, wrong ? nullptr : &mine);
  return normal(request);
}

void Communicator::run(const Request& request, const OwnCounts& mine, const void* input,
                       void* output, const CallOptions& options) {
  Request whole;
  with_prefix(state_->about, [&] { whole = state_->completed(request, mine); });
  run(whole, input, output, options);
}

void Communicator::enqueue(const Request& request, const OwnCounts& mine, const void* input,
                           void* output, void* stream, const CallOptions& options) {
  Request whole;
  with_prefix(state_->about, [&] {
    state_->device->require();
    whole = state_->completed(request, mine);
  });
  enqueue(whole, input, output, stream, options);
}

}  // namespace plait
