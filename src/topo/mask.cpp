// Removes masked links from a topology, and notes a device that may not relay as the parameter
// "no_relay.N", and a pair of GPUs without a link as "no_link.A.B". Tests and `--without` emulate a
// machine with a broken link by masks.
#include <algorithm>
#include <set>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/topology.hpp"
#include "topo/names.hpp"

namespace plait {
namespace {

constexpr std::size_t kMostShown = 24;

std::string what_exists(const Topology& topology) {
  std::set<std::string> masks;
  const auto label = [&](int device) { return device_label(topology, device); };
  const std::vector<int> ranks = rank_devices(topology);
  const auto is_rank = [&](int device) {
    return std::find(ranks.begin(), ranks.end(), device) != ranks.end();
  };
  for (const Link& link : topology.links) {
    const bool src_rank = is_rank(link.src), dst_rank = is_rank(link.dst);
    if (src_rank && dst_rank && link.src < link.dst)
      masks.insert(text("{}:{}-{}", name_of(link.kind), label(link.src), label(link.dst)));
    if (src_rank != dst_rank) masks.insert(text("host:{}", label(src_rank ? link.src : link.dst)));
  }
  for (const int device : ranks) masks.insert(text("relay:{}", label(device)));
  std::string listed;
  std::size_t shown = 0;
  for (const std::string& mask : masks) {
    if (++shown > kMostShown) return text("{}, and {} more", listed, masks.size() - kMostShown);
    listed += (listed.empty() ? "" : ", ") + mask;
  }
  return listed;
}

[[noreturn]] void refuse(const Topology& topology, const std::string& mask,
                         const std::string& why) {
  throw Error(ErrorCode::invalid_argument, text("mask \"{}\": {}; topology {} has {}", mask, why,
                                                topology.name, what_exists(topology)));
}

template <class Masked>
std::size_t drop(Topology& topology, Masked is_masked) {
  const auto end = std::remove_if(topology.links.begin(), topology.links.end(), is_masked);
  const auto dropped = static_cast<std::size_t>(topology.links.end() - end);
  topology.links.erase(end, topology.links.end());
  return dropped;
}

/// Drops the links of a pair: "0-1" in both directions, "0>1" in a single direction.
void drop_pair(Topology& topology, const std::string& mask, const std::string& kind,
               std::string_view pair) {
  const std::size_t mark = pair.find_first_of("->");
  if (mark == std::string_view::npos)
    refuse(topology, mask, "wanted two devices, as in nvlink:0-1 or nvlink:0>1");
  const int one = device_of_label(topology, pair.substr(0, mark));
  const int other = device_of_label(topology, pair.substr(mark + 1));
  if (one < 0 || other < 0) refuse(topology, mask, "no such device");
  const bool both_ways = pair[mark] == '-';
  const std::size_t dropped = drop(topology, [&](const Link& link) {
    if (kind != name_of(link.kind)) return false;
    return (link.src == one && link.dst == other) ||
           (both_ways && link.src == other && link.dst == one);
  });
  if (dropped == 0) refuse(topology, mask, "no such link");
  leave_out(topology, one, other, mask);
  if (both_ways) leave_out(topology, other, one, mask);
}

void drop_host(Topology& topology, const std::string& mask, std::string_view label) {
  const int device = device_of_label(topology, label);
  if (device < 0) refuse(topology, mask, "no such device");
  const auto is_host = [&](int index) {
    return topology.devices[static_cast<std::size_t>(index)].kind == DeviceKind::host;
  };
  const std::size_t dropped = drop(topology, [&](const Link& link) {
    return (link.src == device && is_host(link.dst)) || (link.dst == device && is_host(link.src));
  });
  if (dropped == 0) refuse(topology, mask, "that device has no links to host memory");
}

void bar_relay(Topology& topology, const std::string& mask, std::string_view label) {
  const int device = device_of_label(topology, label);
  const std::vector<int> ranks = rank_devices(topology);
  if (std::find(ranks.begin(), ranks.end(), device) == ranks.end())
    refuse(topology, mask, "no such device");
  topology.parameters[text("no_relay.{}", device_label(topology, device))] = {
      1, text("--without {}", mask)};
}

std::string left_out(const Topology& topology, int from, int to) {
  return text("no_link.{}.{}", device_label(topology, from), device_label(topology, to));
}

}  // namespace

bool is_left_out(const Topology& topology, int from, int to) {
  return topology.parameters.contains(left_out(topology, from, to));
}

void leave_out(Topology& topology, int from, int to, const std::string& mask) {
  const auto is_gpu = [&](int device) {
    return topology.devices[static_cast<std::size_t>(device)].kind == DeviceKind::gpu;
  };
  if (is_gpu(from) && is_gpu(to) && find_link(topology, from, to) < 0)
    topology.parameters[left_out(topology, from, to)] = {1, text("--without {}", mask)};
}

Topology without(const Topology& topology, const std::vector<std::string>& masks) {
  Topology masked = topology;
  for (const std::string& mask : masks) {
    const std::size_t colon = mask.find(':');
    const std::string kind = mask.substr(0, colon);
    const std::string_view rest =
        colon == std::string::npos ? std::string_view() : std::string_view(mask).substr(colon + 1);
    const bool is_link =
        kind == "nvlink" || kind == "pcie" || kind == "bus" || kind == "shm" || kind == "net";
    if (is_link)
      drop_pair(masked, mask, kind, rest);
    else if (kind == "host")
      drop_host(masked, mask, rest);
    else if (kind == "relay")
      bar_relay(masked, mask, rest);
    else
      refuse(masked, mask, "wanted nvlink, pcie, bus, shm, net, host or relay, and a colon");
  }
  return masked;
}

}  // namespace plait
