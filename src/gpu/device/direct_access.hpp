// Whether GPUs may address each other's memory. Otherwise their arenas lie in host memory. plait
// obeys NCCL's variables, since users disable broken direct access (IOMMU, PCIe access control)
// with them.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace plait::cuda {

/// Distance of two GPUs, nearest first, with NCCL's names.
enum class Distance : int { loc, nvl, nvb, c2c, pix, pxb, p2c, pxn, phb, sys };
std::string name_of(Distance distance);

/// Limit set by NCCL_P2P_DISABLE and NCCL_P2P_LEVEL: GPUs at most this far apart.
struct DirectAccess {
  Distance most = Distance::sys;
  std::string said;  ///< Setting that gave the limit; empty = none.
};
/// Reads the two values; null = not set. As in NCCL, 1 disables whatever the level says, old
/// numbers stand for levels, and text of any other form is ignored.
DirectAccess direct_access(const char* disable, const char* level);
/// Limit of this process (base/nccl_settings.hpp).
DirectAccess direct_access();

/// Distance of two GPUs according to NVML; sys if a GPU is unknown to NVML.
Distance distance_between(const std::string& uuid, const std::string& other);

/// Whether the driver lets one GPU address another's memory; true if this process does not see both
/// GPUs, since mapping the memory then shows access.
bool address_each_other(const std::string& uuid, const std::string& other);

/// Returns "", or why this rank's GPU does not address a peer's memory. uuids: by rank.
using Measure = std::function<Distance(const std::string& uuid, const std::string& other)>;
using Addresses = std::function<bool(const std::string& uuid, const std::string& other)>;
std::string why_no_direct_access(const DirectAccess& allowed, int rank,
                                 const std::vector<std::string>& uuids, const Measure& distance,
                                 const Addresses& addresses);
/// Returns '1' by rank for each GPU that this rank's GPU addresses, and for itself; else '0'.
std::string direct_peers(const DirectAccess& allowed, int rank,
                         const std::vector<std::string>& uuids, const Measure& distance,
                         const Addresses& addresses);

}  // namespace plait::cuda
