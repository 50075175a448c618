// Names the machine of a tuning table. Communicators, the drop-in, `plait tune`, `plait plan` and
// `plait doctor` name tables by this function alone.
#pragma once
#include <string>
#include <vector>

#include "plait/topology.hpp"

namespace plait {

/// Fingerprint of the topology. If ranks have some GPUs only, their links and shared lanes are a
/// part of the name. through_host: arenas in host memory have a table of their own, since a machine
/// may take both ways (NCCL_P2P_DISABLE). topology: with all links, also if arenas lie in host
/// memory.
std::string tuning_machine(const Topology& topology, const std::vector<int>& devices,
                           bool through_host = false);

}  // namespace plait
