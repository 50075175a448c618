// Queries of a topology: devices, links and labels, and problems() that checks the value.
#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "base/text.hpp"
#include "plait/topology.hpp"
#include "topo/parameters.hpp"

namespace plait {

const char* name_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::gpu: return "gpu";
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::host: return "host";
    case DeviceKind::nic: return "nic";
  }
  return "unknown";
}

const char* name_of(LinkKind kind) {
  switch (kind) {
    case LinkKind::nvlink: return "nvlink";
    case LinkKind::pcie: return "pcie";
    case LinkKind::bus: return "bus";
    case LinkKind::shm: return "shm";
    case LinkKind::net: return "net";
  }
  return "unknown";
}

const char* name_of(PathKind kind) {
  switch (kind) {
    case PathKind::local: return "local";
    case PathKind::nvlink: return "nvlink";
    case PathKind::relay: return "relay";
    case PathKind::host: return "host";
    case PathKind::shm: return "shm";
    case PathKind::net: return "net";
  }
  return "unknown";
}

int find_device(const Topology& topology, DeviceKind kind, int index) {
  for (std::size_t i = 0; i < topology.devices.size(); ++i)
    if (topology.devices[i].kind == kind && topology.devices[i].index == index)
      return static_cast<int>(i);
  return -1;
}

std::vector<int> rank_devices(const Topology& topology) {
  std::vector<int> gpus, cpus;
  for (std::size_t i = 0; i < topology.devices.size(); ++i) {
    if (topology.devices[i].kind == DeviceKind::gpu) gpus.push_back(static_cast<int>(i));
    if (topology.devices[i].kind == DeviceKind::cpu) cpus.push_back(static_cast<int>(i));
  }
  return gpus.empty() ? cpus : gpus;
}

int find_link(const Topology& topology, int src_device, int dst_device) {
  int best = -1;
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    const Link& link = topology.links[i];
    if (link.src != src_device || link.dst != dst_device) continue;
    if (best < 0 || link.gb_per_s > topology.links[static_cast<std::size_t>(best)].gb_per_s)
      best = static_cast<int>(i);
  }
  return best;
}

std::string device_label(const Topology& topology, int device) {
  const Device& found = topology.devices.at(static_cast<std::size_t>(device));
  switch (found.kind) {
    case DeviceKind::gpu: return std::to_string(found.index);
    case DeviceKind::cpu: return "cpu" + std::to_string(found.index);
    case DeviceKind::host: return text("numa{}", found.index);
    case DeviceKind::nic: return text("nic{}", found.index);
  }
  return "unknown";
}

double parameter(const Topology& topology, std::string_view key, double otherwise) {
  const auto found = topology.parameters.find(std::string(key));
  return found == topology.parameters.end() ? otherwise : found->second.value;
}

