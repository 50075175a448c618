// A chunk's parts go down while those of the one before come up, are reduced, and its results go
// down and up: what comes up is the longer way, and its engine never waits but at the ends.
#include "exec/cuda/host_path.hpp"

#include <algorithm>

namespace plait::cuda {
namespace {

constexpr std::uint64_t kLeastChunks = 4;  // else its ways are taken one after the other

}  // namespace

HostPathCut cut_host_path(std::uint64_t bytes, std::uint64_t ring_bytes, std::uint32_t permille,
                          int ranks) {
  const std::uint64_t grain = 4096 * static_cast<std::uint64_t>(ranks);
  const std::uint64_t share = bytes / 1000 * std::min<std::uint32_t>(permille, 1000);
  const std::uint64_t most = std::min(share / kLeastChunks, ring_bytes / kPathSlots);
  const std::uint64_t chunk = most / grain * grain;
  if (chunk == 0) return {};
  return {chunk, static_cast<std::uint32_t>(std::min(share, bytes - 1) / chunk)};
}

/// Shares of others are parts that this rank brings down; its own is a result.
char* HostPath::ring(int rank, std::uint32_t chunk, int owner) const {
  return path_.rings[static_cast<std::size_t>(rank)] + chunk % kPathSlots * cut_.chunk_bytes +
         static_cast<unsigned>(owner) * share_bytes();
}

/// Tells all others that this rank is there, and waits until they say the same.
EngineStep HostPath::meeting(Word word, std::uint32_t value) const {
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

void HostPath::hand_over(Moment moment, Role from, Role to) {
  record(event(moment), stream(from));
  follow(stream(to), event(moment));
}

/// After the result of two chunks before, which was reduced after all had brought up the parts of
/// the chunk before that: so the slot is free.
void HostPath::bring_parts_down(std::uint32_t chunk) {
  const char* input = static_cast<const char*>(call_.input);
  const int before = call_.rank, behind = call_.ranks - 1 - call_.rank;
  copy(stream(kDown), ring(call_.rank, chunk, 0), input + share_at(chunk, 0),
       static_cast<unsigned>(before) * share_bytes());
  copy(stream(kDown), ring(call_.rank, chunk, call_.rank + 1),
       input + share_at(chunk, call_.rank + 1), static_cast<unsigned>(behind) * share_bytes());
  hand_over(kIsDown, kDown, kMeet);
}

/// Each to where the sender's own result will come: this rank's input was brought down from there.
void HostPath::bring_parts_up(std::uint32_t chunk) {
  launch(stream(kMeet), meeting(&EngineFlags::host_arrived, chunk + 1));
  if (chunk == 0 && times_ != nullptr) record(times_->begin, stream(kMeet));
  hand_over(kPartsMet, kMeet, kUp);
  for (int k = 1; k < call_.ranks; ++k)
    copy(stream(kUp), static_cast<char*>(call_.output) + share_at(chunk, peer(k)),
         ring(peer(k), chunk, call_.rank), share_bytes());
}

void HostPath::reduce_share(std::uint32_t chunk) {
  hand_over(kIsUp, kUp, kMeet);
  PieceArgs args{};
  args.sources = call_.ranks;
  for (int rank = 0; rank < call_.ranks; ++rank)
    args.source[rank] = static_cast<const char*>(rank == call_.rank ? call_.input : call_.output) +
                        share_at(chunk, rank);
  args.dst = static_cast<char*>(call_.output) + share_at(chunk, call_.rank);
  args.bytes = share_bytes();
  reduce(stream(kMeet), args, blocks_);
  record(event(kReduced), stream(kMeet));
}

/// All have brought up the result of three chunks before: they did before they met for this one's
/// parts.
void HostPath::bring_result_down(std::uint32_t chunk) {
  follow(stream(kDown), event(kReduced));
  copy(stream(kDown), ring(call_.rank, chunk, call_.rank),
       static_cast<const char*>(call_.output) + share_at(chunk, call_.rank), share_bytes());
  hand_over(kIsDown, kDown, kMeet);
}

void HostPath::bring_results_up(std::uint32_t chunk) {
  launch(stream(kMeet), meeting(&EngineFlags::host_reduced, chunk + 1));
  hand_over(kResultsMet, kMeet, kUp);
  for (int k = 1; k < call_.ranks; ++k)
    copy(stream(kUp), static_cast<char*>(call_.output) + share_at(chunk, peer(k)),
         ring(peer(k), chunk, peer(k)), share_bytes());
}

void HostPath::fork(Stream stream_of_call) { record(event(kForked), stream_of_call); }

/// What waits for a chunk's parts comes before what its results wait for, so that neither keeps the
/// other one's engine waiting.
void HostPath::enqueue() {
  for (const Role role : {kDown, kUp, kMeet}) follow(stream(role), event(kForked));
  for (std::uint32_t step = 0; step <= cut_.chunks; ++step) {
    if (step < cut_.chunks) {
      bring_parts_down(step);
      bring_parts_up(step);
    }
    if (step >= 1) {
      bring_result_down(step - 1);
      bring_results_up(step - 1);
    }
    if (step < cut_.chunks) reduce_share(step);
  }
}

/// The next call may use the rings: all have taken the last results.
void HostPath::join(Stream stream_of_call) {
  if (times_ != nullptr) {
    record(times_->link, stream_of_call);
    record(times_->host, stream(kUp));
  }
  record(event(kIsUp), stream(kUp));
  follow(stream_of_call, event(kIsUp));
  launch_end(stream_of_call, meeting(&EngineFlags::host_taken, cut_.chunks),
             {{&EngineFlags::chunks, cut_.chunks}});
}

}  // namespace plait::cuda
