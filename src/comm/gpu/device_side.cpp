// Refuses calls on GPU memory of communicators without GPUs.
#include "comm/gpu/device_side.hpp"

#include "base/text.hpp"

namespace plait {

std::unique_ptr<DeviceSide> DeviceSide::far_pair(int peer, const HostSide&) {
  throw Error(ErrorCode::internal, text("rank {} is in no node of this communicator", peer));
}

void DeviceSide::enqueue(const RmsNorm&, const RmsNormBuffers&, void*, const CallOptions&) {
  throw Error(
      ErrorCode::unsupported,
      "all_reduce_rms_norm is served on the GPUs of one host: between hosts call all_reduce, "
      "and normalise behind it");
}

void DeviceSide::require_suspendable() const {
  throw Error(
      ErrorCode::unsupported,
      "suspend and resume: GPU memory of a communicator over several nodes stays; close the "
      "communicator instead");
}

void NoDevice::enqueue(const RmsNorm&, const RmsNormBuffers&, void*, const CallOptions&) {
  require();
}

void NoDevice::require() const {
  throw Error(ErrorCode::no_device,
              why_.empty()
                  ? "this communicator has no GPU: make it with a device (PLAIT_DEVICE), or "
                    "call adopt_device() on all ranks"
                  : text("this communicator has no GPU: {}", why_));
}

void NoDevice::enqueue(const Request&, const void*, void*, void*, const CallOptions&) { require(); }

void NoDevice::check() { require(); }

std::unique_ptr<DeviceSide> NoDevice::far_pair(int, const HostSide&) {
  return std::make_unique<NoDevice>("");
}

}  // namespace plait
