// Pushes, handles and pulls of one call: which bytes, after which words, on which stream.
#include "exec/cuda/rotation.hpp"

#include <algorithm>

#include "exec/cuda/tile_cut.hpp"

namespace plait::cuda {

RotationCut cut_rotation(std::uint64_t part_bytes, std::uint64_t most_bytes) {
  constexpr std::uint64_t kGrain = 4096, kSlots = kRotationSlots;
  const std::uint64_t rounds = (part_bytes + kSlots * most_bytes - 1) / (kSlots * most_bytes);
  const std::uint64_t pieces = std::max<std::uint64_t>(1, rounds) * kSlots;
  const std::uint64_t piece = ((part_bytes + pieces - 1) / pieces + kGrain - 1) / kGrain * kGrain;
  return {std::min(most_bytes, std::max(kGrain, piece)), static_cast<std::uint32_t>(pieces)};
}

std::uint32_t Rotation::owners_of_mine() const {
  std::uint32_t owners = 0;
  for (int owner = 0; owner < shape_.ranks; ++owner)
    if (in(senders_to(shape_, owner), shape_.rank)) owners |= 1u << owner;
  return owners;
}

std::uint32_t Rotation::owners_i_read() const {
  return in(shape_.readers, shape_.rank) ? others(shape_.owners) : 0;
}

std::uint32_t Rotation::readers_of_mine() const {
  return in(shape_.owners, shape_.rank) ? others(shape_.readers) : 0;
}

Rotation::Range Rotation::range(int owner, std::uint32_t piece) const {
  const std::uint64_t whole = part_bytes(shape_, owner);
  const std::uint64_t from = std::min(whole, piece * cut_.piece_bytes);
  return {from, std::min(whole, (piece + 1) * cut_.piece_bytes) - from};
}

char* Rotation::inbox(int owner, int sender, std::uint32_t piece) const {
  const int place = (sender - owner + shape_.ranks) % shape_.ranks - 1;
  return path_.slots[static_cast<std::size_t>(owner)] +
         (static_cast<std::uint64_t>(place) * kRotationSlots + piece % kRotationSlots) *
             path_.slot_bytes;
}

char* Rotation::outbox(int owner, std::uint32_t piece) const {
  const auto before = static_cast<std::uint64_t>(shape_.ranks - 1);
  return path_.slots[static_cast<std::size_t>(owner)] +
         (before * kRotationSlots + piece % kRotationSlots) * path_.slot_bytes;
}

/// Until `ranks` have told of the piece that is `before` pieces earlier, and so uses the same slot.
EngineWait Rotation::words(Words words, std::uint32_t ranks, std::uint32_t piece,
                           std::uint32_t before) const {
  return {(flags_of(shape_.rank).*words)[piece % kRotationSlots], ranks, piece + 1 - before};
}

/// What follows on the stream comes after the events and words.
void Rotation::begin(Stream stream, const std::vector<EngineWait>& waits,
                     const std::vector<Event>& after) {
  for (const Event event : after) follow(stream, event);
  EngineStep step = blank_step(&EngineFlags::pieces);
  std::copy(waits.begin(), waits.end(), step.waits);
  if (step.waits[0].ranks == 0 && step.waits[1].ranks == 0) return;
  launch(stream, step);
}

/// Tells all peers, whether or not they wait in this call: so words count the pieces of all calls.
void Rotation::finish(Role role, std::uint32_t piece, Words words) {
  EngineStep step = blank_step(&EngineFlags::pieces);
  for (int k = 1; k < shape_.ranks; ++k)
    step.tell[peer(k)] = &(flags_of(peer(k)).*words)[piece % kRotationSlots][shape_.rank];
  step.told = piece + 1;
  launch(stream(role, piece), step);
  record(event(role, piece), stream(role, piece));
}

void Rotation::push(std::uint32_t piece) {
  std::vector<Event> after;
  if (piece >= kRotationSlots) after.push_back(event(kHandle, piece));
  begin(stream(kPush, piece),
        {words(&EngineFlags::handled, owners_of_mine(), piece, kRotationSlots)}, after);
  const char* input = static_cast<const char*>(shape_.input);
  for (int k = 1; k < shape_.ranks; ++k) {
    const int owner = peer(k);
    if (!in(senders_to(shape_, owner), shape_.rank)) continue;
    const Range part = range(owner, piece);
    const std::uint64_t at =
        static_cast<std::uint64_t>(index_of(shape_, owner)) * shape_.part_stride;
    copy(stream(kPush, piece), inbox(owner, shape_.rank, piece), input + at + part.from,
         part.bytes);
  }
  finish(kPush, piece, &EngineFlags::arrived);
}

void Rotation::reduce_piece(std::uint32_t piece, std::uint32_t senders) {
  PieceArgs args{};
  const Range part = range(shape_.rank, piece);
  if (part.bytes == 0) return;
  const auto index = static_cast<std::uint64_t>(index_of(shape_, shape_.rank));
  // The own input takes part in reductions, and is all there is where nobody sends (all_gather).
  const bool with_own = shape_.handling == kReduceParts || senders == 0;
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    if (rank == shape_.rank && with_own)
      args.source[args.sources++] =
          static_cast<const char*>(shape_.input) + index * shape_.part_stride + part.from;
    else if (in(senders, rank))
      args.source[args.sources++] = inbox(shape_.rank, rank, piece);
  }
  char* out = static_cast<char*>(shape_.output) + index * shape_.result_stride + part.from;
  int outs = 0;
  if (in(shape_.keepers, shape_.rank) && !(args.sources == 1 && args.source[0] == out))
    args.dst[outs++] = out;
  if (readers_of_mine() != 0) args.dst[outs++] = outbox(shape_.rank, piece);
  args.bytes = part.bytes;
  reduce(stream(kHandle, piece), args, path_.blocks);
}

