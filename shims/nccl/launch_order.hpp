// NCCL_LAUNCH_ORDER_IMPLICIT=1, or launchOrderImplicit in the configurations of communicators:
// calls of all these communicators on a GPU run in the order in which the process launches them, so
// that programs with several need no order of their own to keep kernels that wait for peers from
// standing in each other's way. NCCL does so for its own calls; here plait's are among them. One
// after the other, as NCCL has it before CUDA 12.3.
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
  /// What comes on `stream` goes on behind all that the GPU's communicators were handed before.
  void before(Stream stream) { (void)order_.before_served(*marker_, stream); }
  /// The call has been enqueued.
  void after(Stream stream) { order_.after(*marker_, stream, marker_->place(stream)); }

 private:
  std::unique_ptr<Marker> marker_;
  StreamOrder order_;
};

/// The GPU's, kept as long as one of its communicators has it; null where NCCL was not told to: by
/// the variable, else by what is `configured`.
std::shared_ptr<LaunchOrder> launch_order(int device, bool configured);

}  // namespace plait::nccl
