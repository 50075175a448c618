// Step i pushes into slot i, once step i - 2 has been met: the piece to be passed on has come by
// then, and the next rank has said that it is through with that slot.
#include "exec/cuda/copies/engine_ring.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace plait::cuda {

RingCut cut_ring(std::vector<Range> parts, std::uint32_t hops, std::uint64_t most_bytes) {
  constexpr std::uint64_t kGrain = 4096;
  const std::uint64_t most = std::max(kGrain, most_bytes / kGrain * kGrain);
  std::uint64_t part_bytes = 0;
  for (const Range& part : parts) part_bytes = std::max(part_bytes, part.bytes);
  const std::uint64_t pairs = std::max<std::uint64_t>(1, (part_bytes + 2 * most - 1) / (2 * most));
  const std::uint64_t even = (part_bytes + 2 * pairs - 1) / (2 * pairs);
  const std::uint64_t piece = std::max<std::uint64_t>(1, (even + kGrain - 1) / kGrain) * kGrain;
  return {std::move(parts), std::min(most, piece), static_cast<std::uint32_t>(2 * pairs * hops),
          hops};
}

RingCut cut_chain(int ranks, int root, std::uint64_t bytes, std::uint64_t most_bytes,
                  std::uint64_t wished_bytes) {
  constexpr std::uint64_t kGrain = 4096;
  constexpr double kCopyBytes = 1.8e6;  // that go while a copy begins (bench/NOTES.md)
  const auto hops = static_cast<std::uint32_t>(ranks - 1);
  const auto waits = 2 * std::max(1u, hops - 1);
  const double best =
      std::sqrt(static_cast<double>(bytes) * kCopyBytes / static_cast<double>(waits));
  const std::uint64_t piece = wished_bytes != 0 ? wished_bytes : static_cast<std::uint64_t>(best);
  const std::uint64_t most = std::max(kGrain, std::min(piece, most_bytes) / kGrain * kGrain);
  const std::uint64_t pieces = std::max<std::uint64_t>(1, (bytes + most - 1) / most);
  return {std::vector<Range>(static_cast<std::size_t>(ranks), Range{0, bytes}), most,
          static_cast<std::uint32_t>(pieces + 2 * (hops - 1)), hops, root};
}

namespace {

/// A piece a step, which each rank passes on two steps after the one before.
RingPiece pushed_along(const RingCut& cut, int rank, std::uint32_t step) {
  const int hop = (rank - cut.root + cut.ranks()) % cut.ranks();
  const std::uint64_t bytes = cut.parts[static_cast<std::size_t>(rank)].bytes;
  const auto piece = static_cast<std::int64_t>(step) - 2 * hop;
  const std::uint64_t from =
      piece < 0 ? bytes : std::min(bytes, static_cast<std::uint64_t>(piece) * cut.piece_bytes);
  const bool is_last = hop == cut.ranks() - 1;
  return {cut.root, from, is_last ? 0 : std::min(cut.piece_bytes, bytes - from)};
}

}  // namespace

/// Two pieces of each part take all hops, then the next two.
RingPiece pushed_by(const RingCut& cut, int rank, std::uint32_t step) {
  if (cut.root >= 0) return pushed_along(cut, rank, step);
  const auto ranks = static_cast<std::uint32_t>(cut.ranks());
  const std::uint32_t hop = step / 2 % cut.hops;
  const std::uint32_t owner = (static_cast<std::uint32_t>(rank) + ranks - hop) % ranks;
  const std::uint64_t piece = step / (2 * cut.hops) * 2 + step % 2;
  const Range part = cut.parts[owner];
  const std::uint64_t from = std::min(part.bytes, piece * cut.piece_bytes);
  return {static_cast<int>(owner), part.offset + from,
          std::min(cut.piece_bytes, part.bytes - from)};
}

char* EngineRing::slot(int rank, std::uint32_t step) const {
  const std::vector<char*>& slots = path_.borrowed_bytes != 0 ? path_.borrowed : path_.slots;
  return slots[static_cast<std::size_t>(rank)] + step % kRingSlots * cut_.piece_bytes;
}

const char* EngineRing::own(const RingPiece& piece) const {
  const std::uint64_t mine = cut_.parts[static_cast<std::size_t>(call_.rank)].offset;
  return static_cast<const char*>(call_.input) + (piece.from - mine);
}

/// Tells both neighbours so, and waits until they say the same.
void EngineRing::meet_neighbours(std::uint32_t value) {
  EngineStep step = blank_step(&EngineFlags::ring_meetings);
  step.tells_first = 1;
  step.told = value;
  step.waits[0] = {flags_of(call_.rank).ring_met, 1u << before() | 1u << after(), value};
  for (const int rank : {before(), after()}) step.tell[rank] = &flags_of(rank).ring_met[call_.rank];
  launch(stream(kMeet), step);
  record(met(value), stream(kMeet));
}

void EngineRing::push(std::uint32_t step) {
  follow(stream(kPush), met(kBegun + (step < 2 ? 0 : step - 1)));
  const RingPiece piece = pushed_by(cut_, call_.rank, step);
  const bool is_own = piece.owner == call_.rank;
  copy(stream(kPush), slot(after(), step), is_own ? own(piece) : slot(call_.rank, step - 2),
       piece.bytes);
  record(pushed(step), stream(kPush));
}

/// What this rank pushed in this step has come, and it is through with what came two steps before.
void EngineRing::meet(std::uint32_t step) {
  follow(stream(kMeet), pushed(step));
  if (step >= 2) follow(stream(kMeet), taken(step - 2));
  meet_neighbours(kBegun + step + 1);
}

/// And what the caller wants a copy of, as it is passed on.
void EngineRing::take(std::uint32_t step) {
  follow(stream(kTake), met(kBegun + step + 1));
  const RingPiece came = pushed_by(cut_, before(), step);
  move(stream(kTake), in_output(came), slot(call_.rank, step), came.bytes);
  const RingPiece mine = pushed_by(cut_, call_.rank, step);
  if (cut_.gets_own() && mine.owner == call_.rank)
    move(stream(kTake), in_output(mine), own(mine), mine.bytes);
  record(taken(step), stream(kTake));
}

void EngineRing::enqueue(Event fork, Stream stream_of_call) {
  record(fork, stream_of_call);
  for (const Role role : {kPush, kMeet, kTake}) follow(stream(role), fork);
  // All ranks, as any of them may have pulled out of the next one's slots in a tiled call.
  launch(stream(kMeet), meeting(&EngineFlags::ring_meetings, &EngineFlags::ring_met, kBegun));
  record(met(kBegun), stream(kMeet));
  // Pushes first, meetings next: a graph then lays each kind in one branch.
  for (std::uint32_t i = 0; i < cut_.steps + 2; ++i) {
    if (i < cut_.steps) push(i);
    if (i >= 1 && i - 1 < cut_.steps) meet(i - 1);
    if (i >= 2) take(i - 2);
  }
  // All are through: other calls push into the inboxes of more ranks.
  follow(stream_of_call, taken(cut_.steps - 1));
  const std::uint32_t meetings = kBegun + cut_.steps + 1;
  launch_end(stream_of_call, meeting(&EngineFlags::ring_meetings, &EngineFlags::ring_met, meetings),
             {{&EngineFlags::ring_meetings, meetings}});
}

}  // namespace plait::cuda
