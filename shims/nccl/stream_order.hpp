// Calls of one communicator run one after the other, whatever streams they are on and whoever
// serves them: NCCL promises it, and kernels of plait and of NCCL that wait on one GPU for their
// peers could otherwise hold each other up. Calls that only NCCL runs it orders itself, so those of
// a communicator that plait never served cost nothing, nor does one stream; else, from the second
// stream on, an event a call.
#pragma once
#include <atomic>
#include <mutex>

#include "exec/cuda/call_order.hpp"
#include "shims/nccl/engine.hpp"

namespace plait::nccl {

class StreamOrder {
 public:
  /// What plait puts on `stream` goes on behind the communicator's earlier calls.
  void before_served(Marker& marker, Stream stream) {
    if (!has_served_.load(std::memory_order_acquire)) serve_first();
    before(marker, stream);
  }
  void after_served(Marker& marker, Stream stream) { after(marker, stream); }
  /// The same of a call that NCCL runs, now that it is handed over: in a group, at its end.
  void before_passed(Marker& marker, Stream stream) {
    if (has_served_.load(std::memory_order_acquire)) return before(marker, stream);
    if (!has_passed_.load(std::memory_order_relaxed) ||
        passed_.load(std::memory_order_relaxed) != stream)
      pass_first(marker, stream);
  }
  void after_passed(Marker& marker, Stream stream) {
    if (has_served_.load(std::memory_order_acquire)) after(marker, stream);
  }

 private:
  /// Without the lock: nearly all communicators see one stream.
  bool is_only(Stream stream) const {
    return has_only_.load(std::memory_order_acquire) &&
           only_.load(std::memory_order_relaxed) == stream;
  }
  void before(Marker& marker, Stream stream) {
    if (!is_only(stream)) before_locked(marker, stream);
  }
  void after(Marker& marker, Stream stream) {
    if (!is_only(stream)) after_locked(marker, stream);
  }
  void pass_first(Marker& marker, Stream stream);
  void serve_first();
  void before_locked(Marker& marker, Stream stream);
  void after_locked(Marker& marker, Stream stream);

  std::atomic<bool> has_served_{false};
  std::atomic<bool> has_passed_{false};
  std::atomic<Stream> passed_{nullptr};  // of the last passed call before the first served one
  std::atomic<bool> has_only_{false};
  std::atomic<Stream> only_{nullptr};
  std::mutex guard_;
  cuda::CallOrder<Marker, Stream> order_;
};

}  // namespace plait::nccl
