// The cores of a NUMA node, for the affinity column of print(). Read from the system when printing:
// a topology value holds no core lists.
#pragma once
#include <string>

#include "plait/topology.hpp"

namespace plait {

/// Whether the topology is of the machine that this process runs on.
bool is_this_machine(const Topology& topology);
/// Returns cores as "0-31"; empty if the system has no list.
std::string cpus_of_numa(int numa);

}  // namespace plait
