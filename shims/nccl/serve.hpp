// One call of the program -> plait's engine or NCCL. The choice is a function of the request and of
// what all ranks agreed on when they attached: never of pointers, capture, or this rank's luck.
#pragma once
#include "comm/nccl/numbers.hpp"
#include "shims/nccl/group.hpp"

namespace plait::nccl {

/// A code of plait as NCCL's, by errors.def.
Result result_of(const std::exception& error);

/// True where this call goes to the engine. Asked once for each call of the program. Throws Error
/// where its memory is not what a large call can use.
bool takes(CommState& state, const CollectiveCall& call);
/// True where sends and receives go to the engine: all of a communicator's, or none.
bool takes_messages(const CommState& state);
/// Hands a taken call to the engine; its errors become results.
Result enqueue(CommState& state, const CollectiveCall& call);
/// The same of what one group sends and receives.
Result enqueue(CommState& state, Stream stream, const std::vector<MessageEnd>& group);
/// What the group's main stream gets from then on comes after all that its other streams hold.
/// Errors become results, and end the communicator's calls, since the other ranks make theirs.
Result join(const GroupStreams& streams);
/// What the others get from then on comes after all that the main stream holds.
Result release(const GroupStreams& streams);
/// Returns when NCCL has put on their streams what it took in the background, or the communicator
/// is at its end.
void await_launched(CommState& state);
/// Around a call that NCCL runs, which is handed over between the two (in a group, at its end): it
/// goes on behind the communicator's earlier calls, and others behind it.
std::optional<StreamOrder::Position> begin_forwarded(CommState& state, Stream stream);
void end_call(CommState& state, Stream stream,
              const std::optional<StreamOrder::Position>& position);
/// `state` cannot serve or forward any more: what calls return then; ncclSuccess = it can.
Result blocked(CommState& state);

}  // namespace plait::nccl
