// Finds pairs of GPUs without a direct link, and GPUs without a link to host memory.
#include "comm/choose/reach.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "topo/pair_paths.hpp"

namespace plait {

std::string why_no_link(std::size_t from, std::size_t to) {
  return text("kernels go by links that masks have left out: rank {} has none to rank {}", from,
              to);
}

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
        reach.why_no_kernels = why_no_link(a, b);
  }
  return reach;
}

Topology without_others(const Topology& topology, const std::vector<int>& devices) {
  std::vector<std::string> others;
  for (const int device : rank_devices(topology))
    if (std::find(devices.begin(), devices.end(), device) == devices.end())
      others.push_back(text("relay:{}", device_label(topology, device)));
  return others.empty() ? topology : without(topology, others);
}

std::vector<int> islands_of(const std::vector<std::string>& direct) {
  std::vector<std::vector<std::size_t>> islands;
  std::vector<int> found(direct.size(), 0);
  bool joins = false;
  const auto are_joined = [&](std::size_t rank, std::size_t peer) {
    const std::string &mine = direct[rank], &theirs = direct[peer];
    return peer < mine.size() && mine[peer] == '1' && rank < theirs.size() && theirs[rank] == '1';
  };
  for (std::size_t rank = 0; rank < direct.size(); ++rank) {
    const auto home = std::find_if(islands.begin(), islands.end(), [&](const auto& island) {
      return std::all_of(island.begin(), island.end(),
                         [&](std::size_t peer) { return are_joined(rank, peer); });
    });
    joins |= home != islands.end();
    found[rank] = static_cast<int>(home - islands.begin());
    if (home == islands.end()) islands.emplace_back();
    islands[static_cast<std::size_t>(found[rank])].push_back(rank);
  }
  return joins ? found : std::vector<int>();
}

int device_of_gpu(const Topology& topology, const std::string& uuid, int ordinal) {
  const auto found = std::find_if(topology.devices.begin(), topology.devices.end(),
                                  [&](const Device& device) { return device.uuid == uuid; });
  return found != topology.devices.end() ? static_cast<int>(found - topology.devices.begin())
                                         : find_device(topology, DeviceKind::gpu, ordinal);
}

std::vector<std::string> requested_masks(const std::vector<std::string>& given, const Env& env) {
  return given.empty() ? split(env.without, ',') : given;
}

std::vector<std::string> masks_of(const std::vector<std::string>& masks, bool between_processes) {
  std::vector<std::string> found;
  for (const std::string& mask : masks)
    if (mask.starts_with("shm:") == between_processes) found.push_back(mask);
  return found;
}

}  // namespace plait
