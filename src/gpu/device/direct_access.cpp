// Reads NCCL_P2P_DISABLE and NCCL_P2P_LEVEL as NCCL does, asks NVML for the distance of GPUs, and
// the driver for access.
#include "gpu/device/direct_access.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <utility>

#include "base/nccl_settings.hpp"
#include "base/text.hpp"
#include "driver/cuda/api.hpp"
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

/// Returns the driver's device with this uuid; none if this process does not see the GPU.
std::optional<Device> device_of(const std::string& uuid) {
  Device device = 0;
  for (int ordinal = 0; ordinal < device_count(); ++ordinal)
    if (uuid_of(ordinal) == uuid && api().device_get(&device, ordinal) == kSuccess) return device;
  return std::nullopt;
}

/// Returns "", or why the GPUs of two ranks do not address each other.
std::string why_not_between(const DirectAccess& allowed, std::pair<std::size_t, std::size_t> ranks,
                            const std::vector<std::string>& uuids, const Measure& distance,
                            const Addresses& addresses) {
  const auto& [rank, peer] = ranks;
  if (rank == peer) return "";
  const std::string pair = text("the GPUs of ranks {} and {}", rank, peer);
  if (!addresses(uuids[rank], uuids[peer]))
    return text("the driver grants no direct access between {}", pair);
  if (allowed.most >= Distance::sys) return "";
  if (allowed.most == Distance::loc)
    return text("{} forbids direct access between {}", allowed.said, pair);
  const Distance found = distance(uuids[rank], uuids[peer]);
  if (found <= allowed.most) return "";
  return text("{} forbids direct access between {}, which are {} apart", allowed.said, pair,
              name_of(found));
}

}  // namespace

std::string name_of(Distance distance) { return kNames[static_cast<std::size_t>(distance)]; }

DirectAccess direct_access(const char* disable, const char* level) {
  if (disable != nullptr && nccl_number(disable) == 1) return {Distance::loc, "NCCL_P2P_DISABLE=1"};
  if (level == nullptr) return {};
  const std::string given = level;
  const std::string said = text("NCCL_P2P_LEVEL={}", given);
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
    return static_cast<int>(std::find_if(all.begin(), all.end(),
                                         [&](const GpuFacts& gpu) { return gpu.uuid == wanted; }) -
                            all.begin());
  };
  const int one = at(uuid), two = at(other), count = static_cast<int>(all.size());
  if (one == count || two == count) return Distance::sys;
  return nvml->nvlink_peers(one, two) ? Distance::nvl : of_pci(nvml->pci_distance(one, two));
}

bool address_each_other(const std::string& uuid, const std::string& other) {
  const std::optional<Device> one = device_of(uuid), two = device_of(other);
  int can = 1;
  if (!one || !two || api().device_can_access_peer(&can, *one, *two) != kSuccess) return true;
  return can != 0;
}

std::string why_no_direct_access(const DirectAccess& allowed, int rank,
                                 const std::vector<std::string>& uuids, const Measure& distance,
                                 const Addresses& addresses) {
  for (std::size_t peer = 0; peer < uuids.size(); ++peer)
    if (const std::string why = why_not_between(allowed, {static_cast<std::size_t>(rank), peer},
                                                uuids, distance, addresses);
        !why.empty())
      return why;
  return "";
}

std::string direct_peers(const DirectAccess& allowed, int rank,
                         const std::vector<std::string>& uuids, const Measure& distance,
                         const Addresses& addresses) {
  std::string direct;
  for (std::size_t peer = 0; peer < uuids.size(); ++peer)
    direct +=
        why_not_between(allowed, {static_cast<std::size_t>(rank), peer}, uuids, distance, addresses)
                .empty()
            ? '1'
            : '0';
  return direct;
}

}  // namespace plait::cuda
