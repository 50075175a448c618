// Calls of one rank run one after the other, whatever streams they are on: they count by the same
// words. One stream costs nothing; from the second on, an event a call. Captured calls are not
// ordered: a graph has its own order, and no event may cross a capture's edge.
#pragma once
#include "driver/cuda/api.hpp"

namespace plait::cuda {

class CallOrder {
 public:
  /// In the current context.
  void open() { PLAIT_CUDA_CALL(event_create, &end_, kEventDisableTiming); }
  void close() noexcept {
    if (end_ != nullptr) api().event_destroy(end_);
    end_ = nullptr;
  }

  /// What comes on `stream` goes on behind earlier calls. The stream of an earlier call may have
  /// been destroyed, so it is touched once at most: when a second stream first turns up.
  void before(Stream stream) {
    if ((used_ && stream == last_) || capturing(stream)) return;
    if (used_ && !several_) {
      if (!capturing(last_)) PLAIT_CUDA_CALL(event_record, end_, last_);
      several_ = true;
    }
    if (several_) PLAIT_CUDA_CALL(stream_wait_event, stream, end_, 0);
    last_ = stream;
    used_ = true;
  }
  /// A call has been put on `stream`.
  void after(Stream stream) {
    if (several_ && !capturing(stream)) PLAIT_CUDA_CALL(event_record, end_, stream);
  }

 private:
  static bool capturing(Stream stream) {
    int status = kCaptureNone;
    PLAIT_CUDA_CALL(stream_is_capturing, stream, &status);
    return status != kCaptureNone;
  }

  Event end_ = nullptr;
  Stream last_ = nullptr;
  bool used_ = false;
  bool several_ = false;  // more than one stream has been seen
};

}  // namespace plait::cuda