namespace {

constexpr double kMostGbPerS = 1e6;  // a thousand times the speed of any link

std::string speed_problem(double gb_per_s) {
  if (std::isfinite(gb_per_s) && gb_per_s > 0 && gb_per_s <= kMostGbPerS) return {};
  return text(".gb_per_s: wanted a number > 0 and at most {}, found {}", kMostGbPerS, gb_per_s);
}

/// Returns the fault of a parameter's value by the unit at the end of its name; empty = none.
std::string value_problem(const std::string& key, double value) {
  // 0 is the default of this speed, and stands for the memory's.
  const bool is_speed = key.ends_with("_gb_per_s") && key != "kernel_copy_gb_per_s";
  const bool is_share = key.ends_with("_share"), is_norm = key.ends_with("_norm");
  if (is_share && !(value > 0 && value <= 1))
    return text("wanted a share > 0 and at most 1, found {}", value);
  if ((is_speed || is_norm) && !(std::isfinite(value) && value > 0))
    return text("wanted a number > 0, found {}", value);
  if (!std::isfinite(value) || value < 0) return text("wanted a number >= 0, found {}", value);
  return {};
}

void device_problems(const Topology& topology, std::vector<std::string>& found) {
  std::set<std::pair<DeviceKind, int>> seen;
  std::set<std::string> uuids;
  const bool has_hosts = std::any_of(topology.devices.begin(), topology.devices.end(),
                                     [](const Device& d) { return d.kind == DeviceKind::host; });
  for (std::size_t i = 0; i < topology.devices.size(); ++i) {
    const Device& device = topology.devices[i];
    const std::string place = text("devices[{}]", i);
    if (device.index < 0)
      found.push_back(text("{}.index: wanted >= 0, found {}", place, device.index));
    if (device.node < 0)
      found.push_back(text("{}.node: wanted >= 0, found {}", place, device.node));
    if (device.numa < -1)
      found.push_back(text("{}.numa: wanted >= -1, found {}", place, device.numa));
    if (device.numa >= 0 && has_hosts && find_device(topology, DeviceKind::host, device.numa) < 0)
      found.push_back(
          text("{}.numa: wanted the index of a host among devices, found {}", place, device.numa));
    if (!seen.insert({device.kind, device.index}).second)
      found.push_back(text("{}: a second {} {}", place, name_of(device.kind), device.index));
    for (const int near : device.affinity)
      if (near < 0 || near >= static_cast<int>(topology.devices.size()))
        found.push_back(text("{}.affinity: device {} is none of them", place, near));
    if (!device.uuid.empty() && !uuids.insert(device.uuid).second)
      found.push_back(text("{}.uuid: {} is another device's too", place, device.uuid));
  }
  if (rank_devices(topology).empty())
    found.push_back("devices: wanted at least one gpu or cpu, found none");
}

void resource_problems(const Topology& topology, std::vector<std::string>& found) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < topology.resources.size(); ++i) {
    const Resource& resource = topology.resources[i];
    const std::string place = text("resources[{}]", i);
    if (resource.name.empty()) found.push_back(text("{}.name: wanted a name, found none", place));
    if (!names.insert(resource.name).second)
      found.push_back(text("{}.name: a second resource \"{}\"", place, resource.name));
    if (const std::string wrong = speed_problem(resource.gb_per_s); !wrong.empty())
      found.push_back(place + wrong);
  }
}

void link_problems(const Topology& topology, std::vector<std::string>& found) {
  const int devices = static_cast<int>(topology.devices.size());
  const int resources = static_cast<int>(topology.resources.size());
  std::unordered_map<std::uint64_t, std::size_t> first_between;
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    const Link& link = topology.links[i];
    const auto add = [&](const std::string& wrong) {
      found.push_back(text("links[{}]{}", i, wrong));
    };
    for (const int end : {link.src, link.dst})
      if (end < 0 || end >= devices) add(text(": device {} is none of the {}", end, devices));
    if (link.src == link.dst) add(": begins and ends at one device");
    if (link.width < 1) add(text(".width: wanted >= 1, found {}", link.width));
    if (const std::string wrong = speed_problem(link.gb_per_s); !wrong.empty()) add(wrong);
    const auto ends = static_cast<std::uint64_t>(link.src) << 32 | static_cast<unsigned>(link.dst);
    const auto [before, is_first] = first_between.insert({ends, i});
    if (!is_first && topology.links[before->second] == link)
      add(text(": links[{}] a second time; give several links as the width of one",
               before->second));
    if (!std::isfinite(link.latency_ns) || link.latency_ns < 0)
      add(text(".latency_ns: wanted a number >= 0, found {}", link.latency_ns));
    for (auto drawn = link.resources.begin(); drawn != link.resources.end(); ++drawn) {
      if (*drawn < 0 || *drawn >= resources)
        add(text(": resource {} is none of the {}", *drawn, resources));
      if (std::find(link.resources.begin(), drawn, *drawn) != drawn)
        add(text(": draws on resource {} twice", *drawn));
    }
  }
}

}  // namespace

std::vector<std::string> problems(const Topology& topology) {
  std::vector<std::string> found;
  device_problems(topology, found);
  resource_problems(topology, found);
  link_problems(topology, found);
  for (const auto& [key, parameter] : topology.parameters) {
    if (const std::string wrong = unknown_parameter(key); !wrong.empty())
      found.push_back(text("parameters.{}: {}", key, wrong));
    else if (const std::string bad = value_problem(key, parameter.value); !bad.empty())
      found.push_back(text("parameters.{}: {}", key, bad));
  }
  return found;
}

}  // namespace plait
