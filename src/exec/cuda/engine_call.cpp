// Steps, copies and reductions of calls by copy engines.
#include "exec/cuda/engine_call.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace plait::cuda {

RotationStep EngineCall::blank_step(std::uint32_t RotationFlags::* counted) const {
  RotationStep step{};
  step.state = call_.state;
  step.lifeline = call_.lifeline;
  step.wait_ns = call_.wait_ns;
  step.counted = &(flags_of(call_.rank).*counted);
  std::copy(path_.flags.begin(), path_.flags.end(), step.flags);
  step.rank = call_.rank;
  step.ranks = call_.ranks;
  return step;
}

void EngineCall::launch(Stream stream, RotationStep step) {
  kernels_.launch(step_, {1, 32, false}, stream, {&step});
}

void EngineCall::launch_end(Stream stream, const RotationStep& step,
                            const std::vector<Count>& counts) {
  RotationEnd end{};
  end.step = step;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    end.counts[i] = &(flags_of(call_.rank).*counts[i].which);
    end.more[i] = counts[i].more;
  }
  kernels_.launch(kernels_.find("plait_rotation_end"), {1, 32, false}, stream, {&end});
}

void EngineCall::copy(Stream stream, char* dst, const char* src, std::uint64_t bytes) {
  if (bytes == 0 || dst == src) return;
  PLAIT_CUDA_CALL(memory_copy_async, reinterpret_cast<DevicePointer>(dst),
                  reinterpret_cast<DevicePointer>(src), bytes, stream);
}

void EngineCall::reduce(Stream stream, PieceArgs args, unsigned blocks) {
  std::copy(std::begin(call_.scalars), std::end(call_.scalars), args.scalars);
  args.state = call_.state;
  args.op = args.sources == 1 ? static_cast<std::int32_t>(ReduceOp::sum) : call_.op;
  const std::string sum = text("plait_piece_", name_of(type_), "_sum_", args.sources);
  const bool common = args.op == static_cast<std::int32_t>(ReduceOp::sum) && kernels_.has(sum);
  const Function kernel =
      kernels_.find(common ? sum : text("plait_piece_", name_of(type_), "_any_0"));
  kernels_.launch(kernel, {blocks, 512, false}, stream, {&args});
}

void EngineCall::record(Event event, Stream stream) {
  PLAIT_CUDA_CALL(event_record, event, stream);
}

void EngineCall::follow(Stream stream, Event event) {
  PLAIT_CUDA_CALL(stream_wait_event, stream, event, 0);
}

}  // namespace plait::cuda
