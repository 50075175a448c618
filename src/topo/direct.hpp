// A pair of devices -> its direct paths alone. Most ops of a plan go by one, and looking for relays
// and host memory as well takes many times as long.
#pragma once
#include <vector>

#include "plait/topology.hpp"

namespace plait {

/// Those of paths_between() that are one link between two devices, in its order; empty where there
/// is none, or where the two are one.
std::vector<Path> direct_paths(const Topology& topology, int src_device, int dst_device);

}  // namespace plait
