// Brings the results of the first part of a large all_reduce through host memory, while a kernel or
// copy engines do the rest over the links. Each rank's copy engine brings results down into the
// rank's ring, and the engines of all other ranks bring them up, straight into the outputs. Only
// results take this path: with n ranks, 1/n of the traffic of host memory goes down and the rest
// comes up. That relieves the links more than a reduce-scatter through host memory would, and no SM
// works. Source: the host's path of multi-path copies (Micro 2021); E-0124, E-0125.
#pragma once
#include "gpu/consensus/agreed_share.hpp"
#include "gpu/copy/engine_call.hpp"
#include "gpu/copy/exchange_cut.hpp"

namespace plait::cuda {

/// Most segments of a message.
inline constexpr std::size_t kGatherSegments = 2;

/// A segment of a message: a part per rank, each brought in chunks.
struct GatherSegment {
  std::uint64_t from = 0;  ///< offset in the message
  std::uint64_t part_bytes = 0;
  std::uint32_t first_chunk = 0;
};

/// The first bytes of a message. In a long part a small first segment is reduced first, so that
/// host memory is not idle while the rest is reduced.
struct GatherCut {
  std::vector<GatherSegment> segments;  ///< none = nothing goes through host memory
  std::uint64_t bytes = 0;
  std::uint64_t chunk_bytes = 0;  ///< most bytes of a part's chunk
  std::uint32_t chunks = 0;
};
/// permille: of the message, rounded down to whole pages per rank; some bytes are always left for
/// the links.
GatherCut cut_gather(std::uint64_t bytes, std::uint64_t ring_bytes, std::uint32_t permille,
                     int ranks);

/// The gather of a call. All ranks enqueue the same steps in the same order, and a step that waits
/// signals first what the same step of other ranks waits for. The earliest unfinished step
/// therefore never waits for ever, whatever streams share a hardware queue.
class HostGather : private EngineCall {
 public:
  /// `call`: the whole call. marks: times to record; null = none.
  HostGather(EngineQueue& queue, const EnginePath& path, const GatherCut& cut, const CallArgs& call,
             const PathMarks* marks)
      : EngineCall(queue, path, call, DataType::uint8), cut_(cut), call_(call), marks_(marks) {}

  /// Marks the point of `stream` at which this rank's results of a segment are in place and all
  /// ranks are in the call. Called for each segment before enqueue().
  void fork(Stream stream, std::size_t segment);
  void enqueue();
  /// Makes later work on `stream` wait for the whole gather.
  void join(Stream stream);

 private:
  enum GatherStream : std::size_t { kDown, kBarrier, kUp };  // one stream each
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
  /// Offset and length of a chunk in a rank's part.
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
