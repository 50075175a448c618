// Reads NCCL_P2P_DISABLE and NCCL_P2P_LEVEL as NCCL does, and asks NVML for the distance of GPUs.
#include "gpu/device/direct_access.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>

#include "base/nccl_settings.hpp"
#include "base/text.hpp"
#include "driver/nvml/api.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr std::array<const char*, 10> kNames = {"LOC", "NVL", "NVB", "C2C", "PIX",
                                                "PXB", "P2C", "PXN", "PHB", "SYS"};

Distance of_pci(PciDistance pci) {
  switch (pci) {
    case PciDistance::one_board:
    case PciDistance::one_switch: return Distance::pix;
    case PciDistance::switches: return Distance::pxb;
    case PciDistance::host_bridge:
    case PciDistance::node: return Distance::phb;
    default: return Distance::sys;
  }
}

}  // namespace

std::string name_of(Distance distance) { return kNames[static_cast<std::size_t>(distance)]; }

DirectAccess direct_access(const char* disable, const char* level) {
  if (disable != nullptr && nccl_number(disable) == 1) return {Distance::loc, "NCCL_P2P_DISABLE=1"};
  if (level == nullptr) return {};
  const std::string given = level;
  const std::string said = text("NCCL_P2P_LEVEL=", given);
  const auto named = std::find(kNames.begin(), kNames.end(), given);
  if (named != kNames.end()) return {static_cast<Distance>(named - kNames.begin()), said};
  if (given.empty() || given[0] < '0' || given[0] > '9') return {};
  constexpr std::array<Distance, 5> kOld = {Distance::loc, Distance::pix, Distance::pxb,
                                            Distance::phb, Distance::sys};
  const auto number = nccl_number(given);
  if (!number) return {};
  const auto most = static_cast<std::int64_t>(kOld.size() - 1);
  return {kOld[static_cast<std::size_t>(std::min(*number, most))], said};
}

DirectAccess direct_access() {
  const auto disable = nccl_setting("NCCL_P2P_DISABLE"), level = nccl_setting("NCCL_P2P_LEVEL");
  return direct_access(disable ? disable->c_str() : nullptr, level ? level->c_str() : nullptr);
}

Distance distance_between(const std::string& uuid, const std::string& other) {
  static std::mutex guard;
  const std::lock_guard<std::mutex> hold(guard);
  static Nvml* const nvml = open_nvml().release();
  if (nvml == nullptr) return Distance::sys;
  const std::vector<GpuFacts> all = nvml->gpus();
  const auto at = [&](const std::string& wanted) {
    return std::find_if(all.begin(), all.end(),
                        [&](const GpuFacts& gpu) { return gpu.uuid == wanted; }) -
           all.begin();
  };
  const auto one = static_cast<int>(at(uuid)), two = static_cast<int>(at(other));
  const auto count = static_cast<int>(all.size());
  if (one == count || two == count) return Distance::sys;
  return nvml->nvlink_peers(one, two) ? Distance::nvl : of_pci(nvml->pci_distance(one, two));
}

void require_direct_access(const DirectAccess& allowed, int rank,
                           const std::vector<std::string>& uuids, const Measure& distance) {
  if (allowed.most >= Distance::sys) return;
  const std::string& mine = uuids[static_cast<std::size_t>(rank)];
  for (std::size_t peer = 0; peer < uuids.size(); ++peer) {
    if (static_cast<int>(peer) == rank) continue;
    std::string apart;
    if (allowed.most > Distance::loc) {
      const Distance found = distance(mine, uuids[peer]);
      if (found <= allowed.most) continue;
      apart = text(", which are ", name_of(found), " apart");
    }
    throw Error(ErrorCode::unsupported,
                text(allowed.said, " forbids direct access between the GPUs of ranks ", rank,
                     " and ", peer, apart, ", which plait needs"));
  }
}

}  // namespace plait::cuda
