// Names of this host: equal names mean that processes can share memory.
#pragma once
#include <string>

namespace plait {

/// Returns the kernel's boot id, changed at each start of the machine.
std::string boot_id();
/// Returns a name shared by all processes that can map each other's memory: same boot of a machine,
/// same PID namespace.
std::string host_name();

}  // namespace plait
