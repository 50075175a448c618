// all_reduce_rms_norm: on host memory an all_reduce and the norm behind it, on GPU memory the
// device side's.
#include <vector>

#include "comm/api/communicator_state.hpp"
#include "cpu/rms_norm.hpp"

namespace plait {

/// A rank with wrong arguments, or without memory for the sums, tells the peers, which wait in the
/// all_reduce.
void Communicator::all_reduce_rms_norm(const RmsNorm& norm, const RmsNormBuffers& buffers,
                                       const CallOptions& options) {
  std::vector<std::byte> sums;
  const std::optional<Error> failure = attempt([&] {
    check_norm(norm, buffers);
    sums.resize(input_bytes(norm));
  });
  if (failure) {
    refuse(failure->code(), reason_of(*failure));
    throw Error(*failure);
  }
  state_->run_call(all_reduce_of(norm, ranks()), buffers.input, sums.data(), options, &norm);
  if (norm.rows != 0) rms_norm(norm, sums.data(), buffers);
}

void Communicator::enqueue_all_reduce_rms_norm(const RmsNorm& norm, const RmsNormBuffers& buffers,
                                               void* stream, const CallOptions& options) {
  with_prefix(state_->about, [&] {
    const std::unique_lock<std::mutex> lock = state_->host->begin_on_device(CallKind::collective);
    state_->device->require();
    check_norm(norm, buffers);
    state_->device->enqueue(norm, buffers, stream, options);
  });
}

}  // namespace plait
