// Tracks which ranks share a GPU, since their kernels must fit side by side
// (DeviceState::has_neighbour).
#pragma once
#include <map>
#include <mutex>
#include <set>

#include "driver/cuda/api.hpp"
#include "gpu/abi/call_args.hpp"

namespace plait::cuda {

/// The ranks of this process by GPU; each rank's state says whether the rank may be alone. Under
/// MPS no rank counts as alone, since kernels of unknown processes run beside ours.
class Neighbours {
 public:
  explicit Neighbours(const Api& driver) : driver_(driver) {}
  /// Called in the GPU's context, with a stream of the caller.
  void add(Device device, DeviceState* state, Stream stream);
  void remove(Device device, DeviceState* state, Stream stream) noexcept;

 private:
  bool shares_with_processes(Device device) const noexcept;
  Result publish(Device device, Stream stream) noexcept;

  const Api& driver_;
  std::mutex guard_;
  std::map<Device, std::set<DeviceState*>> on_;
};

/// A single object per process, never destroyed.
Neighbours& neighbours();

}  // namespace plait::cuda
