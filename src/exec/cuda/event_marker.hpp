// A CallOrder's marker on a GPU: one event, in the current context.
#pragma once
#include "driver/cuda/api.hpp"

namespace plait::cuda {

class EventMarker {
 public:
  void open() { PLAIT_CUDA_CALL(event_create, &end_, kEventDisableTiming); }
  void close() noexcept {
    if (end_ != nullptr) api().event_destroy(end_);
    end_ = nullptr;
  }
  bool capturing(Stream stream) const {
    int status = kCaptureNone;
    PLAIT_CUDA_CALL(stream_is_capturing, stream, &status);
    return status != kCaptureNone;
  }
  void record(Stream stream) { PLAIT_CUDA_CALL(event_record, end_, stream); }
  void wait(Stream stream) { PLAIT_CUDA_CALL(stream_wait_event, stream, end_, 0); }

 private:
  Event end_ = nullptr;
};

}  // namespace plait::cuda
