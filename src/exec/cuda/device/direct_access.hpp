// Whether GPUs may address each other's memory, which all of plait's calls on GPUs do. People turn
// that off with NCCL's variables where it is broken (an IOMMU, PCIe's access control), so these
// count here too.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace plait::cuda {

/// How far two GPUs are apart, nearest first, by NCCL's names.
enum class Distance : int { loc, nvl, nvb, c2c, pix, pxb, p2c, pxn, phb, sys };
std::string name_of(Distance distance);

/// What NCCL_P2P_DISABLE and NCCL_P2P_LEVEL allow: GPUs that are this far apart, or nearer.
struct DirectAccess {
  Distance most = Distance::sys;
  std::string said;  ///< by which setting; empty = nothing was said
};
/// From the values of the two; null = not set. As NCCL has it, 1 disables whatever the level, old
/// numbers stand for levels, and what is neither a name nor a number says nothing.
DirectAccess direct_access(const char* disable, const char* level);
/// As this process was told (base/nccl_settings.hpp).
DirectAccess direct_access();

/// Of two GPUs by what NVML calls them; sys where it does not know one of them.
Distance distance_between(const std::string& uuid, const std::string& other);

/// Error(unsupported) where a rank may not address a peer's memory. uuids: by rank.
using Measure = std::function<Distance(const std::string& uuid, const std::string& other)>;
void require_direct_access(const DirectAccess& allowed, int rank,
                           const std::vector<std::string>& uuids, const Measure& distance);

}  // namespace plait::cuda
