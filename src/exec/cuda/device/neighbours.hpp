// Who else may have kernels on this rank's GPU at the same time, so that they must fit beside each
// other (DeviceState::has_neighbour).
#pragma once
#include <map>
#include <mutex>
#include <set>

#include "driver/cuda/api.hpp"
#include "exec/cuda/device/call_args.hpp"

namespace plait::cuda {

/// The ranks of this process by GPU: each is told whether it may be the only one. Under MPS other
/// processes' kernels run beside ours, and they are not known here: there none is ever alone.
class Neighbours {
 public:
  explicit Neighbours(const Api& driver) : driver_(driver) {}
  /// In the GPU's context; the stream is the caller's own.
  void add(Device device, DeviceState* state, Stream stream);
  void remove(Device device, DeviceState* state, Stream stream) noexcept;

 private:
  bool shares_with_processes(Device device) const noexcept;
  Result publish(Device device, Stream stream) noexcept;

  const Api& driver_;
  std::mutex guard_;
  std::map<Device, std::set<DeviceState*>> on_;
};

/// The process's, never destroyed.
Neighbours& neighbours();

}  // namespace plait::cuda
