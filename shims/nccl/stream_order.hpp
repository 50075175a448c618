// Calls of one communicator run one after the other, whatever streams they are on and whoever
// serves them: NCCL promises it, and kernels of plait and of NCCL that wait on one GPU for their
// peers could otherwise hold each other up. One stream costs nothing; from the second on, an event
// a call.
#pragma once
#include <mutex>

#include "exec/cuda/call_order.hpp"
#include "shims/nccl/engine.hpp"

namespace plait::nccl {

class StreamOrder {
 public:
  /// What comes on `stream` goes on behind the communicator's earlier calls.
  void before(Marker& marker, Stream stream);
  /// A call has been put on `stream`.
  void after(Marker& marker, Stream stream);

 private:
  std::mutex guard_;
  cuda::CallOrder<Marker, Stream> order_;
};

}  // namespace plait::nccl
