// ncclGroupStart .. ncclGroupEnd, as each thread sees it: calls that plait takes and communicators
// made meanwhile are noted, and dealt with when the outermost group ends.
#pragma once
#include <optional>
#include <vector>

#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

/// A collective as the program asked for it.
struct CollectiveCall {
  Request request;
  const void* input = nullptr;
  void* output = nullptr;
  Stream stream = nullptr;
};

struct GroupedCall {
  std::shared_ptr<CommState> state;
  CollectiveCall call;
};

/// A send or a receive that plait takes, and the stream that it is on.
struct StreamMessage {
  MessageEnd message;
  Stream stream = nullptr;
};

struct GroupedMessage {
  std::shared_ptr<CommState> state;
  StreamMessage sent;
};

/// A communicator being made: where the program wants its handle. Of a child by split or shrink
/// NCCL stores the handle at a place of plait's first, and plait hands it on when it may attach:
/// else a rank that looks late would attach alone.
struct NewComm {
  Comm* handle_out = nullptr;
  CommSetup prepared;
  std::shared_ptr<CommState>
      parent;         ///< of split and shrink; null = NCCL stores at `handle_out` at once
  LateHandle handle;  ///< likewise
};

/// A stream on which NCCL will run calls of a communicator.
struct ForwardedStream {
  std::shared_ptr<CommState> state;
  Stream stream;
  std::optional<StreamOrder::Position> position;  ///< of the stream, when the group ends
};

/// The streams that a communicator's calls of one group are on: the first call's, and others.
struct GroupStreams {
  CommState* state = nullptr;
  Stream main = nullptr;
  std::vector<Stream> others;
  bool has_served = false;     ///< plait runs some of them
  bool has_forwarded = false;  ///< NCCL does
};

/// What waits for the end of the outermost group.
struct Group {
  std::vector<GroupedCall> calls;
  std::vector<GroupedMessage> messages;
  std::vector<ForwardedStream> forwarded;
  std::vector<NewComm> new_comms;
  std::vector<std::shared_ptr<CommState>>
      reservations;                   ///< Engine::reserve_large_arena, once for each call
  std::vector<GroupStreams> streams;  ///< when the group ends

  void clear() {
    calls.clear();
    messages.clear();
    forwarded.clear();
    new_comms.clear();
    reservations.clear();
    streams.clear();
  }
};

/// This thread's place among groups and libraries. Plain data, found without a call: it is looked
/// at in every call of the program.
struct CallContext {
  int depth = 0;           ///< of groups
  int in_native = 0;       ///< > 0: inside the native library, whose own calls of public names
                           ///< (ncclBcast calls ncclBroadcast, ...) go straight on
  Group* open = nullptr;   ///< made when something is first noted
  Group* spare = nullptr;  ///< an empty one that was used before, with its room
};
extern constinit thread_local CallContext call_context [[gnu::tls_model("initial-exec")]];

/// This thread's open group.
Group& open_group();
/// Empties a group that has ended, and keeps it for the next one.
struct GroupEnd {
  void operator()(Group* ended) const;
};
using EndedGroup = std::unique_ptr<Group, GroupEnd>;

class InNative {
 public:
  InNative() { ++call_context.in_native; }
  ~InNative() { --call_context.in_native; }
  InNative(const InNative&) = delete;
  InNative& operator=(const InNative&) = delete;
};

/// Calls the native function; ncclInvalidUsage if the library lacks it.
template <class Function, class... Arguments>
Result forward(Function function, Arguments... arguments) {
  const InNative inside;
  return function == nullptr ? ncclInvalidUsage : function(arguments...);
}

}  // namespace plait::nccl
