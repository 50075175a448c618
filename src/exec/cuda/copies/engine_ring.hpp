// An all_gather round a ring of ranks by copy engines, a broadcast along it, or sends to the next
// rank: each pushes to that one only, so no two senders meet at a port and nobody has to tell whose
// turn it is, and every rank takes out of its inbox what the one before has pushed there and passes
// it on from where it lies. Small kernels meet the neighbours, one takes out what has come. Source:
// the ring all-gather, the pipelined broadcast; docs/design/0014 has why engines, and why a ring.
#pragma once
#include <cstdint>
#include <vector>

#include "exec/cuda/copies/engine_call.hpp"
#include "plait/builder.hpp"

namespace plait::cuda {

/// Of an inbox: two pieces come while the two before them are passed on.
inline constexpr std::uint32_t kRingSlots = 4;
/// Where nobody asks for another size: larger pieces gain little, and the last is taken out late.
inline constexpr std::uint64_t kRingPieceBytes = 32ull << 20;

/// How parts are cut, one of each rank; the same on all ranks. In a step each rank pushes a piece,
/// which is less or nothing of a part that is smaller than others.
struct RingCut {
  std::vector<Range> parts;  ///< by rank, of the output; of all but an all_gather each is the whole
  std::uint64_t piece_bytes = 0;
  std::uint32_t steps = 0;
  std::uint32_t hops = 0;  ///< so many ranks behind its own get a part
  int root = -1;           ///< of a broadcast; -1 = all ranks begin with a part
  int ranks() const { return static_cast<int>(parts.size()); }
  /// Whether a rank's output has its own part too: parts that all others get stay with theirs.
  bool gets_own() const { return hops + 1 == parts.size(); }
};
/// most_bytes: of a piece, not 0.
RingCut cut_ring(std::vector<Range> parts, std::uint32_t hops, std::uint64_t most_bytes);
/// Of a broadcast. wished_bytes: of a piece; 0 = such that the ends of the chain wait least.
RingCut cut_chain(int ranks, int root, std::uint64_t bytes, std::uint64_t most_bytes,
                  std::uint64_t wished_bytes);

/// Whether copy engines gather it so: two ranks exchange (exchange_cut.hpp).
inline bool is_engine_ring(const Request& request) {
  return request.collective == Collective::all_gather && request.ranks > 2;
}

struct RingPiece {
  int owner = 0;            ///< who began with it
  std::uint64_t from = 0;   ///< of the output
  std::uint64_t bytes = 0;  ///< 0 = nothing
};
/// What a rank pushes in a step: of its own part, or what came two steps before; of a broadcast the
/// rank before its root pushes nothing.
RingPiece pushed_by(const RingCut& cut, int rank, std::uint32_t step);

/// One call. A step's meeting tells first what the neighbours' same step waits for, and steps come
/// in one order on all ranks: so nobody waits for ever, were there only one hardware queue.
class EngineRing : private EngineCall {
 public:
  /// call.input: this rank's part. call.output: where all parts go that it gets, as the cut says.
  EngineRing(EngineQueue& queue, const EnginePath& path, const RingCut& cut, const CallArgs& call)
      : EngineCall(queue, path, call, DataType::uint8), cut_(cut), call_(call) {}

  /// After what `stream` holds; what comes later on it comes after all of the call.
  void enqueue(Event fork, Stream stream);

 private:
  enum Role : std::size_t { kPush, kMeet, kTake, kRoles };  // a stream each
  enum Moment : std::size_t {
    kPushed,
    kMet = kPushed + 2,
    kTaken = kMet + 2,
    kMoments = kTaken + 2
  };
  static_assert(kRoles <= kEngineStreams && kMoments <= kEngineEvents);

  int before() const { return (call_.rank + call_.ranks - 1) % call_.ranks; }
  int after() const { return (call_.rank + 1) % call_.ranks; }
  Stream stream(Role role) const { return path_.streams[role]; }
  /// The first meeting, before step 0; each step ends with one, and so does the call.
  static constexpr std::uint32_t kBegun = 1;
  Event met(std::uint32_t meeting) const { return path_.events[kMet + meeting % 2]; }
  Event pushed(std::uint32_t step) const { return path_.events[kPushed + step % 2]; }
  Event taken(std::uint32_t step) const { return path_.events[kTaken + step % 2]; }
  char* slot(int rank, std::uint32_t step) const;
  const char* own(const RingPiece& piece) const;
  char* in_output(const RingPiece& piece) const {
    return static_cast<char*>(call_.output) + piece.from;
  }
  void meet_neighbours(std::uint32_t value);
  void push(std::uint32_t step);
  void meet(std::uint32_t step);
  void take(std::uint32_t step);

  const RingCut& cut_;
  const CallArgs& call_;
};

}  // namespace plait::cuda
