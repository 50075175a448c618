// Calls of one communicator run one after the other, whatever streams they are on and whoever
// serves them, in graphs too: NCCL promises it, and kernels of plait and of NCCL that wait on one
// GPU for their peers could otherwise hold each other up. Calls that only NCCL runs it orders
// itself, so until plait first serves one eager calls only leave word of where they end.
#pragma once
#include <mutex>

#include "exec/cuda/device/call_order.hpp"
#include "shims/nccl/engine.hpp"

namespace plait::nccl {

/// A CallOrder, of which a communicator has one, and what only this door needs: a lock, since calls
/// that are forwarded hold none of the engine's, and no waits before the first call that plait
/// serves.
class StreamOrder {
 public:
  using Position = cuda::StreamPlace;
  /// Before the first call.
  void mix_graphs(bool mixes) { order_.mix_graphs(mixes); }

  /// What plait puts on `stream` goes on behind the communicator's earlier calls.
  Position before_served(Marker& marker, Stream stream) {
    const std::lock_guard<std::mutex> hold(guard_);
    has_served_ = true;
    return order_.before(marker, stream);
  }
  /// The same of a call that NCCL runs, now that it is handed over: in a group, at its end.
  Position before_forwarded(Marker& marker, Stream stream) {
    const std::lock_guard<std::mutex> hold(guard_);
    return order_.before(marker, stream, has_served_);
  }
  /// The call has been enqueued.
  void after(Marker& marker, Stream stream, const Position& position) {
    const std::lock_guard<std::mutex> hold(guard_);
    order_.after(marker, stream, position);
  }
  /// False where the marker does not say when all calls have ended.
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
