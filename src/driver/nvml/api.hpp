// NVML facts for discovery, as plain values behind an interface, so that tests can emulate
// machines.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace plait {

/// Kind of device at the other end of an NVLink.
enum class NvlinkEnd { gpu, cpu, nvswitch, unknown };

struct NvlinkFacts {
  NvlinkEnd end = NvlinkEnd::unknown;
  std::string remote_address;  ///< PCI address of the GPU at the other end, in the kernel's format
  int version = 0;             ///< NVML's number of the NVLink version; 0 = unknown
};

struct GpuFacts {
  std::string model;
  std::string uuid;
  std::string address;               ///< in the kernel's format: "0000:06:00.0"
  std::vector<NvlinkFacts> nvlinks;  ///< active links
  bool tells_links = false;          ///< false = link facts are hidden, as in some virtual machines
};

/// Common ancestor of two GPUs on PCIe, nearest first.
enum class PciDistance { one_board, one_switch, switches, host_bridge, node, system, unknown };

class Nvml {
 public:
  virtual ~Nvml() = default;
  /// Returns the GPUs visible to this process, in NVML's order.
  virtual std::vector<GpuFacts> gpus() = 0;
  /// Whether GPU `one` may read GPU `other`'s memory.
  virtual bool peers(int one, int other) = 0;
  /// Whether the driver reports an NVLink between the two.
  virtual bool nvlink_peers(int one, int other) = 0;
  virtual PciDistance pci_distance(int one, int other) = 0;
};

/// Opens the installed library; null without a driver or a visible GPU.
std::unique_ptr<Nvml> open_nvml();

}  // namespace plait
