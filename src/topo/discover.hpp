// The rule of discovery apart from its sources, so that tests give it machines that are not there.
#pragma once
#include "driver/nvml/api.hpp"
#include "driver/sysfs/sysfs.hpp"
#include "plait/topology.hpp"

namespace plait {

/// `nvml` null = no driver: then the machine is its CPU cores.
Topology discover_from(Nvml* nvml, const Sysfs& sysfs);

}  // namespace plait
