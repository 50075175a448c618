// Enqueues the part: each chunk goes down, is reduced by the owner's cores, and goes up. While a
// chunk is reduced, the next goes down and the one before goes up.
#include "gpu/host_path/host_reduction.hpp"

#include <algorithm>

namespace plait::cuda {

static_assert(ReduceJob::kMostSources >= kMaxCudaRanks);
static_assert(kHostEvents >= 1 + 2 * kChunkSlots);

HostReductionCall::HostReductionCall(EngineQueue& queue, const EnginePath& path, const HostCut& cut,
                                     const CallArgs& call, DataType type, std::uint32_t takers)
    : EngineCall(queue, path, call, type), cut_(cut), call_(call), takers_(takers) {
  job_.type = type;
  job_.op = static_cast<ReduceOp>(call.op);
  job_.order = static_cast<SumOrder>(call.order);
  job_.ranks = call.ranks;
  std::copy(path.host_rings.begin(), path.host_rings.end(), job_.rings);
  std::copy(std::begin(call.scalars), std::end(call.scalars), job_.scales);
  job_.cut = cut;
}

char* HostReductionCall::ring(int rank, std::uint32_t chunk) const {
  return path_.rings[static_cast<std::size_t>(rank)] + cut_.slot_at(chunk);
}

void HostReductionCall::await(Stream stream, const std::uint32_t* flags, std::uint32_t ranks,
                              std::uint32_t chunk) {
  EngineStep waits = step();
  waits.waits[0] = {flags, ranks, chunk + 1};
  launch(stream, waits);
}

void HostReductionCall::signal(Stream stream, std::uint32_t* flags, std::uint32_t chunk) {
  EngineStep signalling = step();
  signalling.signal[call_.rank] = &flags[call_.rank];
  signalling.signal_value = chunk + 1;
  launch(stream, signalling);
}

/// Brings a chunk down. A slot is free when the chunk before has been reduced and has come up here.
/// A slot that holds a result is free when the result has come up on all ranks that get the sum.
void HostReductionCall::bring_down(std::uint32_t chunk) {
  if (chunk >= kChunkSlots) {
    follow(stream(kDown), has_come_up(chunk));
    const std::uint32_t before = chunk - kChunkSlots;
    if (is_mine(before) && other_takers() != 0)
      await(stream(kDown), path_.host_flags->taken, other_takers(), before);
  }
  copy(stream(kDown), ring(call_.rank, chunk),
       static_cast<const char*>(call_.input) + cut_.chunk_from(chunk), cut_.length_of(chunk));
  signal(stream(kDown), path_.host_flags->arrived, chunk);
  record(has_gone_down(chunk), stream(kDown));
}

/// Brings a result up. Follows the own chunk down, so that no order of a graph's one branch lets
/// the wait for the result precede the chunk that the cores wait for.
void HostReductionCall::bring_up(std::uint32_t chunk) {
  const int owner = job_.owner(chunk);
  follow(stream(kUp), has_gone_down(chunk));
  EngineStep waits = step();  // waits for ranks that have yet to arrive too, to name them in errors
  waits.waits[0] = {path_.host_flags->arrived, others(), chunk + 1};
  waits.waits[1] = {path_.host_flags->reduced, 1u << owner, chunk + 1};
  launch(stream(kUp), waits);
  if (takes()) {
    copy(stream(kUp), static_cast<char*>(call_.output) + cut_.chunk_from(chunk), ring(owner, chunk),
         cut_.length_of(chunk));
    signal(stream(kUp), path_.host_flags->taken, chunk);
  }
  record(has_come_up(chunk), stream(kUp));
}

void HostReductionCall::fork(Stream stream) { record(path_.host_events[0], stream); }

void HostReductionCall::enqueue() {
  for (const ReductionStream role : {kDown, kUp}) follow(stream(role), path_.host_events[0]);
  begin_on_host(stream(kUp), job_);
  for (std::uint32_t step = 0; step <= cut_.chunks; ++step) {
    if (step < cut_.chunks) bring_down(step);
    if (step >= 1) bring_up(step - 1);
  }
}

/// Ends the part: all ranks have taken the last of this rank's results, so the next call may use
/// the rings.
void HostReductionCall::join(Stream stream_of_call) {
  follow(stream_of_call, has_come_up(cut_.chunks - 1));
  record(path_.host_events[0], stream(kDown));
  follow(stream_of_call, path_.host_events[0]);  // a graph wants the branches joined
  EngineStep waits = step();
  std::uint32_t mine = cut_.chunks;
  while (mine != 0 && !is_mine(mine - 1)) --mine;
  if (mine != 0) waits.waits[0] = {path_.host_flags->taken, other_takers(), mine};
  launch_end(stream_of_call, waits, {{&EngineFlags::host_chunks, cut_.chunks}});
}

}  // namespace plait::cuda
