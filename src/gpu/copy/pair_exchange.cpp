// Enqueues the steps of an exchange: bytes, streams and events.
#include "gpu/copy/pair_exchange.hpp"

namespace plait::cuda {

static_assert(kEngineEvents >= 5 * kChunkSlots);

/// Returns the event of a kind and index. kUp and kCross are used right after the record and share
/// rows; other kinds are looked back at over kChunkSlots.
Event PairExchange::event(ExchangeStream role, std::uint32_t index) const {
  const std::size_t row = role > kCross ? role - 1 : role;
  return path_.events[row * kChunkSlots + index % kChunkSlots];
}

char* PairExchange::slot(int rank, const ExchangePiece& piece) const {
  return (piece.borrowed ? path_.borrowed : inbox())[static_cast<std::size_t>(rank)] + piece.at;
}

char* PairExchange::staged(std::uint32_t chunk) const {
  return inbox()[static_cast<std::size_t>(call_.rank)] + cut_.staging_at + cut_.slot_at(chunk);
}

char* PairExchange::ring(int rank, std::uint32_t chunk) const {
  return path_.rings[static_cast<std::size_t>(rank)] + cut_.slot_at(chunk);
}

/// Returns the part for the peer, from byte `from` on.
const char* PairExchange::sent(std::uint64_t from) const {
  const std::uint64_t part = static_cast<std::uint64_t>(peer()) * shape_.part_stride;
  return static_cast<const char*>(call_.input) + part + from;
}

/// Copies data that stays on this rank, up to byte `upto`, piece by piece: a single copy of
/// everything would run before the pushes.
void PairExchange::keep(std::uint64_t upto) {
  if (shape_.own_bytes == 0) return;  // otherwise as many bytes as go to the peer
  copy(stream(kHandle), static_cast<char*>(call_.output) + shape_.own_to + kept_,
       static_cast<const char*>(call_.input) + shape_.own_from + kept_, upto - kept_);
  kept_ = upto;
}

/// Handles data of the peer: places the data, or reduces it with the own input in rank order.
void PairExchange::take_range(ExchangeStream role, const char* came, std::uint64_t from,
                              std::uint64_t bytes, unsigned blocks) {
  if (!takes_) return;
  char* out = static_cast<char*>(call_.output) + from;
  if (shape_.handling == kPlaceParts) {
    out += static_cast<std::uint64_t>(peer()) * shape_.place_stride;
    // By a kernel only if a copy would delay pushes, and nothing else is copied here.
    return sends_ && shape_.own_bytes == 0 ? move(stream(role), out, came, bytes)
                                           : copy(stream(role), out, came, bytes);
  }
  PieceArgs args{};
  const std::uint64_t part = static_cast<std::uint64_t>(call_.rank) * shape_.part_stride;
  args.source[call_.rank] = static_cast<const char*>(call_.input) + part + from;
  args.source[peer()] = came;
  args.sources = 2;
  args.dst = out;
  args.bytes = bytes;
  reduce(stream(role), args, blocks);
}

void PairExchange::push(std::uint32_t piece) {
  if (!sends_) return;
  const ExchangePiece& what = cut_.pieces[piece];
  if (what.after != 0 && what.after != cut_.pieces[piece - 1].after)
    follow(stream(kPush), event(kHandle, what.after - 1));
  if (batches_)
    copy_all(stream(kPush), {{slot(peer(), what), sent(what.from), what.bytes}});
  else
    copy(stream(kPush), slot(peer(), what), sent(what.from), what.bytes);
  record(event(kPush, piece), stream(kPush));
}

void PairExchange::handle(std::uint32_t piece) {
  const ExchangePiece& what = cut_.pieces[piece];
  if (sends_) follow(stream(kHandle), event(kPush, piece));
  launch(stream(kHandle),
         barrier_step(&EngineFlags::exchanged, &EngineFlags::link_arrived, piece + 1));
  if (piece == 0 && marks_ != nullptr) record(marks_->begin, stream(kHandle));
  take_range(kHandle, slot(call_.rank, what), what.from, what.bytes,
             what.last ? path_.blocks : blocks_);
  if (what.awaited) {
    launch(stream(kHandle),
           barrier_step(&EngineFlags::exchanged, &EngineFlags::link_handled, piece + 1));
    record(event(kHandle, piece), stream(kHandle));
  }
  // One piece ahead, so that the copy beside the last piece runs while that piece is pushed; the
  // last copy includes the host's share.
  const std::size_t after_next = piece + 2;
  keep(after_next < cut_.pieces.size() ? cut_.pieces[after_next].from : cut_.bytes);
}

void PairExchange::bring_down(std::uint32_t chunk) {
  if (chunk >= kChunkSlots) follow(stream(kDown), event(kTake, chunk));
  if (sends_)
    copy(stream(kDown), ring(call_.rank, chunk), sent(cut_.chunk_from(chunk)),
         cut_.length_of(chunk));
  record(event(kDown, chunk), stream(kDown));
}

/// Brings a chunk up. The space beside the inbox was freed before the chunk came down.
void PairExchange::bring_up(std::uint32_t chunk) {
  follow(stream(kCross), event(kDown, chunk));
  launch(stream(kCross), barrier_step(&EngineFlags::chunks, &EngineFlags::host_arrived, chunk + 1));
  record(event(kCross, chunk), stream(kCross));
  follow(stream(kUp), event(kCross, chunk));
  if (takes_) copy(stream(kUp), staged(chunk), ring(peer(), chunk), cut_.length_of(chunk));
  record(event(kUp, chunk), stream(kUp));
}

void PairExchange::take(std::uint32_t chunk) {
  follow(stream(kTake), event(kUp, chunk));
  if (chunk + kChunkSlots < cut_.chunks)  // otherwise the end of the call signals it
    launch(stream(kTake), barrier_step(&EngineFlags::chunks, &EngineFlags::host_taken, chunk + 1));
  take_range(kTake, staged(chunk), cut_.chunk_from(chunk), cut_.length_of(chunk), blocks_);
  record(event(kTake, chunk), stream(kTake));
}

/// Enqueues chunks: a chunk is brought down while the chunk before comes up and the chunk before
/// that is reduced.
void PairExchange::enqueue_chunks(std::uint32_t upto) {
  for (; chunk_steps_ < upto; ++chunk_steps_) {
    const std::uint32_t chunk = chunk_steps_;
    if (chunk < cut_.chunks) bring_down(chunk);
    if (chunk >= 1 && chunk - 1 < cut_.chunks) bring_up(chunk - 1);
    if (chunk >= 2) take(chunk - 2);
  }
}

/// Ends the call: both ranks have handled everything, so the buffers of sent data are free.
void PairExchange::join(Stream stream_of_call) {
  if (marks_ != nullptr) {
    record(marks_->link, stream(kHandle));
    record(marks_->host, stream(kTake));
  }
  record(event(kHandle, 0), stream(kHandle));
  follow(stream_of_call, event(kHandle, 0));
  if (cut_.chunks != 0) follow(stream_of_call, event(kTake, cut_.chunks - 1));
  const auto pieces = static_cast<std::uint32_t>(cut_.pieces.size());
  launch_end(stream_of_call,
             barrier_step(&EngineFlags::exchanged, &EngineFlags::link_handled, pieces),
             {{&EngineFlags::exchanged, pieces}, {&EngineFlags::chunks, cut_.chunks}});
}

void PairExchange::enqueue(Event fork, Stream stream_of_call) {
  record(fork, stream_of_call);
  // An empty stream would add redundant edges; a graph with redundant edges runs pushes and takes
  // one after the other.
  follow(stream(sends_ ? kPush : kHandle), fork);
  if (cut_.chunks != 0) follow(stream(kDown), fork);
  const auto pieces = static_cast<std::uint32_t>(cut_.pieces.size());
  const std::uint32_t chunk_steps = cut_.chunks == 0 ? 0 : cut_.chunks + 2;
  for (std::uint32_t step = 0; step <= pieces; ++step) {
    if (step < pieces) push(step);
    if (step >= 1) handle(step - 1);
    // Proceeds as far in the host's share as in the link's share.
    const std::uint64_t upto =
        step < pieces ? cut_.pieces[step].from + cut_.pieces[step].bytes : cut_.host_from;
    enqueue_chunks(static_cast<std::uint32_t>(chunk_steps * upto / cut_.host_from));
  }
  join(stream_of_call);
}

}  // namespace plait::cuda
