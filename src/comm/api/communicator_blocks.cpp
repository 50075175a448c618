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
                  text("request for ", request.ranks, " ranks, communicator of ", ranks()));
    if (multinode.transport_comm != nullptr)
      throw Error(ErrorCode::unsupported, text(name_of(request.collective),
                                               "_v: ranks on several nodes have no plan for "
                                               "blocks that have a count each"));
    check_own_counts(request, rank(), mine);
  });
  if (wrong) set_error(shown, *wrong);
  const auto take = [&] {
    std::vector<OwnCounts> all;
    for (int peer = 0; peer < ranks(); ++peer) all.push_back(joined.controls.counts_of(peer, call));
    try {
      request.counts = counts_of(request, all);
    } catch (const Error& error) {  // the same error on all ranks
      throw AgreedError(error.code(), reason_of(error));
    }
  };
  in_call(shown, take, wrong ? nullptr : &mine);
  return normal(request);
}

void Communicator::run(const Request& request, const OwnCounts& mine, const void* input,
                       void* output, const CallOptions& options) {
  Request whole;
  state_->with_context([&] { whole = state_->completed(request, mine); });
  run(whole, input, output, options);
}

void Communicator::enqueue(const Request& request, const OwnCounts& mine, const void* input,
                           void* output, void* stream, const CallOptions& options) {
  Request whole;
  state_->with_context([&] {
    static_cast<void>(state_->gpu());
    whole = state_->completed(request, mine);
  });
  enqueue(whole, input, output, stream, options);
}

}  // namespace plait
