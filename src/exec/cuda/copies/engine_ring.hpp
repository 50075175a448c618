// An all_gather round a ring of ranks by copy engines, a broadcast along it, sends to the next
// rank, or an all_to_all: in each turn a rank pushes to one other only, so no two senders meet at a
// port, and every rank takes out of its inbox what has been pushed there, and passes it on from
// where it lies where others want it too. Small kernels meet those that a rank pushes to and gets
// from, one takes out what has come. Source: the ring all-gather, the pipelined broadcast, the
// pairwise exchange; docs/design/copy_engines.md has why engines, and why a ring.
#pragma once
#include <cstdint>

#include "exec/cuda/copies/engine_call.hpp"
#include "exec/cuda/copies/ring_cut.hpp"

namespace plait::cuda {

/// One call. A step's meeting tells first what others' same step waits for, and steps come in one
/// order on all ranks: so nobody waits for ever, were there only one hardware queue.
class EngineRing : private EngineCall {
 public:
  EngineRing(EngineQueue& queue, const EnginePath& path, const RingCut& cut, const CallArgs& call)
      : EngineCall(queue, path, call, DataType::uint8), cut_(cut), call_(call) {}

  /// After what `stream` holds; what comes later on it comes after all of the call.
  void enqueue(Event fork, Stream stream);

 private:
  enum RingStream : std::size_t { kPush, kBarrier, kTake, kRingStreams };  // a stream each
  enum RingEvent : std::size_t {
    kPushed,
    kBarrierPassed = kPushed + 2,
    kTaken = kBarrierPassed + 2,
    kRingEvents = kTaken + 2
  };
  static_assert(kRingStreams <= kEngineStreams && kRingEvents <= kEngineEvents);

  /// Whom this rank pushes to in a step, and who pushes to it.
  int after(std::uint32_t step) const { return (call_.rank + ranks_on(cut_, step)) % call_.ranks; }
  int before(std::uint32_t step) const {
    return (call_.rank + call_.ranks - ranks_on(cut_, step)) % call_.ranks;
  }
  Stream stream(RingStream role) const { return path_.streams[role]; }
  /// The first meeting, before step 0; each step ends with one, and so does the call.
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
  /// Whether this rank does so in a step. Where it does not, no event says that it has: in a graph
  /// that would be an edge which others imply (docs/design/copy_engines.md).
  bool pushes(std::uint32_t step) const;
  bool takes(std::uint32_t step) const;
  void push(std::uint32_t step);
  void barrier(std::uint32_t step);
  void take(std::uint32_t step);

  const RingCut& cut_;
  const CallArgs& call_;
};

}  // namespace plait::cuda