void Rotation::handle(std::uint32_t piece) {
  const std::uint32_t senders = senders_to(shape_, shape_.rank);
  std::vector<Event> after{event(kPush, piece)};
  if (piece >= kRotationSlots) after.push_back(event(kPull, piece));
  begin(stream(kHandle, piece),
        {words(&EngineFlags::arrived, senders, piece, 0),
         words(&EngineFlags::pulled, readers_of_mine() != 0 ? others(all_ranks()) : 0, piece,
               kRotationSlots)},  // of all: other ranks may have read in the call before
        after);
  if (in(shape_.owners, shape_.rank)) {
    if (shape_.handling != kPlaceParts) reduce_piece(piece, senders);
    const Range part = range(shape_.rank, piece);
    for (int k = 1; k < shape_.ranks && shape_.handling == kPlaceParts; ++k)
      if (in(senders, peer(k)))
        copy(stream(kHandle, piece),
             static_cast<char*>(shape_.output) +
                 static_cast<std::uint64_t>(peer(k)) * shape_.place_stride + part.from,
             inbox(shape_.rank, peer(k), piece), part.bytes);
  }
  finish(kHandle, piece, &EngineFlags::handled);
}

void Rotation::pull(std::uint32_t piece) {
  const std::uint32_t owners = owners_i_read();
  begin(stream(kPull, piece), {words(&EngineFlags::handled, owners, piece, 0)},
        {event(kHandle, piece)});
  for (int k = shape_.ranks - 1; k >= 1; --k) {
    const int owner = peer(k);
    if (!in(owners, owner)) continue;
    const Range part = range(owner, piece);
    const std::uint64_t at =
        static_cast<std::uint64_t>(index_of(shape_, owner)) * shape_.result_stride;
    copy(stream(kPull, piece), static_cast<char*>(shape_.output) + at + part.from,
         outbox(owner, piece), part.bytes);
  }
  finish(kPull, piece, &EngineFlags::pulled);
}

void Rotation::join(Stream stream) {
  for (std::size_t i = 0; i < kRotationStreams; ++i) {
    record(path_.events[i], path_.streams[i]);
    follow(stream, path_.events[i]);
  }
  launch_end(stream, blank_step(&EngineFlags::pieces), {{&EngineFlags::pieces, cut_.pieces}});
}

void Rotation::enqueue(Event fork, Stream stream) {
  record(fork, stream);
  for (std::size_t i = 0; i < kRotationStreams; ++i) follow(path_.streams[i], fork);
  copy(path_.streams[kRotationSlots], static_cast<char*>(shape_.output) + shape_.own_to,
       static_cast<const char*>(shape_.input) + shape_.own_from, shape_.own_bytes);
  for (std::uint32_t step = 0; step < cut_.pieces + 2; ++step) {
    if (step < cut_.pieces) push(step);
    if (step >= 1 && step - 1 < cut_.pieces) handle(step - 1);
    if (step >= 2) pull(step - 2);
  }
  join(stream);
}

}  // namespace plait::cuda
