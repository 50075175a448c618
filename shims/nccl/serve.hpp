// Decides for each call of the program between plait's engine and NCCL, and runs the call on the
// engine. The decision depends on the request and on settings agreed at attach only: not on
// pointers, captures or timing of this rank.
#pragma once
#include "comm/transport/nccl/numbers.hpp"
#include "shims/nccl/group.hpp"

namespace plait::nccl {

/// Converts an error of plait to a result of NCCL (errors.def).
Result result_of(const std::exception& error);

/// Returns whether the engine serves this call. Called once for each call of the program. Throws
/// Error if the call needs the large arena and the buffers are misaligned.
bool takes(CommState& state, const CollectiveCall& call);
/// Returns whether the engine serves sends and receives: all of a communicator's, or none.
bool takes_messages(CommState& state);
/// Enqueues a served call on the engine. Returns errors as results.
Result enqueue(CommState& state, const CollectiveCall& call);
/// Enqueues the sends and receives of a group on the engine.
Result enqueue(CommState& state, Stream stream, const std::vector<MessageEnd>& group);
/// Makes the group's main stream wait for the other streams. On failure, returns the error and ends
/// the communicator's calls, since the peers make the same calls.
Result join(const GroupStreams& streams);
/// Makes the other streams wait for the main stream.
Result release(const GroupStreams& streams);
/// Waits until NCCL has enqueued the calls taken in the background, or the communicator ends.
void await_launched(CommState& state);
/// Order a call that NCCL runs behind the communicator's earlier calls, and later calls behind it.
/// The call (in a group: ncclGroupEnd) is made between the two. cancel_call() follows instead of
/// end_call() if NCCL refuses the call.
std::optional<StreamOrder::Position> begin_forwarded(CommState& state, Stream stream);
void end_call(CommState& state, Stream stream,
              const std::optional<StreamOrder::Position>& position);
void cancel_call(CommState& state, const std::optional<StreamOrder::Position>& position);
/// Returns the result of a call that `state` can neither serve nor forward; ncclSuccess = it can.
Result blocked(CommState& state);

}  // namespace plait::nccl
