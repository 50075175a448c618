// Enqueues pushes, handling and placing of a call: bytes, flags and streams.
#include "gpu/copy/rotation.hpp"

#include "gpu/abi/tile_cut.hpp"

namespace plait::cuda {

RotationCut cut_rotation(std::uint64_t part_bytes, std::uint64_t most_bytes) {
  constexpr std::uint64_t kGrain = 4096, kSlots = kRotationSlots;
  const std::uint64_t rounds = (part_bytes + kSlots * most_bytes - 1) / (kSlots * most_bytes);
  const std::uint64_t pieces = std::max<std::uint64_t>(1, rounds) * kSlots;
  const std::uint64_t piece = ((part_bytes + pieces - 1) / pieces + kGrain - 1) / kGrain * kGrain;
  return {std::min(most_bytes, std::max(kGrain, piece)), static_cast<std::uint32_t>(pieces)};
}

std::uint32_t Rotation::owners_i_read() const {
  return in(shape_.readers, shape_.rank) ? others(shape_.owners) : 0;
}

std::uint32_t Rotation::readers_of_mine() const {
  return in(shape_.owners, shape_.rank) ? others(shape_.readers) : 0;
}

Rotation::PieceRange Rotation::range(int owner, std::uint32_t piece) const {
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

/// Returns the address of the own result, the source of pushes to readers. A result that is not
/// kept replaces another rank's part, already read by then.
char* Rotation::own_result(std::uint32_t piece) const {
  if (in(shape_.keepers, shape_.rank)) return in_output(shape_.rank, piece);
  return inbox(shape_.rank, peer(1), piece);
}

char* Rotation::in_output(int owner, std::uint32_t piece) const {
  return static_cast<char*>(shape_.output) +
         static_cast<std::uint64_t>(index_of(shape_, owner)) * shape_.result_stride +
         range(owner, piece).from;
}

/// Returns a wait until `ranks` have signalled the piece `before` pieces earlier, which used the
/// same slot.
EngineWait Rotation::flag_wait(FlagRows row, std::uint32_t ranks, std::uint32_t piece,
                               std::uint32_t before) const {
  return {(flags_of(shape_.rank).*row)[piece % kRotationSlots], ranks, piece + 1 - before};
}

/// Makes later work on the stream wait for the event (null = none) and the flags.
void Rotation::begin(Stream stream, const EngineWait& wait, Event after) {
  if (after != nullptr) follow(stream, after);
  EngineStep step = blank_step(&EngineFlags::pieces);
  step.waits[0] = wait;
  if (wait.ranks != 0) launch(stream, step);
}

/// Signals all peers, even peers that do not wait in this call: flags count the pieces of all
/// calls.
void Rotation::finish(RotationStream role, std::uint32_t piece, FlagRows row) {
  EngineStep step = blank_step(&EngineFlags::pieces);
  for (int k = 1; k < shape_.ranks; ++k)
    step.signal[peer(k)] = &(flags_of(peer(k)).*row)[piece % kRotationSlots][shape_.rank];
  step.signal_value = piece + 1;
  launch(stream(role), step);
  record(event(role, piece), stream(role));
}

/// True if every rank copies to every other rank, in the same steps.
bool Rotation::takes_turns(RotationStream role) const {
  return !batches_ && shape_.ranks > 2 && shape_.shift == 0 && shape_.owners == all_ranks() &&
         (role == kPush ? shape_.senders : shape_.readers) == all_ranks();
}

/// Waits for the port of the first step of a sweep. The rank two further on used that port in the
/// last step of the sweep before, and signalled on leaving.
void Rotation::await_port(RotationStream role) {
  if (!takes_turns(role) || sweeps_ == 0) return;
  EngineStep step = blank_step(&EngineFlags::sweeps);
  step.waits[0] = {flags_of(shape_.rank).ports[1], 1u << peer(2), sweeps_};
  launch(stream(role), step);
}

/// After `steps` steps of a sweep: signals the rank that uses the port just left, and waits for the
/// port of the next step. The next sweep waits for the port of its own first step.
void Rotation::pass_port(RotationStream role, int steps) {
  if (!takes_turns(role)) return;
  const bool is_last = steps == shape_.ranks - 1;
  const int next = is_last ? peer(-2) : peer(-1), next_step = is_last ? 1 : steps + 1;
  EngineStep step = blank_step(&EngineFlags::sweeps);
  step.signals_first = 1;
  step.signal[next] = &flags_of(next).ports[next_step][shape_.rank];
  step.signal_value = sweeps_ + 1;
  if (is_last)
    ++sweeps_;
  else
    step.waits[0] = {flags_of(shape_.rank).ports[next_step], 1u << peer(1), sweeps_ + 1};
  launch(stream(role), step);
}

/// Sends a piece to each peer: in turn, or all at once.
void Rotation::send(RotationStream role, const std::vector<OneCopy>& by_step) {
  if (batches_) return copy_all(stream(role), by_step);
  await_port(role);
  for (std::size_t k = 0; k < by_step.size(); ++k) {
    copy(stream(role), by_step[k].dst, by_step[k].src, by_step[k].bytes);
    pass_port(role, static_cast<int>(k) + 1);
  }
}

/// Follows the signals of earlier pieces, also when a graph orders the branches: other ranks may
/// depend on those signals.
void Rotation::push(std::uint32_t piece) {
  begin(stream(kPush), flag_wait(&EngineFlags::placed, others(all_ranks()), piece, kRotationSlots),
        piece < kRotationSlots ? nullptr : event(kPlace, piece));
  const char* input = static_cast<const char*>(shape_.input);
  std::vector<OneCopy> by_step;
  for (int k = 1; k < shape_.ranks; ++k) {
    const int owner = peer(k);
    const PieceRange part = range(owner, piece);
    const std::uint64_t at =
        static_cast<std::uint64_t>(index_of(shape_, owner)) * shape_.part_stride;
    const bool is_sent = in(senders_to(shape_, owner), shape_.rank);
    by_step.push_back(
        {inbox(owner, shape_.rank, piece), input + at + part.from, is_sent ? part.bytes : 0});
  }
  send(kPush, by_step);
  finish(kPush, piece, &EngineFlags::arrived);
}

void Rotation::reduce_piece(std::uint32_t piece, std::uint32_t senders) {
  PieceArgs args{};
  const PieceRange part = range(shape_.rank, piece);
  if (part.bytes == 0) return;
  const auto index = static_cast<std::uint64_t>(index_of(shape_, shape_.rank));
  const bool with_own = shape_.handling == kReduceParts;
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    if (rank == shape_.rank && with_own)
      args.source[args.sources++] =
          static_cast<const char*>(shape_.input) + index * shape_.part_stride + part.from;
    else if (in(senders, rank))
      args.source[args.sources++] = inbox(shape_.rank, rank, piece);
  }
  args.dst = own_result(piece);
  args.bytes = part.bytes;
  if (args.sources == 1 && args.source[0] == args.dst) return;
  reduce(stream(kHandle), args, blocks_);
}

void Rotation::handle(std::uint32_t piece) {
  const std::uint32_t senders = senders_to(shape_, shape_.rank);
  begin(stream(kHandle), flag_wait(&EngineFlags::arrived, senders, piece, 0), event(kPush, piece));
  if (in(shape_.owners, shape_.rank)) {
    if (shape_.handling != kPlaceParts) reduce_piece(piece, senders);
    const PieceRange part = range(shape_.rank, piece);
    for (int k = 1; k < shape_.ranks && shape_.handling == kPlaceParts; ++k)
      if (in(senders, peer(k)))
        copy(stream(kHandle),
             static_cast<char*>(shape_.output) +
                 static_cast<std::uint64_t>(peer(k)) * shape_.place_stride + part.from,
             inbox(shape_.rank, peer(k), piece), part.bytes);
  }
  finish(kHandle, piece, &EngineFlags::handled);
}

/// Pushes results into the slots from which the readers have taken this rank's parts.
void Rotation::share(std::uint32_t piece) {
  const std::uint32_t readers = readers_of_mine();
  begin(stream(kShare), flag_wait(&EngineFlags::handled, readers, piece, 0), event(kHandle, piece));
  std::vector<OneCopy> by_step;
  for (int k = 1; k < shape_.ranks; ++k)
    by_step.push_back({inbox(peer(k), shape_.rank, piece), own_result(piece),
                       in(readers, peer(k)) ? range(shape_.rank, piece).bytes : 0});
  send(kShare, by_step);
  finish(kShare, piece, &EngineFlags::shared);
}

/// Places results in order of arrival.
void Rotation::place(std::uint32_t piece) {
  const std::uint32_t owners = owners_i_read();
  Event after = event(kShare, piece);
  for (int k = 1; k < shape_.ranks; ++k) {
    const int owner = peer(-k);
    if (!in(owners, owner)) continue;
    begin(stream(kPlace), flag_wait(&EngineFlags::shared, 1u << owner, piece, 0), after);
    copy(stream(kPlace), in_output(owner, piece), inbox(shape_.rank, owner, piece),
         range(owner, piece).bytes);
    after = nullptr;
  }
  if (after != nullptr) follow(stream(kPlace), after);
  finish(kPlace, piece, &EngineFlags::placed);
}

void Rotation::join(Stream stream) {
  for (std::size_t i = 0; i < kRotationStreams; ++i) {
    record(path_.events[i], path_.streams[i]);
    follow(stream, path_.events[i]);
  }
  launch_end(stream, blank_step(&EngineFlags::pieces),
             {{&EngineFlags::pieces, cut_.pieces}, {&EngineFlags::sweeps, sweeps_}});
}

void Rotation::enqueue(Event fork, Stream stream) {
  record(fork, stream);
  for (std::size_t i = 0; i < kRotationStreams; ++i) follow(path_.streams[i], fork);
  copy(path_.streams[kPlace], static_cast<char*>(shape_.output) + shape_.own_to,
       static_cast<const char*>(shape_.input) + shape_.own_from, shape_.own_bytes);
  for (std::uint32_t first = 0; first < cut_.pieces; first += kRotationSlots) {
    const std::uint32_t end = first + kRotationSlots;
    for (std::uint32_t piece = first; piece < end; ++piece) push(piece);
    for (std::uint32_t piece = first; piece < end; ++piece) {
      handle(piece);
      share(piece);
    }
    for (std::uint32_t piece = first; piece < end; ++piece) place(piece);
  }
  join(stream);
}

}  // namespace plait::cuda
