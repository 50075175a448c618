// Enqueues the gather. Bringing results up takes longest; its engine waits for the first chunk
// only, since later chunks go down meanwhile.
#include "gpu/host_path/host_gather.hpp"

#include <algorithm>

namespace plait::cuda {
namespace {

constexpr std::uint64_t kGrain = 4096;
constexpr std::uint64_t kLeastChunks = 4;  // chunks of a part; with fewer, down and up run in turn
constexpr std::uint64_t kMostChunk = 2ull << 20;  // all rings then stay in the host's cache
constexpr std::uint64_t kFirstOf = 8;             // fraction of a long part in the first segment

std::uint32_t chunks_of(std::uint64_t part_bytes, std::uint64_t chunk_bytes) {
  return static_cast<std::uint32_t>((part_bytes + chunk_bytes - 1) / chunk_bytes);
}

}  // namespace

GatherCut cut_gather(std::uint64_t bytes, std::uint64_t ring_bytes, std::uint32_t permille,
                     int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  const std::uint64_t share = bytes / 1000 * std::min<std::uint32_t>(permille, 1000);
  const std::uint64_t part = std::min(share, bytes - 1) / n / kGrain * kGrain;
  const std::uint64_t slot = std::min(kMostChunk, ring_bytes / kChunkSlots / kGrain * kGrain);
  GatherCut cut;
  if (part == 0 || slot == 0) return cut;
  const std::uint64_t chunk = (part / kLeastChunks + kGrain - 1) / kGrain * kGrain;
  cut.chunk_bytes = std::clamp(chunk, kGrain, slot);
  const std::uint64_t few = part / kFirstOf / cut.chunk_bytes * cut.chunk_bytes;
  const std::uint64_t first = few == 0 ? part : few;
  for (const std::uint64_t one : {first, part - first}) {
    if (one == 0) continue;
    cut.segments.push_back({cut.bytes, one, cut.chunks});
    cut.bytes += n * one;
    cut.chunks += chunks_of(one, cut.chunk_bytes);
  }
  return cut;
}

HostGather::ChunkRange HostGather::range(const GatherSegment& segment, std::uint32_t chunk) const {
  const std::uint64_t from = (chunk - segment.first_chunk) * cut_.chunk_bytes;
  return {from, std::min(cut_.chunk_bytes, segment.part_bytes - from)};
}

char* HostGather::result(const GatherSegment& segment, int rank, std::uint32_t chunk) const {
  return static_cast<char*>(call_.output) + segment.from +
         static_cast<unsigned>(rank) * segment.part_bytes + range(segment, chunk).from;
}

char* HostGather::ring(int rank, std::uint32_t chunk) const {
  return path_.rings[static_cast<std::size_t>(rank)] + chunk % kChunkSlots * cut_.chunk_bytes;
}

/// Brings a chunk down into a slot that all ranks have emptied, as signalled at the barrier of the
/// chunk before.
void HostGather::bring_down(const GatherSegment& segment, std::uint32_t chunk) {
  if (chunk >= kChunkSlots) follow(stream(kDown), event(kBarrierPassed));
  copy(stream(kDown), ring(call_.rank, chunk), result(segment, call_.rank, chunk),
       range(segment, chunk).bytes);
  record(event(kIsDown), stream(kDown));
}

/// Barrier of a chunk: the chunk is down, and the chunk that held the next chunk's slot has come
/// up.
void HostGather::barrier(std::uint32_t chunk) {
  constexpr std::uint32_t kBehind = kChunkSlots - 1;
  follow(stream(kBarrier), event(kIsDown));
  if (chunk >= kBehind) follow(stream(kBarrier), is_up(chunk - kBehind));
  launch(stream(kBarrier),
         barrier_step(&EngineFlags::chunks, &EngineFlags::host_arrived, chunk + 1));
  record(event(kBarrierPassed), stream(kBarrier));
}

void HostGather::bring_up(const GatherSegment& segment, std::uint32_t chunk) {
  follow(stream(kUp), event(kBarrierPassed));
  for (int k = 1; k < call_.ranks; ++k)
    copy(stream(kUp), result(segment, peer(k), chunk), ring(peer(k), chunk),
         range(segment, chunk).bytes);
  record(is_up(chunk), stream(kUp));
}

void HostGather::fork(Stream stream_of_call, std::size_t segment) {
  record(begun(segment), stream_of_call);
  if (segment == 0 && marks_ != nullptr) record(marks_->begin, stream_of_call);
}

void HostGather::enqueue() {
  for (std::size_t i = 0; i < cut_.segments.size(); ++i) {
    const GatherSegment& segment = cut_.segments[i];
    follow(stream(kDown), begun(i));
    const std::uint32_t end = segment.first_chunk + chunks_of(segment.part_bytes, cut_.chunk_bytes);
    for (std::uint32_t chunk = segment.first_chunk; chunk < end; ++chunk) {
      bring_down(segment, chunk);
      barrier(chunk);
      bring_up(segment, chunk);
    }
  }
}

/// Ends the part: all ranks have emptied the rings, so the next call may use them.
void HostGather::join(Stream stream_of_call) {
  if (marks_ != nullptr) {
    record(marks_->link, stream_of_call);
    record(marks_->host, stream(kUp));
  }
  follow(stream_of_call, is_up(cut_.chunks - 1));
  launch_end(stream_of_call,
             barrier_step(&EngineFlags::chunks, &EngineFlags::host_taken, cut_.chunks),
             {{&EngineFlags::chunks, cut_.chunks}});
}

}  // namespace plait::cuda
