// Collectives round a ring of ranks by copy engines: all_gather, broadcast along the ring, sends to
// the next rank, and all_to_all. In each step a rank pushes to a single peer, so no two senders
// share a port. Every rank takes each piece out of the inbox, and pushes it on from there if
// further ranks want it. Small kernels hold a barrier with the ranks that a rank pushes to and
// receives from. Source: the ring all-gather, the pipelined broadcast, the pairwise exchange.
// docs/design/copy_engines.md explains why engines, and why a ring.
#pragma once
#include <cstdint>

#include "gpu/copy/engine_call.hpp"
#include "gpu/copy/ring_cut.hpp"

namespace plait::cuda {

/// A call. The barrier of a step signals first what the same step of other ranks waits for, and
/// steps have the same order on all ranks. Hence no rank waits for ever, even with a single
/// hardware queue.
class EngineRing : private EngineCall {
 public:
  EngineRing(EngineQueue& queue, const EnginePath& path, const RingCut& cut, const CallArgs& call)
      : EngineCall(queue, path, call, DataType::uint8), cut_(cut), call_(call) {}

  /// Enqueues the call behind the work on `stream`; later work on `stream` runs after all of the
  /// call.
  void enqueue(Event fork, Stream stream);

 private:
  enum RingStream : std::size_t { kPush, kBarrier, kTake, kRingStreams };  // one stream each
  enum RingEvent : std::size_t {
    kPushed,
    kBarrierPassed = kPushed + 2,
    kTaken = kBarrierPassed + 2,
    kRingEvents = kTaken + 2
  };
  static_assert(kRingStreams <= kEngineStreams && kRingEvents <= kEngineEvents);

  /// Rank that this rank pushes to in a step, and rank that pushes to this rank.
  int after(std::uint32_t step) const { return (call_.rank + ranks_on(cut_, step)) % call_.ranks; }
  int before(std::uint32_t step) const {
    return (call_.rank + call_.ranks - ranks_on(cut_, step)) % call_.ranks;
  }
  Stream stream(RingStream role) const { return path_.streams[role]; }
  /// Number of the first barrier, before step 0. Each step ends with a barrier, and so does the
  /// call.
  static constexpr std::uint32_t kBegun = 1;
  Event passed_barrier(std::uint32_t number) const {
    return path_.events[kBarrierPassed + number % 2];
  }
  Event pushed(std::uint32_t step) const { return path_.events[kPushed + step % 2]; }
  Event taken(std::uint32_t step) const { return path_.events[kTaken + step % 2]; }
  char* slot(int rank, std::uint32_t step) const;
  const char* own(const RingPiece& piece) const {
    return static_cast<const char*>(call_.input) + piece.sent_from;
  }
  char* in_output(const RingPiece& piece) const {
    return static_cast<char*>(call_.output) + piece.from;
  }
  /// Returns true if this rank pushes, or takes, in the step. Steps without work record no event:
  /// in a graph the event would be an edge that other edges imply (docs/design/copy_engines.md).
  bool pushes(std::uint32_t step) const;
  bool takes(std::uint32_t step) const;
  void push(std::uint32_t step);
  void barrier(std::uint32_t step);
  void take(std::uint32_t step);

  const RingCut& cut_;
  const CallArgs& call_;
};

}  // namespace plait::cuda
