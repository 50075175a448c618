// Enqueues the steps of a ring. Step i pushes into slot i after the barrier of step i - 2: by then
// the piece to push on has arrived, and the receiver has finished with that slot.
#include "gpu/copy/engine_ring.hpp"

#include <algorithm>

namespace plait::cuda {

char* EngineRing::slot(int rank, std::uint32_t step) const {
  const std::vector<char*>& slots = path_.borrowed_bytes != 0 ? path_.borrowed : path_.slots;
  return slots[static_cast<std::size_t>(rank)] + step % kRingSlots * cut_.piece_bytes;
}

bool EngineRing::pushes(std::uint32_t step) const {
  return pushed_by(cut_, call_.rank, step).bytes != 0;
}

bool EngineRing::takes(std::uint32_t step) const {
  const RingPiece kept = kept_by(cut_, call_.rank, step);
  const bool keeps = kept.bytes != 0 && in_output(kept) != own(kept);  // otherwise in place
  return keeps || pushed_by(cut_, before(step), step).bytes != 0;
}

void EngineRing::push(std::uint32_t step) {
  if (!pushes(step)) return;
  follow(stream(kPush), passed_barrier(kBegun + (step < 2 ? 0 : step - 1)));
  const RingPiece piece = pushed_by(cut_, call_.rank, step);
  const char* const from = piece.owner == call_.rank ? own(piece) : slot(call_.rank, step - 2);
  copy(stream(kPush), slot(after(step), step), from, piece.bytes);
  record(pushed(step), stream(kPush));
}

/// Barrier of a step: this rank's push has arrived, and this rank has finished with the slot that
/// is filled two steps later. Waits until the neighbours signal the same.
void EngineRing::barrier(std::uint32_t step) {
  if (pushes(step)) follow(stream(kBarrier), pushed(step));
  if (step >= 2 && takes(step - 2)) follow(stream(kBarrier), taken(step - 2));
  const std::uint32_t value = kBegun + step + 1, filled = std::min(step + 2, cut_.steps - 1);
  EngineStep barrier_step = blank_step(&EngineFlags::ring_barriers);
  barrier_step.signals_first = 1;
  barrier_step.signal_value = value;
  barrier_step.waits[0] = {flags_of(call_.rank).ring_barrier,
                           1u << before(step) | 1u << after(filled), value};
  for (const int rank : {after(step), before(filled)})
    barrier_step.signal[rank] = &flags_of(rank).ring_barrier[call_.rank];
  launch(stream(kBarrier), barrier_step);
  record(passed_barrier(value), stream(kBarrier));
}

/// Also copies what the caller's output wants of a piece that is pushed on.
void EngineRing::take(std::uint32_t step) {
  if (!takes(step)) return;
  follow(stream(kTake), passed_barrier(kBegun + step + 1));
  const RingPiece came = pushed_by(cut_, before(step), step);
  move(stream(kTake), in_output(came), slot(call_.rank, step), came.bytes);
  const RingPiece kept = kept_by(cut_, call_.rank, step);
  move(stream(kTake), in_output(kept), own(kept), kept.bytes);
  record(taken(step), stream(kTake));
}

void EngineRing::enqueue(Event fork, Stream stream_of_call) {
  record(fork, stream_of_call);
  follow(stream(kBarrier), fork);
  // All ranks, since any of them may have pulled from the slots of the next rank in a tiled call.
  launch(stream(kBarrier),
         barrier_step(&EngineFlags::ring_barriers, &EngineFlags::ring_barrier, kBegun));
  record(passed_barrier(kBegun), stream(kBarrier));
  // Pushes first, barriers next: a graph then puts each kind in a single branch.
  for (std::uint32_t i = 0; i < cut_.steps + 2; ++i) {
    if (i < cut_.steps) push(i);
    if (i >= 1 && i - 1 < cut_.steps) barrier(i - 1);
    if (i >= 2) take(i - 2);
  }
  // All ranks have finished: other calls push into the inboxes of more ranks.
  const std::uint32_t last = cut_.steps - 1;
  follow(stream_of_call, passed_barrier(kBegun + cut_.steps));
  for (const std::uint32_t step : {last - 1, last})
    if (takes(step)) follow(stream_of_call, taken(step));
  const std::uint32_t barriers = kBegun + cut_.steps + 1;
  launch_end(stream_of_call,
             barrier_step(&EngineFlags::ring_barriers, &EngineFlags::ring_barrier, barriers),
             {{&EngineFlags::ring_barriers, barriers}});
}

}  // namespace plait::cuda
