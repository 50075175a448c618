// The first part of a large all_reduce through host memory, beside whatever kernel or engines do
// the rest over the links: every rank's copy engine brings what the others own of a chunk down into
// its ring, the owner's engine brings its share of all rings up and a small kernel reduces it in
// rank order, the result goes down and up again. So PCIe carries a chunk once down and, of n ranks,
// 2 (n - 1) / n times up. Nothing is staged: what comes up lies where results will, in the output.
// Source: the host's path of multi-path copies (Micro 2021), as a reduce-scatter and an all-gather.
#pragma once
#include "exec/cuda/agreed_share.hpp"
#include "exec/cuda/engine_call.hpp"
#include "exec/cuda/exchange_cut.hpp"

namespace plait::cuda {

/// Chunks under way in a rank's ring.
inline constexpr std::uint32_t kPathSlots = 3;

/// Whole chunks from the message's first byte on, each of one share a rank.
struct HostPathCut {
  std::uint64_t chunk_bytes = 0;
  std::uint32_t chunks = 0;
  std::uint64_t bytes() const { return chunks * chunk_bytes; }
};
/// permille: of the message, cut down to whole chunks; something is always left.
HostPathCut cut_host_path(std::uint64_t bytes, std::uint64_t ring_bytes, std::uint32_t permille,
                          int ranks);

/// One call's part. All ranks enqueue the same steps in the same order, and a step that waits tells
/// first what the others' same step waits for: so the first step that has not ended anywhere never
/// waits for ever, whatever streams share a hardware queue.
class HostPath : private EngineCall {
 public:
  /// `call`: the whole call. blocks: of reductions. times: to be recorded; null = not.
  HostPath(EngineQueue& queue, const EnginePath& path, const HostPathCut& cut, const CallArgs& call,
           DataType type, unsigned blocks, const PathTimes* times)
      : EngineCall(queue, path, call, type),
        cut_(cut),
        call_(call),
        blocks_(blocks),
        times_(times) {}

  /// The part begins after what `stream` holds now; then the rest of the call goes on it.
  void fork(Stream stream);
  void enqueue();
  /// What comes later on `stream` comes after the part.
  void join(Stream stream);

 private:
  enum Role : std::size_t { kDown, kUp, kMeet };  // a stream each; reductions by that of kMeet
  enum Moment : std::size_t { kForked, kIsDown, kPartsMet, kResultsMet, kIsUp, kReduced, kMoments };
  static_assert(kMoments <= kHostEvents);

  Stream stream(Role role) const { return path_.host_streams[role]; }
  Event event(Moment moment) const { return path_.host_events[moment]; }
  std::uint64_t share_bytes() const {
    return cut_.chunk_bytes / static_cast<unsigned>(call_.ranks);
  }
  /// Where a rank's share of a chunk lies in buffers, and in a ring.
  std::uint64_t share_at(std::uint32_t chunk, int owner) const {
    return chunk * cut_.chunk_bytes + static_cast<unsigned>(owner) * share_bytes();
  }
  char* ring(int rank, std::uint32_t chunk, int owner) const;
  int peer(int k) const { return (call_.rank + k) % call_.ranks; }
  EngineStep meeting(Word word, std::uint32_t value) const;
  void hand_over(Moment moment, Role from, Role to);
  void bring_parts_down(std::uint32_t chunk);
  void bring_parts_up(std::uint32_t chunk);
  void reduce_share(std::uint32_t chunk);
  void bring_result_down(std::uint32_t chunk);
  void bring_results_up(std::uint32_t chunk);

  const HostPathCut& cut_;
  const CallArgs& call_;
  const unsigned blocks_;
  const PathTimes* const times_;
};

}  // namespace plait::cuda
