// Without MPS, processes take turns on a GPU and each uses the whole GPU; under MPS their kernels
// run side by side. A count of MPS clients would come too late: kernels of the first client may be
// waiting when the second client starts.
#include "gpu/device/neighbours.hpp"

#include "base/env.hpp"

namespace plait::cuda {
namespace {

constexpr int kAttributeMpsEnabled = 133;  // Unknown to older drivers.

}  // namespace

bool Neighbours::shares_with_processes(Device device) const noexcept {
  int enabled = 0;
  if (driver_.device_attribute(&enabled, kAttributeMpsEnabled, device) == kSuccess)
    return enabled != 0;
  return !foreign_env("CUDA_MPS_PIPE_DIRECTORY").empty();  // Older drivers do not report MPS.
}

void Neighbours::add(Device device, DeviceState* state, Stream stream) {
  const std::lock_guard<std::mutex> hold(guard_);
  on_[device].insert(state);
  require(publish(device, stream), "memory_set_async");
}

void Neighbours::remove(Device device, DeviceState* state, Stream stream) noexcept {
  const std::lock_guard<std::mutex> hold(guard_);
  if (on_[device].erase(state) != 0)
    (void)publish(device, stream);  // A stale "has neighbour" is safe.
}

Result Neighbours::publish(Device device, Stream stream) noexcept {
  const std::set<DeviceState*>& all = on_[device];
  const bool has_neighbour = all.size() > 1 || shares_with_processes(device);
  const RelaxedCaptureMode relaxed;
  Result result = kSuccess;
  for (DeviceState* state : all) {
    const auto at = reinterpret_cast<DevicePointer>(&state->has_neighbour);
    const Result one =
        driver_.memory_set_async(at, has_neighbour ? 1 : 0, sizeof state->has_neighbour, stream);
    if (result == kSuccess) result = one;
  }
  const Result ended = driver_.stream_synchronize(stream);
  return result == kSuccess ? ended : result;
}

Neighbours& neighbours() {
  static auto* const only = new Neighbours(api());
  return *only;
}

}  // namespace plait::cuda
