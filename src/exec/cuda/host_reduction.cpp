// Each chunk: down, reduced by its owner, up; while one is reduced the next comes down and the one
// before goes up.
#include "exec/cuda/host_reduction.hpp"

#include <algorithm>

namespace plait::cuda {

static_assert(ReduceJob::kMostSources >= kMaxCudaRanks);

std::uint64_t HostReduction::bytes(std::uint32_t chunk) const {
  return chunk + 1 < cut_.chunks ? cut_.chunk_bytes : cut_.bytes - from(chunk);
}

std::uint64_t HostReduction::slot(std::uint32_t chunk) const {
  return chunk % kChunkSlots * cut_.chunk_bytes;
}

char* HostReduction::ring(int rank, std::uint32_t chunk) const {
  return path_.host_rings[static_cast<std::size_t>(rank)] + slot(chunk);
}

char* HostReduction::device_ring(int rank, std::uint32_t chunk) const {
  return path_.rings[static_cast<std::size_t>(rank)] + slot(chunk);
}

void HostReduction::await(Stream stream, Word word, std::uint32_t ranks, std::uint32_t chunk) {
  RotationStep step = blank_step(&RotationFlags::chunks);
  step.waits[0] = {flags_of(call_.rank).*word, ranks, chunk + 1};
  launch(stream, step);
}

void HostReduction::tell(Stream stream, Word word, std::uint32_t ranks, std::uint32_t chunk) {
  RotationStep step = blank_step(&RotationFlags::chunks);
  for (int rank = 0; rank < call_.ranks; ++rank)
    if ((ranks >> rank & 1) != 0) step.tell[rank] = &(flags_of(rank).*word)[call_.rank];
  step.told = chunk + 1;
  launch(stream, step);
}

/// A slot is free when what it held has come up everywhere, or been reduced into the owner's.
void HostReduction::bring_down(std::uint32_t chunk) {
  if (chunk >= kChunkSlots) {
    follow(stream(kDown), event(kUp, chunk));
    const std::uint32_t before = chunk - kChunkSlots;
    if (is_mine(before)) await(stream(kDown), &RotationFlags::host_taken, others(), before);
  }
  copy(stream(kDown), device_ring(call_.rank, chunk),
       static_cast<const char*>(call_.input) + from(chunk), bytes(chunk));
  record(event(kDown, chunk), stream(kDown));
}

void HostReduction::reduce_chunk(std::uint32_t chunk) {
  follow(stream(kReduce), event(kDown, chunk));
  if (!is_mine(chunk)) {
    tell(stream(kReduce), &RotationFlags::host_arrived, 1u << owner(chunk), chunk);
  } else {
    await(stream(kReduce), &RotationFlags::host_arrived, others(), chunk);
    ReduceJob job;
    job.type = type_;
    job.op = static_cast<ReduceOp>(call_.op);
    job.dst = ring(call_.rank, chunk);
    job.source_count = call_.ranks;
    for (int rank = 0; rank < call_.ranks; ++rank) {
      job.sources[rank] = ring(rank, chunk);
      job.scales[rank] = call_.scalars[rank];
    }
    job.count = bytes(chunk) / bytes_of(type_);
    reduce_on_host(stream(kReduce), job);
    tell(stream(kReduce), &RotationFlags::host_reduced, others(), chunk);
  }
  record(event(kReduce, chunk), stream(kReduce));
}

void HostReduction::bring_up(std::uint32_t chunk) {
  const std::uint32_t by = 1u << owner(chunk);
  follow(stream(kUp), event(kReduce, chunk));
  if (!is_mine(chunk)) await(stream(kUp), &RotationFlags::host_reduced, by, chunk);
  copy(stream(kUp), static_cast<char*>(call_.output) + from(chunk),
       device_ring(owner(chunk), chunk), bytes(chunk));
  if (!is_mine(chunk)) tell(stream(kUp), &RotationFlags::host_taken, by, chunk);
  record(event(kUp, chunk), stream(kUp));
}

void HostReduction::fork(Stream stream) { record(path_.host_events[0], stream); }

void HostReduction::enqueue() {
  follow(stream(kDown), path_.host_events[0]);
  for (std::uint32_t step = 0; step < cut_.chunks + 2; ++step) {
    if (step < cut_.chunks) bring_down(step);
    if (step >= 1 && step - 1 < cut_.chunks) reduce_chunk(step - 1);
    if (step >= 2) bring_up(step - 2);
  }
}

/// The next call may use the rings: all have taken the last of my results.
void HostReduction::join(Stream stream_of_call) {
  follow(stream_of_call, event(kUp, cut_.chunks - 1));
  RotationStep step = blank_step(&RotationFlags::chunks);
  std::uint32_t mine = cut_.chunks;
  while (mine != 0 && !is_mine(mine - 1)) --mine;
  if (mine != 0) step.waits[0] = {flags_of(call_.rank).host_taken, others(), mine};
  launch_end(stream_of_call, step, {{&RotationFlags::chunks, cut_.chunks}});
}

}  // namespace plait::cuda
