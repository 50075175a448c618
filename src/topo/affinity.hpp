// The cores near a NUMA node, for the table's affinity column. Asked of the system when printing:
// a core list is a property of the machine one stands on, not of the value.
#pragma once
#include <string>

#include "plait/topology.hpp"

namespace plait {

/// Whether the topology was made from the machine this process runs on.
bool is_this_machine(const Topology& topology);
/// "0-31"; empty where the system tells none.
std::string cpus_of_numa(int numa);

}  // namespace plait
