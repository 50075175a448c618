// Events are reused in turn: a re-recorded event makes a wait longer, never shorter.
#include "comm/transport/nccl/side_stream.hpp"

#include <array>
#include <vector>

#include "driver/cuda/api.hpp"
#include "driver/cuda/primary.hpp"

namespace plait::nccl {
namespace {

class CudaSideStream : public SideStream {
 public:
  explicit CudaSideStream(int ordinal) : primary_(ordinal) {
    const cuda::RelaxedCaptureMode relaxed;
    const cuda::Current current(primary_.context());
    PLAIT_CUDA_CALL(stream_create, &side_, cuda::kStreamNonBlocking, 0);
    PLAIT_CUDA_CALL(event_create, &forked_, cuda::kEventDisableTiming);
    for (cuda::Event& mark : marks_)
      PLAIT_CUDA_CALL(event_create, &mark, cuda::kEventDisableTiming);
  }
  ~CudaSideStream() override {
    const cuda::RelaxedCaptureMode relaxed;
    if (cuda::api().context_push(primary_.context()) != cuda::kSuccess) return;
    cuda::api().stream_destroy(side_);
    cuda::api().event_destroy(forked_);
    for (const cuda::Event mark : marks_) cuda::api().event_destroy(mark);
    for (const cuda::DevicePointer one : scratch_) cuda::api().memory_free(one);
    cuda::Context popped = nullptr;
    cuda::api().context_pop(&popped);
  }
  cuda::Stream stream() override { return side_; }
  void fork(cuda::Stream main) override {
    const cuda::Current current(primary_.context());
    PLAIT_CUDA_CALL(event_record, forked_, main);
    PLAIT_CUDA_CALL(stream_wait_event, side_, forked_, 0);
  }
  void mark(int call) override {
    const cuda::Current current(primary_.context());
    PLAIT_CUDA_CALL(event_record, of(call), side_);
  }
  void join(cuda::Stream main, int call) override {
    const cuda::Current current(primary_.context());
    PLAIT_CUDA_CALL(stream_wait_event, main, of(call), 0);
  }
  void copy(void* dst, const void* src, std::uint64_t bytes, cuda::Stream main) override {
    const cuda::Current current(primary_.context());
    PLAIT_CUDA_CALL(memory_copy_async, reinterpret_cast<cuda::DevicePointer>(dst),
                    reinterpret_cast<cuda::DevicePointer>(src), bytes, main);
  }
  // A buffer that became too small is kept: calls and captured calls may still use the buffer.
  void* scratch(std::uint64_t bytes) override {
    if (bytes > scratch_bytes_) {
      const cuda::RelaxedCaptureMode relaxed;
      const cuda::Current current(primary_.context());
      cuda::DevicePointer fresh = 0;
      PLAIT_CUDA_CALL(memory_alloc, &fresh, bytes);
      scratch_.push_back(fresh);
      scratch_bytes_ = bytes;
    }
    return scratch_.empty() ? nullptr : reinterpret_cast<void*>(scratch_.back());
  }

 private:
  cuda::Event of(int call) const { return marks_[static_cast<std::size_t>(call) % marks_.size()]; }

  cuda::Primary primary_;
  cuda::Stream side_ = nullptr;
  cuda::Event forked_ = nullptr;
  std::array<cuda::Event, 8> marks_{};
  std::vector<cuda::DevicePointer> scratch_;
  std::uint64_t scratch_bytes_ = 0;
};

}  // namespace

std::unique_ptr<SideStream> cuda_side_stream(int ordinal) {
  return std::make_unique<CudaSideStream>(ordinal);
}

}  // namespace plait::nccl
