// Orders the calls of all communicators on a GPU that request it by NCCL_LAUNCH_ORDER_IMPLICIT=1 or
// launchOrderImplicit. Calls run in the order in which the process launches them, so kernels of
// different communicators cannot block each other while they wait for peers. NCCL orders its own
// calls; LaunchOrder includes plait's. Calls run one after the other, as with NCCL before CUDA
// 12.3.
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
  /// Records the end of a call, after it is enqueued.
  void after(Stream stream) { order_.after(*marker_, stream, marker_->place(stream)); }

 private:
  std::unique_ptr<Marker> marker_;
  StreamOrder order_;
};

/// Returns the GPU's launch order, which lives as long as one of its communicators. Returns null if
/// neither the variable nor the configuration requests one.
std::shared_ptr<LaunchOrder> launch_order(int device, bool configured);

}  // namespace plait::nccl
