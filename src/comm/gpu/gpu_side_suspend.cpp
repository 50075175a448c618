// Suspends the GPU side of plait's own communicators: all ranks agree on the arenas that go, and no
// rank waits longer than arrive_s.
#include "base/text.hpp"
#include "comm/gpu/gpu_side.hpp"
#include "driver/cuda/api.hpp"

namespace plait {

/// Returns a check of the peers that throws Error(timeout) arrive_s from now on.
std::function<void()> GpuSide::peers_check_until_late(const char* step) {
  return [this, step, check = host_.peers_check(step), late = deadline_in(options_.arrive_s)] {
    check();
    if (now_ns() > late)
      throw Error(ErrorCode::timeout,
                  text("{}: a rank did not come within {} s", step, options_.arrive_s));
  };
}

void GpuSide::suspend() {
  if (calls_->agree_on_suspend(true, peers_check_until_late("the ranks suspend")))
    calls_->suspend();
}

void GpuSide::finish_work() const {
  const cuda::RelaxedCaptureMode relaxed;
  const cuda::Current current(calls_->rank().context());
  PLAIT_CUDA_CALL(context_synchronize);
  check_running();
}

}  // namespace plait
