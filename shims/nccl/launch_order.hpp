// Orders the calls of all communicators on a GPU that request it by NCCL_LAUNCH_ORDER_IMPLICIT=1 or
// launchOrderImplicit. Calls run in the order of the process's launches, so kernels of different
// communicators cannot block each other while waiting for peers. NCCL orders its own calls;
// LaunchOrder includes plait's. Calls run in turn without overlap, as with NCCL before CUDA 12.3.
#pragma once
#include <memory>
#include <mutex>

#include "shims/nccl/stream_order.hpp"

namespace plait::nccl {

class LaunchOrder {
 public:
  LaunchOrder(std::unique_ptr<Marker> marker, bool mixes_graphs) : marker_(std::move(marker)) {
    order_.mix_graphs(mixes_graphs);
  }
  /// Makes later work on `stream` wait for all earlier calls of the GPU's communicators.
  void before(Stream stream) { (void)order_.before_served(*marker_, stream); }
  /// Records the end of a call, after enqueuing.
  void after(Stream stream) { order_.after(*marker_, stream, marker_->place(stream)); }

 private:
  std::unique_ptr<Marker> marker_;
  StreamOrder order_;
};

/// Returns the GPU's launch order, alive as long as any communicator on the GPU. Returns null if
/// neither the variable nor the configuration requests an order.
std::shared_ptr<LaunchOrder> launch_order(int device, bool configured);

}  // namespace plait::nccl
