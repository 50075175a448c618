// The results of a large all_reduce's first part through host memory, beside whatever kernel or
// engines do the rest over the links: each rank's copy engine brings its results down into its
// ring, and all others' engines bring them up, straight into their outputs. Results and no parts:
// of what host memory carries for n ranks, a 1/n-th goes down and the rest comes up, so that it
// saves the links more than a reduce-scatter there would, and no SM works. Source: the host's path
// of multi-path copies (Micro 2021); E-0124, E-0125.
#pragma once
#include "exec/cuda/copies/engine_call.hpp"
#include "exec/cuda/copies/exchange_cut.hpp"
#include "exec/cuda/share/agreed_share.hpp"

namespace plait::cuda {

/// Of a message, at most.
inline constexpr std::size_t kGatherSegments = 2;

/// A segment of a message, one part a rank, each brought in chunks.
struct GatherSegment {
  std::uint64_t from = 0;  ///< in the message
  std::uint64_t part_bytes = 0;
  std::uint32_t first_chunk = 0;
};

/// The first bytes of a message. Of many, a few are reduced first, so that host memory is not idle
/// while the others are.
struct GatherCut {
  std::vector<GatherSegment> segments;  ///< none = nothing goes through host memory
  std::uint64_t bytes = 0;
  std::uint64_t chunk_bytes = 0;  ///< of a part, at most
  std::uint32_t chunks = 0;
};
/// permille: of the message, cut down to whole pages a rank; something is always left.
GatherCut cut_gather(std::uint64_t bytes, std::uint64_t ring_bytes, std::uint32_t permille,
                     int ranks);

/// One call's. All ranks enqueue the same steps in the same order, and a step that waits tells
/// first what the others' same step waits for: so the first step that has not ended anywhere never
/// waits for ever, whatever streams share a hardware queue.
class HostGather : private EngineCall {
 public:
  /// `call`: the whole call. times: to be recorded; null = not.
  HostGather(EngineQueue& queue, const EnginePath& path, const GatherCut& cut, const CallArgs& call,
             const PathMarks* marks)
      : EngineCall(queue, path, call, DataType::uint8), cut_(cut), call_(call), marks_(marks) {}

  /// What `stream` holds now puts this rank's part of a segment's results into its place, once all
  /// ranks are in the call; called for each segment before enqueue().
  void fork(Stream stream, std::size_t segment);
  void enqueue();
  /// What comes later on `stream` comes after all of it.
  void join(Stream stream);

 private:
  enum GatherStream : std::size_t { kDown, kBarrier, kUp };  // a stream each
  enum GatherEvent : std::size_t {
    kIsDown,
    kBarrierPassed,
    kBegun,
    kIsUp = kBegun + kGatherSegments
  };
  static_assert(kUp < kHostStreams && kIsUp + kChunkSlots <= kHostEvents);

  Stream stream(GatherStream role) const { return path_.host_streams[role]; }
  Event event(GatherEvent moment) const { return path_.host_events[moment]; }
  Event is_up(std::uint32_t chunk) const { return path_.host_events[kIsUp + chunk % kChunkSlots]; }
  int peer(int k) const { return (call_.rank + k) % call_.ranks; }
  Event begun(std::size_t segment) const { return path_.host_events[kBegun + segment]; }
  /// Where a chunk lies in its rank's part, and how long it is.
  struct ChunkRange {
    std::uint64_t from, bytes;
  };
  ChunkRange range(const GatherSegment& segment, std::uint32_t chunk) const;
  char* result(const GatherSegment& segment, int rank, std::uint32_t chunk) const;
  char* ring(int rank, std::uint32_t chunk) const;
  void bring_down(const GatherSegment& segment, std::uint32_t chunk);
  void barrier(std::uint32_t chunk);
  void bring_up(const GatherSegment& segment, std::uint32_t chunk);

  const GatherCut& cut_;
  const CallArgs& call_;
  const PathMarks* const marks_;
};

}  // namespace plait::cuda
