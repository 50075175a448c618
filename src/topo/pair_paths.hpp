// A pair of devices -> its direct paths alone, or the one path of a kind that an op goes by. Most
// ops go by a direct one, and looking for relays and host memory as well takes many times as long.
#pragma once
#include <vector>

#include "plait/topology.hpp"

namespace plait {

/// Those of paths_between() that are one link between two devices, in its order; empty where there
/// is none, or where the two are one.
std::vector<Path> direct_paths(const Topology& topology, int src_device, int dst_device);
/// The best of them; Error(unsupported) naming the pair where there is none.
Path direct_path(const Topology& topology, int src_device, int dst_device);
/// The best path of two hops through host memory; Error(unsupported) likewise.
Path host_path(const Topology& topology, int src_device, int dst_device);

}  // namespace plait
