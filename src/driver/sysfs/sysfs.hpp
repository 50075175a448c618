// /sys -> PCI and NUMA facts: where a device hangs, how wide it is wired, which cores are near.
// The root is given, so that tests read a tree of their own.
#pragma once
#include <string>
#include <vector>

namespace plait {

class Sysfs {
 public:
  explicit Sysfs(std::string root = "/sys") : root_(std::move(root)) {}

  /// NUMA nodes that are online, ascending; {0} where the system tells none.
  std::vector<int> numa_nodes() const;
  /// "0-31,64-95"; empty where the system tells none.
  std::string cpus_of_numa(int numa) const;
  /// NUMA node of a PCI device ("0000:06:00.0"); -1 = not known.
  int numa_of_pci(const std::string& address) const;
  /// The bridges above a PCI device, from the root complex down ("pci0000:00", "0000:00:01.0").
  std::vector<std::string> bridges_of_pci(const std::string& address) const;
  /// What its lanes carry a direction, nominally; 0 = not known.
  double pcie_gb_per_s(const std::string& address) const;

 private:
  std::string line(const std::string& path) const;
  std::string root_;
};

/// "0-2,5" -> {0, 1, 2, 5}; whatever is no number or range is left out.
std::vector<int> parse_id_list(const std::string& list);
/// NVML's "00000000:06:00.0" or any case -> the kernel's "0000:06:00.0".
std::string kernel_pci_address(const std::string& address);

}  // namespace plait
