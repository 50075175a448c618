// Paths of a pair of devices by kind. Most ops take a direct path; paths_between() also searches
// relays and host memory, and takes many times as long.
#pragma once
#include <vector>

#include "plait/topology.hpp"

namespace plait {

/// Returns the paths of paths_between() that are a single link, in the same order; empty without a
/// path, or if the devices are the same.
std::vector<Path> direct_paths(const Topology& topology, int src_device, int dst_device);
/// Returns the best direct path; Error(unsupported) with the pair if none exists.
Path direct_path(const Topology& topology, int src_device, int dst_device);
/// Returns the best path of two hops through host memory; Error(unsupported) with the pair if none
/// exists.
Path host_path(const Topology& topology, int src_device, int dst_device);
/// Returns the best path through host memory, of one NUMA node or of two with the bus between;
/// Error(unsupported) with the pair if none exists.
Path any_host_path(const Topology& topology, int src_device, int dst_device);

}  // namespace plait
