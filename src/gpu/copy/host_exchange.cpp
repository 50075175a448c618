// Enqueues the steps of an exchange through host memory. The barrier of a chunk says two things:
// the chunk is down, and the chunk kBehind before has come up. After the barrier both ranks may
// therefore fill the slot of the chunk kBehind later.
#include "gpu/copy/host_exchange.hpp"

#include "gpu/copy/copy_memory.hpp"

namespace plait::cuda {

std::string why_no_host_exchange(const Group& group) {
  if (group.host_bytes == 0) return "there is no host memory that both ranks map";
  const std::string why = why_no_copy_engines(group);
  return why.empty() ? group.why_no_part(kChunkStaging) : why;
}

static_assert(2 * (kChunkSlots / 2) == kChunkSlots);

char* HostExchange::place(std::uint32_t chunk) const {
  const std::uint64_t stride =
      reduces_ ? 0 : static_cast<std::uint64_t>(peer()) * shape_.place_stride;
  return static_cast<char*>(call_.output) + stride + cut_.chunk_from(chunk);
}

/// Copies data that stays on this rank, if any.
void HostExchange::keep() {
  char* const to = static_cast<char*>(call_.output) + shape_.own_to;
  const char* const from = static_cast<const char*>(call_.input) + shape_.own_from;
  keeps_ = shape_.own_bytes != 0 && to != from;
  if (!keeps_) return;
  follow(stream(kKeep), fork_);
  copy(stream(kKeep), to, from, shape_.own_bytes);
  record(event(kIsKept, 0), stream(kKeep));
}

void HostExchange::bring_down(std::uint32_t chunk) {
  if (chunk >= kChunkSlots) follow(stream(kDown), event(kPassed, chunk - kBehind));
  const std::uint64_t part = static_cast<std::uint64_t>(peer()) * shape_.part_stride;
  copy(stream(kDown), ring(call_.rank, chunk),
       static_cast<const char*>(call_.input) + part + cut_.chunk_from(chunk),
       cut_.length_of(chunk));
  record(event(kIsDown, chunk), stream(kDown));
}

void HostExchange::barrier(std::uint32_t chunk) {
  if (sends_) follow(stream(kBarrier), event(kIsDown, chunk));
  if (takes_ && chunk >= kBehind) follow(stream(kBarrier), event(kIsUp, chunk - kBehind));
  launch(stream(kBarrier),
         barrier_step(&EngineFlags::chunks, &EngineFlags::host_arrived, chunk + 1));
  if (chunk == 0 && marks_ != nullptr) record(marks_->begin, stream(kBarrier));
  record(event(kPassed, chunk), stream(kBarrier));
}

/// Brings a chunk up: into the output, or into a staging buffer if the chunk is reduced.
void HostExchange::bring_up(std::uint32_t chunk) {
  follow(stream(kUp), event(kPassed, chunk));
  if (reduces_ && chunk >= kChunkSlots) follow(stream(kUp), event(kIsReduced, chunk));
  copy(stream(kUp), reduces_ ? staged(chunk) : place(chunk), ring(peer(), chunk),
       cut_.length_of(chunk));
  record(event(kIsUp, chunk), stream(kUp));
}

/// Reduces a chunk with the own input, in rank order.
void HostExchange::reduce_chunk(std::uint32_t chunk) {
  follow(stream(kReduce), event(kIsUp, chunk));
  PieceArgs args{};
  const std::uint64_t part = static_cast<std::uint64_t>(call_.rank) * shape_.part_stride;
  args.source[call_.rank] = static_cast<const char*>(call_.input) + part + cut_.chunk_from(chunk);
  args.source[peer()] = staged(chunk);
  args.sources = 2;
  args.dst = place(chunk);
  args.bytes = cut_.length_of(chunk);
  reduce(stream(kReduce), args, blocks_);
  record(event(kIsReduced, chunk), stream(kReduce));
}

void HostExchange::fork(Event fork, Stream stream_of_call) {
  fork_ = fork;
  record(fork, stream_of_call);
}

void HostExchange::enqueue() {
  keep();
  follow(stream(sends_ ? kDown : kBarrier), fork_);
  for (std::uint32_t chunk = 0; chunk < cut_.chunks; ++chunk) {
    if (sends_) bring_down(chunk);
    barrier(chunk);
    if (takes_) bring_up(chunk);
    if (takes_ && reduces_) reduce_chunk(chunk);
  }
}

/// Ends the call: the peer has emptied the ring then, so the next call may use the ring.
void HostExchange::join(Stream stream_of_call) {
  if (marks_ != nullptr) {
    record(marks_->link, stream_of_call);
    record(marks_->host, stream(!takes_ ? kBarrier : reduces_ ? kReduce : kUp));
  }
  const std::uint32_t last = cut_.chunks - 1;
  if (keeps_) follow(stream_of_call, event(kIsKept, 0));
  follow(stream_of_call, event(!takes_ ? kPassed : reduces_ ? kIsReduced : kIsUp, last));
  launch_end(stream_of_call,
             barrier_step(&EngineFlags::chunks, &EngineFlags::host_taken, cut_.chunks),
             {{&EngineFlags::chunks, cut_.chunks}});
}

}  // namespace plait::cuda
