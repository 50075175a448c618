// What discovery asks of NVIDIA's management library, as plain values behind one interface, so that
// tests play machines that are not there.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace plait {

/// What is at the other end of one NVLink.
enum class NvlinkEnd { gpu, cpu, nvswitch, unknown };

struct NvlinkFacts {
  NvlinkEnd end = NvlinkEnd::unknown;
  std::string remote_address;  ///< of the GPU at the other end, as the kernel writes it
  int version = 0;             ///< NVML's number of the NVLink version; 0 = not known
};

struct GpuFacts {
  std::string model;
  std::string uuid;
  std::string address;               ///< as the kernel writes it: "0000:06:00.0"
  std::vector<NvlinkFacts> nvlinks;  ///< the active ones
  bool tells_links = false;          ///< false = whether it has any is hidden, as in some guests
};

/// What two GPUs have in common on PCIe, nearest first.
enum class PciDistance { one_board, one_switch, switches, host_bridge, node, system, unknown };

class Nvml {
 public:
  virtual ~Nvml() = default;
  /// The GPUs this process may see, in NVML's order.
  virtual std::vector<GpuFacts> gpus() = 0;
  /// Whether GPU `one` may read GPU `other`'s memory.
  virtual bool peers(int one, int other) = 0;
  /// Whether the driver says that the two are joined by NVLink.
  virtual bool nvlink_peers(int one, int other) = 0;
  virtual PciDistance pci_distance(int one, int other) = 0;
};

/// The installed library; null where there is no driver, or no GPU it can see.
std::unique_ptr<Nvml> open_nvml();

}  // namespace plait
