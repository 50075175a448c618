// A chunk goes down while those before come up: the longer way, whose engine waits at the ends
// only.
#include "exec/cuda/host_gather.hpp"

#include <algorithm>

namespace plait::cuda {
namespace {

constexpr std::uint64_t kGrain = 4096;
constexpr std::uint64_t kLeastChunks = 4;  // of a part; else its ways are taken one after the other

}  // namespace

GatherCut cut_gather(std::uint64_t bytes, std::uint64_t ring_bytes, std::uint32_t permille,
                     int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  const std::uint64_t share = bytes / 1000 * std::min<std::uint32_t>(permille, 1000);
  const std::uint64_t part = std::min(share, bytes - 1) / n / kGrain * kGrain;
  const std::uint64_t slot = ring_bytes / kChunkSlots / kGrain * kGrain;
  if (part == 0 || slot == 0) return {};
  const std::uint64_t chunk = (part / kLeastChunks + kGrain - 1) / kGrain * kGrain;
  return {part, std::clamp(chunk, kGrain, slot), ranks};
}

std::uint32_t HostGather::chunks() const {
  return static_cast<std::uint32_t>((cut_.part_bytes + cut_.chunk_bytes - 1) / cut_.chunk_bytes);
}

std::uint64_t HostGather::length_of(std::uint32_t chunk) const {
  return std::min(cut_.chunk_bytes, cut_.part_bytes - chunk * cut_.chunk_bytes);
}

char* HostGather::result(int rank, std::uint32_t chunk) const {
  return static_cast<char*>(call_.output) + static_cast<unsigned>(rank) * cut_.part_bytes +
         chunk * cut_.chunk_bytes;
}

char* HostGather::ring(int rank, std::uint32_t chunk) const {
  return path_.rings[static_cast<std::size_t>(rank)] + chunk % kChunkSlots * cut_.chunk_bytes;
}

/// Tells all others that this rank is there, and waits until they say the same.
EngineStep HostGather::meeting(Word word, std::uint32_t value) const {
  EngineStep step = blank_step(&EngineFlags::chunks);
  step.tells_first = 1;
  step.told = value;
  step.waits[0] = {flags_of(call_.rank).*word, 0, value};
  for (int k = 1; k < call_.ranks; ++k) {
    step.tell[peer(k)] = &(flags_of(peer(k)).*word)[call_.rank];
    step.waits[0].ranks |= 1u << peer(k);
  }
  return step;
}

/// Into a slot that all have said, when they met for the chunk before, that they have emptied.
void HostGather::bring_down(std::uint32_t chunk) {
  if (chunk >= kChunkSlots) follow(stream(kDown), event(kMet));
  copy(stream(kDown), ring(call_.rank, chunk), result(call_.rank, chunk), length_of(chunk));
  record(event(kIsDown), stream(kDown));
}

/// This chunk is down, and the one that the next but one chunk's slot held has come up.
void HostGather::meet(std::uint32_t chunk) {
  constexpr std::uint32_t kBehind = kChunkSlots - 1;
  follow(stream(kMeet), event(kIsDown));
  if (chunk >= kBehind) follow(stream(kMeet), is_up(chunk - kBehind));
  launch(stream(kMeet), meeting(&EngineFlags::host_arrived, chunk + 1));
  if (chunk == 0 && times_ != nullptr) record(times_->begin, stream(kMeet));
  record(event(kMet), stream(kMeet));
}

void HostGather::bring_up(std::uint32_t chunk) {
  follow(stream(kUp), event(kMet));
  for (int k = 1; k < call_.ranks; ++k)
    copy(stream(kUp), result(peer(k), chunk), ring(peer(k), chunk), length_of(chunk));
  record(is_up(chunk), stream(kUp));
}

void HostGather::fork(Stream stream_of_call) { record(event(kBegun), stream_of_call); }

void HostGather::enqueue() {
  follow(stream(kDown), event(kBegun));
  for (std::uint32_t chunk = 0; chunk < chunks(); ++chunk) {
    bring_down(chunk);
    meet(chunk);
    bring_up(chunk);
  }
}

/// The next call may use the rings: all have emptied them.
void HostGather::join(Stream stream_of_call) {
  if (times_ != nullptr) {
    record(times_->link, stream_of_call);
    record(times_->host, stream(kUp));
  }
  follow(stream_of_call, is_up(chunks() - 1));
  launch_end(stream_of_call, meeting(&EngineFlags::host_taken, chunks()),
             {{&EngineFlags::chunks, chunks()}});
}

}  // namespace plait::cuda
