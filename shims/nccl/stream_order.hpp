// Runs the calls of a communicator in turn without overlap, on all streams and in graphs, whether
// plait or NCCL serves the call. NCCL promises that order, and kernels of plait and NCCL on a GPU
// that wait for peers could otherwise block each other. NCCL orders its own calls, so before the
// first call that plait serves, eager forwarded calls only record their end.
#pragma once
#include <mutex>

#include "gpu/device/call_order.hpp"
#include "shims/nccl/engine.hpp"

namespace plait::nccl {

/// A CallOrder with two additions for the drop-in: a lock, since forwarded calls do not hold the
/// engine's, and no waits before the first call that plait serves.
class StreamOrder {
 public:
  using Position = cuda::StreamPlace;
  /// Sets whether graphs are ordered with eager calls; before the first call.
  void mix_graphs(bool mixes) { order_.mix_graphs(mixes); }

  /// Orders a call of plait on `stream` behind the communicator's earlier calls.
  Position before_served(Marker& marker, Stream stream) {
    const std::lock_guard<std::mutex> hold(guard_);
    has_served_ = true;
    return order_.before(marker, stream);
  }
  /// Orders a call that NCCL runs, just before the forward; in a group, before ncclGroupEnd.
  Position before_forwarded(Marker& marker, Stream stream) {
    const std::lock_guard<std::mutex> hold(guard_);
    return order_.before(marker, stream, has_served_);
  }
  /// Records the end of a call, after enqueuing.
  void after(Marker& marker, Stream stream, const Position& position) {
    const std::lock_guard<std::mutex> hold(guard_);
    order_.after(marker, stream, position);
  }
  /// Notes that a call was refused: nothing was put on a stream.
  void cancel() {
    const std::lock_guard<std::mutex> hold(guard_);
    order_.cancel();
  }
  /// Returns whether the marker shows the end of all calls.
  bool knows_end() {
    const std::lock_guard<std::mutex> hold(guard_);
    return order_.knows_end();
  }

 private:
  std::mutex guard_;
  bool has_served_ = false;
  cuda::CallOrder<Marker, Stream> order_;
};

}  // namespace plait::nccl
