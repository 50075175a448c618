// Discovery from given sources, so that tests can pass machines of their own. discover() passes the
// system's.
#pragma once
#include "driver/nvml/api.hpp"
#include "driver/sysfs/sysfs.hpp"
#include "plait/topology.hpp"

namespace plait {

/// nvml null = no driver: the topology has the machine's CPU cores.
Topology discover_from(Nvml* nvml, const Sysfs& sysfs);

}  // namespace plait
