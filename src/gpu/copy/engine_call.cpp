// Fills in steps, and puts copies and reductions on the queue of a call.
#include "gpu/copy/engine_call.hpp"

#include <algorithm>

namespace plait::cuda {

EngineStep EngineCall::blank_step(std::uint32_t EngineFlags::* counted) const {
  EngineStep step{};
  step.state = call_.state;
  step.stop_page = call_.stop_page;
  step.wait_ns = call_.wait_ns;
  step.counted = &(flags_of(call_.rank).*counted);
  std::copy(path_.flags.begin(), path_.flags.end(), step.flags);
  step.rank = call_.rank;
  step.ranks = call_.ranks;
  return step;
}

EngineStep EngineCall::barrier_step(std::uint32_t EngineFlags::* counted, FlagRow word,
                                    std::uint32_t value) const {
  EngineStep step = blank_step(counted);
  step.signals_first = 1;
  step.signal_value = value;
  step.waits[0] = {flags_of(call_.rank).*word, 0, value};
  for (int rank = 0; rank < call_.ranks; ++rank) {
    if (rank == call_.rank) continue;
    step.signal[rank] = &(flags_of(rank).*word)[call_.rank];
    step.waits[0].ranks |= 1u << rank;
  }
  return step;
}

void EngineCall::launch_end(Stream stream, const EngineStep& step,
                            const std::vector<CounterGrowth>& counts) {
  EngineEnd end{};
  end.step = step;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    end.counts[i] = &(flags_of(call_.rank).*counts[i].which);
    end.more[i] = counts[i].more;
  }
  queue_.end(stream, end);
}

void EngineCall::copy(Stream stream, char* dst, const char* src, std::uint64_t bytes) {
  if (bytes != 0 && dst != src) queue_.copy(stream, dst, src, bytes);
}

void EngineCall::copy_all(Stream stream, std::vector<OneCopy> copies) {
  std::erase_if(copies, [](const OneCopy& one) { return one.bytes == 0; });
  if (!copies.empty()) queue_.copy_all(stream, copies);
}

void EngineCall::move(Stream stream, char* dst, const char* src, std::uint64_t bytes) {
  const auto is_aligned = [](const char* at) {
    return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
  };
  if (path_.moving_blocks == 0 || !is_aligned(dst) || !is_aligned(src))
    return copy(stream, dst, src, bytes);
  if (bytes == 0 || dst == src) return;
  PieceArgs args{};
  args.source[0] = src;
  args.sources = 1;
  args.dst = dst;
  args.bytes = bytes;
  reduce(stream, args, path_.moving_blocks);
}

void EngineCall::reduce(Stream stream, PieceArgs args, unsigned blocks) {
  std::copy(std::begin(call_.scalars), std::end(call_.scalars), args.scalars);
  args.state = call_.state;
  args.op = args.sources == 1 ? static_cast<std::int32_t>(ReduceOp::sum) : call_.op;
  args.order = args.sources == 1 ? 0 : call_.order;
  queue_.reduce(stream, args, type_, blocks);
}

}  // namespace plait::cuda
