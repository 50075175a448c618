// Instances of the kernels in calls by copy engines: a step that waits and signals, the end of a
// call, and reductions of pieces (1 per type for any op, more for sums of the common floats, and
// trees).
#include "gpu/abi/copy_args.hpp"
#include "gpu/copy/engines.cuh"

extern "C" __global__ void __launch_bounds__(32, 1)
    plait_engine_step(const __grid_constant__ plait::cuda::EngineStep step) {
  if (step.state == nullptr) return;  // an empty launch
  plait::cuda::engine_step(step);
}

/// Runs after all pieces of a call. The next call continues the counts from here, in eager calls
/// and in replays alike.
extern "C" __global__ void __launch_bounds__(32, 1)
    plait_engine_end(const __grid_constant__ plait::cuda::EngineEnd end) {
  if (end.step.state == nullptr) return;  // an empty launch
  plait::cuda::engine_step(end.step);
  __syncwarp();
  if (threadIdx.x < 2 && end.counts[threadIdx.x] != nullptr)
    *end.counts[threadIdx.x] += end.more[threadIdx.x];
}

/// Runs behind another library's part of a call, which may have ended early if a rank is lost: then
/// waits until the host can read why.
extern "C" __global__ void __launch_bounds__(1, 1)
    plait_fail_if_peer_lost(const __grid_constant__ plait::cuda::PeerLostArgs args) {
  using namespace plait::cuda;
  if (args.state == nullptr) return;  // an empty launch
  if (*const_cast<const volatile unsigned*>(&args.stop_page->stop) != kFaultLost) return;
  SpinTimeout timeout;  // until the host can read the fault, whoever reports it
  while (!timeout.expired(args.state, args.stop_page, ~0ull, kNoPeer, 0, ~0u)) {
  }
}

/// Moves a piece out of a slot.
extern "C" __global__ void __launch_bounds__(512)
    plait_piece_move(const __grid_constant__ plait::cuda::PieceArgs args) {
  if (args.state == nullptr) return;  // an empty launch
  plait::cuda::move_piece(args);
}

#define PLAIT_PIECE(type, opname, op, sources)                                                 \
  extern "C" __global__ void __launch_bounds__(512) plait_piece_##type##_##opname##_##sources( \
      const __grid_constant__ plait::cuda::PieceArgs args) {                                   \
    if (args.state == nullptr) return; /* an empty launch */                                   \
    plait::cuda::reduce_piece<plait::DataType::type, op, sources>(args);                       \
  }
#define PLAIT_PIECE_SUMS(type)                                      \
  PLAIT_PIECE(type, sum, static_cast<int>(plait::ReduceOp::sum), 2) \
  PLAIT_PIECE(type, sum, static_cast<int>(plait::ReduceOp::sum), 4) \
  PLAIT_PIECE(type, sum, static_cast<int>(plait::ReduceOp::sum), 8)
#define PLAIT_TYPE(name, bytes, is_float, nccl_value) PLAIT_PIECE(name, any, plait::cuda::kAnyOp, 0)
#include "plait/types.def"
#undef PLAIT_TYPE
PLAIT_PIECE_SUMS(fp32)
PLAIT_PIECE_SUMS(bf16)
PLAIT_PIECE_SUMS(fp16)

#define PLAIT_PIECE_TREES(type)                     \
  PLAIT_PIECE(type, tree, plait::cuda::kTreeSum, 4) \
  PLAIT_PIECE(type, tree, plait::cuda::kTreeSum, 8)
PLAIT_PIECE_TREES(fp32)
PLAIT_PIECE_TREES(bf16)
PLAIT_PIECE_TREES(fp16)
#define PLAIT_PIECE_ANYTREE(type)                                                        \
  extern "C" __global__ void __launch_bounds__(512)                                      \
      plait_piece_##type##_tree_0(const __grid_constant__ plait::cuda::PieceArgs args) { \
    if (args.state == nullptr) return; /* an empty launch */                             \
    plait::cuda::reduce_piece_in_tree<plait::DataType::type>(args);                      \
  }
PLAIT_PIECE_ANYTREE(fp32)
PLAIT_PIECE_ANYTREE(fp64)
PLAIT_PIECE_ANYTREE(bf16)
PLAIT_PIECE_ANYTREE(fp16)
PLAIT_PIECE_ANYTREE(fp8e4m3)
PLAIT_PIECE_ANYTREE(fp8e5m2)
