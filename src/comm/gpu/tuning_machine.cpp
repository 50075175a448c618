// Names a machine's tuning tables: one for all GPUs, and one for each subset with other links.
#include "comm/gpu/tuning_machine.hpp"

#include <algorithm>
#include <map>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "topo/names.hpp"

namespace plait {
namespace {

/// Links of the ranks' GPUs by rank, with the numbers of devices and shared lanes in the order in
/// which they appear: equal for GPUs that are linked alike.
std::string shape_of(const Topology& topology, const std::vector<int>& devices) {
  std::map<int, std::size_t> devices_seen, lanes_seen;
  const auto number = [](std::map<int, std::size_t>& seen, int one) {
    return seen.emplace(one, seen.size()).first->second;
  };
  std::string words;
  for (const int device : devices)
    words += text("{}|{};", topology.devices[static_cast<std::size_t>(device)].model,
                  number(devices_seen, device));
  for (const Link& link : topology.links) {
    const auto is_of_rank = [&](int end) {
      return std::find(devices.begin(), devices.end(), end) != devices.end();
    };
    const auto is_other_gpu = [&](int end) {
      return !is_of_rank(end) &&
             topology.devices[static_cast<std::size_t>(end)].kind == DeviceKind::gpu;
    };
    if (!(is_of_rank(link.src) || is_of_rank(link.dst)) || is_other_gpu(link.src) ||
        is_other_gpu(link.dst))
      continue;
    words += text("{}|{}|{}|{}", name_of(link.kind), number(devices_seen, link.src),
                  number(devices_seen, link.dst), link.width);
    for (const int lanes : link.resources) words += text("|{}", number(lanes_seen, lanes));
    words += ';';
  }
  return words;
}

}  // namespace

std::string tuning_machine(const Topology& topology, const std::vector<int>& devices,
                           bool through_host) {
  const std::string whole = fingerprint(topology), arenas = through_host ? "-host" : "";
  if (devices.size() >= rank_devices(topology).size()) return whole + arenas;
  const std::string shape = shape_of(topology, devices);
  return text("{}-{}{}", whole, hex(hash_bytes(shape.data(), shape.size())).substr(0, 8), arenas);
}

}  // namespace plait
