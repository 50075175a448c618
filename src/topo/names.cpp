// Formats and parses names of devices by one table of prefixes. A host's memory is named after the
// NUMA node.
#include "topo/names.hpp"

#include <charconv>

#include "base/text.hpp"

namespace plait {
namespace {

struct Prefix {
  std::string_view text;
  DeviceKind kind;
};
constexpr Prefix kPrefixes[] = {{"gpu", DeviceKind::gpu},
                                {"cpu", DeviceKind::cpu},
                                {"numa", DeviceKind::host},
                                {"nic", DeviceKind::nic}};

}  // namespace

std::string device_name(const Device& device) {
  for (const Prefix& prefix : kPrefixes)
    if (prefix.kind == device.kind) return text("{}{}", prefix.text, device.index);
  return text("unknown{}", device.index);
}

std::optional<std::pair<DeviceKind, int>> parse_device_name(std::string_view name) {
  for (const Prefix& prefix : kPrefixes) {
    if (!name.starts_with(prefix.text)) continue;
    const std::string_view digits = name.substr(prefix.text.size());
    int index = -1;
    const char* const last = digits.data() + digits.size();
    const auto [end, failed] = std::from_chars(digits.data(), last, index);
    const bool padded = digits.size() > 1 && digits.front() == '0';  // a device has a single name
    if (failed != std::errc() || end != last || index < 0 || padded) return std::nullopt;
    return std::pair{prefix.kind, index};
  }
  return std::nullopt;
}

int device_of_label(const Topology& topology, std::string_view label) {
  if (const auto named = parse_device_name(label))
    return find_device(topology, named->first, named->second);
  const auto bare = parse_device_name(text("gpu{}", label));
  if (!bare) return -1;
  const int gpu = find_device(topology, DeviceKind::gpu, bare->second);
  return gpu >= 0 ? gpu : find_device(topology, DeviceKind::cpu, bare->second);
}

}  // namespace plait
