// Devices <-> the names files and tables use: "gpu0", "cpu1", "numa0", "nic2".
// Path names write a GPU as its bare number (device_label); everything else reads the same.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "plait/topology.hpp"

namespace plait {

std::string device_name(const Device& device);
/// "numa3" -> {host, 3}; nothing where the text is no device name.
std::optional<std::pair<DeviceKind, int>> parse_device_name(std::string_view name);
/// The device that "3" (a GPU; where there are none a CPU), "gpu3" or "numa1" means; -1 = none.
int device_of_label(const Topology& topology, std::string_view label);

}  // namespace plait
