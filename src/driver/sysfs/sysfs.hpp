// PCI, NUMA and NIC facts from /sys: a device's place, its lanes, the cores near it, rates of
// ports. The root is a parameter, so that tests can read a separate tree.
#pragma once
#include <string>
#include <vector>

namespace plait {

/// An active InfiniBand or RoCE port.
struct RdmaPort {
  std::string nic;  ///< "mlx5_0"
  int port = 0;
  double gb_per_s = 0;  ///< per direction
};

class Sysfs {
 public:
  explicit Sysfs(std::string root = "/sys") : root_(std::move(root)) {}

  /// Returns online NUMA nodes, ascending; {0} if the system lists none.
  std::vector<int> numa_nodes() const;
  /// Returns for example "0-31,64-95"; empty if the system has no list.
  std::string cpus_of_numa(int numa) const;
  /// Returns the NUMA node of a PCI device ("0000:06:00.0"); -1 = unknown.
  int numa_of_pci(const std::string& address) const;
  /// Returns the bridges above a PCI device, from the root complex down ("pci0000:00",
  /// "0000:00:01.0").
  std::vector<std::string> bridges_of_pci(const std::string& address) const;
  /// Returns the nominal speed of the device's lanes per direction; 0 = unknown.
  double pcie_gb_per_s(const std::string& address) const;
  /// Returns the active InfiniBand and RoCE ports that state a rate.
  std::vector<RdmaPort> rdma_ports() const;

 private:
  std::string line(const std::string& path) const;
  std::string root_;
};

/// Parses "0-2,5" into {0, 1, 2, 5}; skips entries that are no number or range.
std::vector<int> parse_id_list(const std::string& list);
/// Converts NVML's "00000000:06:00.0", in any case, to the kernel's "0000:06:00.0".
std::string kernel_pci_address(const std::string& address);

}  // namespace plait
