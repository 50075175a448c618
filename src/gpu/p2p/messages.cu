// Kernel of point-to-point messages: each block has a team that sends and a team that receives.
#include "gpu/p2p/message_bulk.cuh"

namespace plait::cuda {
namespace {

/// Moves a message by bulk copies if the buffer is aligned; false otherwise. Each endpoint decides
/// for itself.
__device__ bool in_bulk(MessageTeam& end, const MessageWork& work, unsigned count,
                        char* shared_bytes) {
#if PLAIT_SM_90
  if (end.args.bulk == 0 || !is_aligned(work.memory)) return false;
  MessageBulk{end, work, count, shared_bytes}.run();
  return true;
#else
  return false;
#endif
}

}  // namespace
}  // namespace plait::cuda

// 512 threads with 96 registers leave space on the SM for another communicator's small kernel. Code
// for later GPUs needs more.
#if __CUDA_ARCH__ < 1000
#define PLAIT_MESSAGE_REGISTERS __maxnreg__(96)
#else
#define PLAIT_MESSAGE_REGISTERS __launch_bounds__(2 * plait::cuda::kMessageTeamThreads, 1)
#endif

extern "C" __global__ void PLAIT_MESSAGE_REGISTERS
plait_messages(const __grid_constant__ plait::cuda::MessageArgs args) {
  using namespace plait::cuda;
  extern __shared__ __align__(128) char shared_bytes[];
  __shared__ MessageTeamShared shared[2];
  if (args.state == nullptr) return;  // Probe launch without work.
  wait_for_grid_before();
  if (args.notes != 0) return note_works(args);
  const unsigned side = threadIdx.x / kMessageTeamThreads;
  MessageTeam end(args, shared[side],
                  {side + 1, kMessageTeamThreads, threadIdx.x % kMessageTeamThreads}, blockIdx.x,
                  side);
  end.run([&](MessageTeam& self, const MessageWork& work, unsigned count) {
    return in_bulk(self, work, count, shared_bytes + side * kMessageTeamBytes);
  });
  let_next_grid_start();
}
