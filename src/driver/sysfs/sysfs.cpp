// PCI, NUMA and NIC facts from /sys. Any file may be missing (containers, virtual machines): the
// result is then "unknown", never an error.
#include "driver/sysfs/sysfs.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/text.hpp"

namespace plait {
namespace {

constexpr int kMostIds = 4096;

/// Returns bytes per ns of a lane at "8.0 GT/s PCIe". The encoding is 8b/10b up to 5 GT/s.
double lane_gb_per_s(double transfers_gt_per_s) {
  const double coding = transfers_gt_per_s <= 5.0 ? 0.8 : 128.0 / 130.0;
  return transfers_gt_per_s * coding / 8;
}

bool to_number(const std::string& words, double& number) {
  std::istringstream stream(words);
  return static_cast<bool>(stream >> number) && number >= 0;
}

bool to_id(const std::string& digits, int& id) {
  const bool plain = !digits.empty() && digits.size() <= 6 &&
                     std::all_of(digits.begin(), digits.end(),
                                 [](unsigned char c) { return std::isdigit(c) != 0; });
  if (plain) id = std::stoi(digits);
  return plain;
}

}  // namespace

std::vector<int> parse_id_list(const std::string& list) {
  std::vector<int> ids;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) {
    const std::size_t dash = part.find('-');
    int low = 0, high = 0;
    if (!to_id(part.substr(0, dash), low)) continue;
    if (dash == std::string::npos)
      high = low;
    else if (!to_id(part.substr(dash + 1), high))
      continue;
    for (int id = low; id <= high && ids.size() < kMostIds; ++id) ids.push_back(id);
  }
  return ids;
}

std::string kernel_pci_address(const std::string& address) {
  std::string lower = address;
  for (char& letter : lower)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  const std::size_t colon = lower.find(':');
  if (colon != std::string::npos && colon > 4) lower = lower.substr(colon - 4);
  return lower;
}

std::string Sysfs::line(const std::string& path) const {
  std::ifstream stream(text("{}/{}", root_, path));
  std::string first;
  std::getline(stream, first);
  return first;
}

std::vector<int> Sysfs::numa_nodes() const {
  std::vector<int> nodes = parse_id_list(line("devices/system/node/online"));
  if (nodes.empty()) nodes.push_back(0);
  return nodes;
}

std::string Sysfs::cpus_of_numa(int numa) const {
  return numa < 0 ? "" : line(text("devices/system/node/node{}/cpulist", numa));
}

int Sysfs::numa_of_pci(const std::string& address) const {
  int numa = -1;
  to_id(line(text("bus/pci/devices/{}/numa_node", address)), numa);
  return numa;
}

std::vector<std::string> Sysfs::bridges_of_pci(const std::string& address) const {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path real = fs::canonical(text("{}/bus/pci/devices/{}", root_, address), failed);
  std::vector<std::string> bridges;
  if (failed) return bridges;
  bool inside = false;
  for (const fs::path& part : real.parent_path()) {
    inside = inside || part.string().starts_with("pci");
    if (inside) bridges.push_back(part.string());
  }
  return bridges;
}

double Sysfs::pcie_gb_per_s(const std::string& address) const {
  // Uses the maximum: an idle device lowers the lanes' clock.
  double transfers = 0, lanes = 0;
  const std::string folder = text("bus/pci/devices/{}", address);
  if (!to_number(line(text("{}/max_link_speed", folder)), transfers)) return 0;
  if (!to_number(line(text("{}/max_link_width", folder)), lanes)) return 0;
  return lanes > 64 ? 0 : lane_gb_per_s(transfers) * lanes;
}

std::vector<RdmaPort> Sysfs::rdma_ports() const {
  namespace fs = std::filesystem;
  std::error_code failed;
  std::vector<RdmaPort> ports;
  for (const fs::directory_entry& nic :
       fs::directory_iterator(text("{}/class/infiniband", root_), failed))
    for (const fs::directory_entry& port : fs::directory_iterator(nic.path() / "ports", failed)) {
      const std::string name = nic.path().filename().string(),
                        number = port.path().filename().string();
      const std::string folder = text("class/infiniband/{}/ports/{}", name, number);
      double gbit_per_s = 0;  // of "400 Gb/sec (4X NDR)"; the state of a port is "4: ACTIVE"
      if (line(text("{}/state", folder)).find("ACTIVE") != std::string::npos &&
          to_number(line(text("{}/rate", folder)), gbit_per_s))
        ports.push_back({name, std::atoi(number.c_str()), gbit_per_s / 8});
    }
  return ports;
}

}  // namespace plait
