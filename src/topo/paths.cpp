// Finds the named paths of a pair of devices: direct, through host memory, over a relay device.
// Source of the kinds: Micro 2021 (direct and host together), WOTIR (relay GPUs).
#include <algorithm>
#include <limits>
#include <map>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/topology.hpp"
#include "topo/names.hpp"
#include "topo/pair_paths.hpp"

namespace plait {
namespace {

const std::string kNoRelay = "no_relay.";

const Link& link_at(const Topology& topology, int link) {
  return topology.links[static_cast<std::size_t>(link)];
}

const Device& device_at(const Topology& topology, int device) {
  return topology.devices.at(static_cast<std::size_t>(device));
}

bool is_direct(LinkKind kind) {
  return kind == LinkKind::nvlink || kind == LinkKind::shm || kind == LinkKind::net;
}

PathKind direct_kind(LinkKind kind) {
  if (kind == LinkKind::nvlink) return PathKind::nvlink;
  return kind == LinkKind::shm ? PathKind::shm : PathKind::net;
}

Path path_over(const Topology& topology, PathKind kind, int src, const std::vector<int>& links) {
  Path made;
  made.kind = kind;
  made.links = links;
  made.devices = {src};
  made.name = std::string(name_of(kind)) + ":" + device_label(topology, src);
  for (const int link : links) {
    made.devices.push_back(link_at(topology, link).dst);
    made.name += ">" + device_label(topology, made.devices.back());
  }
  return made;
}

/// The links of a pair with all other devices, found in a single pass. Detours consist of these
/// links.
class Neighbourhood {
 public:
  Neighbourhood(const Topology& topology, int src, int dst)
      : topology_(topology),
        out_(topology.devices.size(), -1),
        in_(topology.devices.size(), -1),
        src_(src),
        dst_(dst) {
    for (std::size_t i = 0; i < topology.links.size(); ++i) {
      const Link& link = topology.links[i];
      const int index = static_cast<int>(i);
      if (link.src == src && link.dst == dst) continue;
      if (link.src == src && usable(link, link.dst)) keep_faster(out_, link.dst, index);
      if (link.dst == dst && usable(link, link.src)) keep_faster(in_, link.src, index);
    }
  }

  std::vector<Path> host() const {
    std::vector<Path> paths;
    for (int at = 0; at < static_cast<int>(out_.size()); ++at)
      if (is_host(at) && out(at) >= 0 && in(at) >= 0)
        paths.push_back(path(PathKind::host, {out(at), in(at)}));
    return paths.empty() ? host_over_bus() : paths;
  }

  std::vector<Path> relay() const {
    std::vector<Path> paths;
    const DeviceKind kind = device_at(topology_, src_).kind;
    for (int at = 0; at < static_cast<int>(out_.size()); ++at) {
      if (out(at) < 0 || in(at) < 0 || device_at(topology_, at).kind != kind) continue;
      if (barred(at)) continue;
      paths.push_back(path(PathKind::relay, {out(at), in(at)}));
    }
    return paths;
  }

 private:
  bool is_host(int device) const { return device_at(topology_, device).kind == DeviceKind::host; }

  /// A host may be reached by any link; both hops of a relay need NVLink or shared memory.
  bool usable(const Link& link, int other) const {
    if (is_host(other)) return true;
    return link.kind == LinkKind::nvlink || link.kind == LinkKind::shm;
  }

  bool barred(int device) const {
    const auto any = topology_.parameters.lower_bound(
        kNoRelay);  // fast path: most topologies lack the parameter
    if (any == topology_.parameters.end() || !any->first.starts_with(kNoRelay)) return false;
    return topology_.parameters.count(kNoRelay + device_label(topology_, device)) > 0;
  }

  int out(int device) const { return out_[static_cast<std::size_t>(device)]; }
  int in(int device) const { return in_[static_cast<std::size_t>(device)]; }

