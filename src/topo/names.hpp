// Names of devices in files and tables: "gpu0", "cpu1", "numa0", "nic2". Path names have a GPU's
// bare number (device_label()).
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "plait/topology.hpp"

namespace plait {

std::string device_name(const Device& device);
/// Parses a device name: "numa3" gives {host, 3}; none if the text is no device name.
std::optional<std::pair<DeviceKind, int>> parse_device_name(std::string_view name);
/// Returns the device named "3" (a GPU, or without GPUs a CPU), "gpu3" or "numa1"; -1 = none.
int device_of_label(const Topology& topology, std::string_view label);

/// Whether a mask has left out the last link from one GPU to another: the parameter "no_link.0.1".
bool is_left_out(const Topology& topology, int from, int to);
/// Notes that a mask has left out the last link from one GPU to another.
void leave_out(Topology& topology, int from, int to, const std::string& mask);

}  // namespace plait
