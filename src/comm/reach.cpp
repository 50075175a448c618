// Pairs without a direct link, and GPUs without one to host memory.
#include "comm/reach.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "topo/direct.hpp"

namespace plait {

Reach reach_of(const Topology& topology, const std::vector<int>& devices,
               const std::vector<std::string>& masks) {
  Reach reach;
  const bool about_links = std::any_of(masks.begin(), masks.end(), [](const std::string& mask) {
    return !mask.starts_with("host:") && !mask.starts_with("relay:");
  });
  for (std::size_t a = 0; a < devices.size(); ++a) {
    const auto has_host = [&](bool down) {
      return std::any_of(topology.links.begin(), topology.links.end(), [&](const Link& link) {
        const int end = down ? link.dst : link.src;
        return (down ? link.src : link.dst) == devices[a] &&
               topology.devices[static_cast<std::size_t>(end)].kind == DeviceKind::host;
      });
    };
    reach.host = reach.host && has_host(true) && has_host(false);
    for (std::size_t b = 0; b < devices.size(); ++b)
      if (about_links && a != b && reach.why_no_kernels.empty() &&
          direct_paths(topology, devices[a], devices[b]).empty())
        reach.why_no_kernels =
            text("kernels go by links that masks have left out: rank ", a, " has none to rank ", b);
  }
  return reach;
}

int device_of_gpu(const Topology& topology, const std::string& uuid, int ordinal) {
  const auto found = std::find_if(topology.devices.begin(), topology.devices.end(),
                                  [&](const Device& device) { return device.uuid == uuid; });
  return found != topology.devices.end() ? static_cast<int>(found - topology.devices.begin())
                                         : find_device(topology, DeviceKind::gpu, ordinal);
}

std::vector<std::string> masks_asked(const std::vector<std::string>& given, const Env& env) {
  return given.empty() ? split(env.without, ',') : given;
}

std::vector<std::string> masks_of(const std::vector<std::string>& masks, bool between_processes) {
  std::vector<std::string> found;
  for (const std::string& mask : masks)
    if (mask.starts_with("shm:") == between_processes) found.push_back(mask);
  return found;
}

}  // namespace plait