  void keep_faster(std::vector<int>& best, int device, int link) const {
    int& kept = best[static_cast<std::size_t>(device)];
    if (kept < 0 || link_at(topology_, link).gb_per_s > link_at(topology_, kept).gb_per_s)
      kept = link;
  }

  /// Paths between GPUs of two sockets: to the first socket's memory, over the bus, from the
  /// second's.
  std::vector<Path> host_over_bus() const {
    std::map<std::pair<int, int>, int> buses;
    for (std::size_t i = 0; i < topology_.links.size(); ++i) {
      const Link& link = topology_.links[i];
      if (!is_host(link.src) || !is_host(link.dst)) continue;
      if (out(link.src) < 0 || in(link.dst) < 0) continue;
      const auto [kept, is_new] = buses.try_emplace({link.src, link.dst}, static_cast<int>(i));
      if (!is_new && link.gb_per_s > link_at(topology_, kept->second).gb_per_s)
        kept->second = static_cast<int>(i);
    }
    std::vector<Path> paths;
    for (const auto& [ends, bus] : buses)
      paths.push_back(path(PathKind::host, {out(ends.first), bus, in(ends.second)}));
    return paths;
  }

  Path path(PathKind kind, const std::vector<int>& links) const {
    return path_over(topology_, kind, src_, links);
  }

  const Topology& topology_;
  std::vector<int> out_,
      in_;  // by device: fastest link from src to the device, and from the device to dst; -1 = none
  int src_, dst_;
};

void sort_by_speed(const Topology& topology, std::vector<Path>& paths) {
  if (paths.size() < 2) return;
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < paths.size(); ++i)
    order.push_back({-path_gb_per_s(topology, paths[i]), i});
  std::sort(order.begin(), order.end());
  std::vector<Path> sorted;
  for (const auto& [speed, index] : order) sorted.push_back(std::move(paths[index]));
  paths = std::move(sorted);
}

[[noreturn]] void no_such_path(const Topology& topology, std::string_view name,
                               const std::string& why) {
  throw Error(ErrorCode::invalid_argument,
              text("no path \"{}\" in topology {}: {}; `plait topo` lists the paths", name,
                   topology.name, why));
}

[[noreturn]] void not_joined(const Topology& topology, const char* by, int src, int dst) {
  throw Error(ErrorCode::unsupported,
              text("wanted {} from {} to {}, topology {} has none", by, device_label(topology, src),
                   device_label(topology, dst), topology.name));
}

}  // namespace

std::vector<Path> direct_paths(const Topology& topology, int src_device, int dst_device) {
  if (src_device == dst_device) return {};
  device_at(topology, src_device);  // throws if the device is missing
  device_at(topology, dst_device);
  std::map<LinkKind, int> fastest;
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    const Link& link = topology.links[i];
    if (link.src != src_device || link.dst != dst_device || !is_direct(link.kind)) continue;
    const auto [kept, is_new] = fastest.try_emplace(link.kind, static_cast<int>(i));
    if (!is_new && link.gb_per_s > link_at(topology, kept->second).gb_per_s)
      kept->second = static_cast<int>(i);
  }
  std::vector<Path> paths;
  for (const auto& [kind, link] : fastest)
    paths.push_back(path_over(topology, direct_kind(kind), src_device, {link}));
  sort_by_speed(topology, paths);
  return paths;
}

std::vector<Path> paths_between(const Topology& topology, int src_device, int dst_device) {
  if (src_device == dst_device) {
    const std::string label = device_label(topology, src_device);
    return {Path{PathKind::local, {src_device}, {}, text("local:{}", label)}};
  }
  std::vector<Path> paths = direct_paths(topology, src_device, dst_device);
  const Neighbourhood near(topology, src_device, dst_device);
  std::vector<Path> others = near.host();
  for (Path& path : near.relay()) others.push_back(std::move(path));
  sort_by_speed(topology, others);
  for (Path& path : others) paths.push_back(std::move(path));
  return paths;
}

