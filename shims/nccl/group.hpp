// State of ncclGroupStart .. ncclGroupEnd in each thread: calls that plait serves and communicators
// made in a group are recorded, and processed when the outermost group ends (calls.cpp).
#pragma once
#include <optional>
#include <vector>

#include "shims/nccl/comm_table.hpp"

namespace plait::nccl {

/// A collective call of the program.
struct CollectiveCall {
  LimitedRequest request;
  const void* input = nullptr;
  void* output = nullptr;
  Stream stream = nullptr;
  std::optional<cuda::ScaleFactor> factor;  ///< of a pre-multiplied sum: `request` is the sum
  /// The request under its name for people: a pre-multiplied sum is no sum.
  Request named() const {
    Request named = request;
    if (factor) named.op = ReduceOp::premul_sum;
    return named;
  }
};

struct GroupedCall {
  std::shared_ptr<CommState> state;
  CollectiveCall call;
};

/// A send or receive that plait serves, and the stream.
struct StreamMessage {
  MessageEnd message;
  Stream stream = nullptr;
};

struct GroupedMessage {
  std::shared_ptr<CommState> state;
  StreamMessage sent;
};

/// A communicator that NCCL is making. NCCL stores the handle of a child (split, shrink) in plait's
/// `late_handle` first; plait publishes it at `handle_out` when the child may attach. Otherwise a
/// rank that polls late would attach alone.
struct NewComm {
  Comm* handle_out = nullptr;
  CommSetup prepared;
  std::shared_ptr<CommState> parent;  ///< if split or shrunk; null = NCCL stores at `handle_out`
  LateHandle handle;                  ///< if split or shrunk
};

/// A stream on which NCCL runs forwarded calls of a communicator.
struct ForwardedStream {
  std::shared_ptr<CommState> state;
  Stream stream;
  std::optional<StreamOrder::Position> position;  ///< in stream order; set when the group ends
};

/// The streams of a communicator's calls in a group: that of the first call, and further streams.
struct GroupStreams {
  CommState* state = nullptr;
  Stream main = nullptr;
  std::vector<Stream> others;
  bool has_served = false;     ///< plait runs some calls
  bool has_forwarded = false;  ///< NCCL runs some calls
};

/// A communicator with calls of the group in its flight recorder.
struct RecordedInGroup {
  std::shared_ptr<CommState> state;
  FlightRing::Place before;  ///< of the group's records
};

/// A CommEngine::reserve() for a call of the group.
struct ReservedInGroup {
  std::shared_ptr<CommState> state;
  ArenaReservation reserved;
};

/// Work recorded until the outermost group ends.
struct CallGroup {
  std::vector<GroupedCall> calls;
  std::vector<GroupedMessage> messages;
  std::vector<ForwardedStream> forwarded;
  std::vector<NewComm> new_comms;
  std::vector<ReservedInGroup> reservations;
  std::vector<GroupStreams> streams;  ///< set when the group ends
  std::vector<RecordedInGroup> recorded;

  void clear() {
    calls.clear();
    messages.clear();
    forwarded.clear();
    new_comms.clear();
    reservations.clear();
    streams.clear();
    recorded.clear();
  }
};

/// Calls in progress of this thread. Plain data with initial-exec TLS, since every call of the
/// program reads the context.
struct CallContext {
  int depth = 0;               ///< of nested groups
  int in_native = 0;           ///< > 0: inside the native library; calls of public names from
                               ///< inside (ncclBcast calls ncclBroadcast, ...) are not intercepted
  CallGroup* open = nullptr;   ///< made at first use
  CallGroup* spare = nullptr;  ///< an empty group with allocated memory
};
extern constinit thread_local CallContext call_context [[gnu::tls_model("initial-exec")]];

/// Returns this thread's open group, made at first use.
CallGroup& open_group();
/// Deleter of a group that has ended: empties and keeps the group for the next use.
struct GroupEnd {
  void operator()(CallGroup* ended) const;
};
using EndedGroup = std::unique_ptr<CallGroup, GroupEnd>;

class InNative {
 public:
  InNative() { ++call_context.in_native; }
  ~InNative() { --call_context.in_native; }
  InNative(const InNative&) = delete;
  InNative& operator=(const InNative&) = delete;
};

/// Calls the native function; ncclInvalidUsage if missing.
template <class Function, class... Arguments>
Result forward(Function function, Arguments... arguments) {
  const InNative inside;
  return function == nullptr ? ncclInvalidUsage : function(arguments...);
}

}  // namespace plait::nccl