Path direct_path(const Topology& topology, int src_device, int dst_device) {
  const std::vector<Path> paths = direct_paths(topology, src_device, dst_device);
  if (!paths.empty()) return paths.front();
  not_joined(topology, "a direct link", src_device, dst_device);
}

Path host_path(const Topology& topology, int src_device, int dst_device) {
  for (const Path& path : paths_between(topology, src_device, dst_device))
    if (path.kind == PathKind::host && path.links.size() == 2) return path;
  not_joined(topology, "a path through the memory of one NUMA node", src_device, dst_device);
}

Path any_host_path(const Topology& topology, int src_device, int dst_device) {
  for (Path& path : paths_between(topology, src_device, dst_device))
    if (path.kind == PathKind::host) return std::move(path);
  not_joined(topology, "a path through host memory", src_device, dst_device);
}

Path find_path(const Topology& topology, std::string_view name) {
  const std::size_t colon = name.find(':');
  if (colon == std::string_view::npos)
    no_such_path(topology, name, "wanted KIND:DEVICE>DEVICE, as in nvlink:0>3");
  std::vector<int> devices;
  for (std::size_t begin = colon + 1; begin <= name.size();) {
    const std::size_t end = std::min(name.find('>', begin), name.size());
    const std::string_view label = name.substr(begin, end - begin);
    devices.push_back(device_of_label(topology, label));
    if (devices.back() < 0) no_such_path(topology, name, text("no device \"{}\"", label));
    begin = end + 1;
  }
  for (Path& path : paths_between(topology, devices.front(), devices.back()))
    if (path.devices == devices && name.substr(0, colon) == name_of(path.kind))
      return std::move(path);
  no_such_path(topology, name, "its devices are not joined so");
}

namespace {

/// Throws Error(invalid_argument) for a path of another topology: its hops are no links between its
/// devices here.
void check_path(const Topology& topology, const Path& path) {
  for (std::size_t hop = 0; hop < path.links.size(); ++hop) {
    const auto at = static_cast<std::size_t>(path.links[hop]);
    const bool joins = at < topology.links.size() && hop + 1 < path.devices.size() &&
                       topology.links[at].src == path.devices[hop] &&
                       topology.links[at].dst == path.devices[hop + 1];
    if (!joins)
      throw Error(
          ErrorCode::invalid_argument,
          text("path {}: wanted a path of topology {}, found a path whose hop {} is no link "
               "there; take a path from paths_between() of this topology",
               path.name, topology.name, hop));
  }
}

}  // namespace

double path_gb_per_s(const Topology& topology, const Path& path) {
  check_path(topology, path);
  if (path.links.empty()) {
    // A copy inside a memory reads and writes that memory.
    const double memory = parameter(topology, "gpu_memory_gb_per_s", 0) / 2;
    const double copy = parameter(topology, "cpu_copy_gb_per_s", memory);
    return copy > 0 ? copy : std::numeric_limits<double>::infinity();
  }
  double speed = std::numeric_limits<double>::infinity();
  std::map<int, int> draws;  // hops over the same resource share the speed
  for (const int link : path.links) {
    speed = std::min(speed, topology.links.at(static_cast<std::size_t>(link)).gb_per_s);
    for (const int resource : link_at(topology, link).resources) ++draws[resource];
  }
  for (const auto& [resource, count] : draws) {
    const Resource& drawn = topology.resources.at(static_cast<std::size_t>(resource));
    speed = std::min(speed, drawn.gb_per_s / count);
  }
  return speed;
}

double path_latency_ns(const Topology& topology, const Path& path) {
  check_path(topology, path);
  double sum_ns = 0;
  for (const int link : path.links)
    sum_ns += topology.links.at(static_cast<std::size_t>(link)).latency_ns;
  return sum_ns;
}

}  // namespace plait
