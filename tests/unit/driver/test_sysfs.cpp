// Tests of /sys: lists, addresses and missing files.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/text.hpp"
#include "driver/nvml/api.hpp"
#include "driver/sysfs/sysfs.hpp"

using namespace plait;
using Ids = std::vector<int>;

TEST_CASE("id lists") {
  CHECK(parse_id_list("0-2,5") == Ids{0, 1, 2, 5});
  CHECK(parse_id_list("7") == Ids{7});
  CHECK(parse_id_list("") == Ids{});
  CHECK(parse_id_list("x,1-y,3") == Ids{3});
  CHECK(parse_id_list("0-999999").size() == 4096);
}

TEST_CASE("NVML's addresses become the kernel's") {
  CHECK(kernel_pci_address("00000000:06:00.0") == "0000:06:00.0");
  CHECK(kernel_pci_address("0000:AF:00.0") == "0000:af:00.0");
  CHECK(kernel_pci_address("") == "");
}

TEST_CASE("a system that tells nothing is no error") {
  const Sysfs none("/nowhere");
  CHECK(none.numa_nodes() == Ids{0});
  CHECK(none.cpus_of_numa(0) == "");
  CHECK(none.cpus_of_numa(-1) == "");
  CHECK(none.numa_of_pci("0000:06:00.0") == -1);
  CHECK(none.bridges_of_pci("0000:06:00.0").empty());
  CHECK(none.pcie_gb_per_s("0000:06:00.0") == 0);
}

TEST_CASE("active ports of RDMA NICs have their rates") {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / text("plait_sysfs_{}", ::getpid());
  const auto port = [&](const std::string& name, int number, const std::string& state,
                        const std::string& rate) {
    const fs::path folder = root / text("class/infiniband/{}/ports/{}", name, number);
    fs::create_directories(folder);
    std::ofstream(folder / "state") << state << "\n";
    std::ofstream(folder / "rate") << rate << "\n";
  };
  port("mlx5_0", 1, "4: ACTIVE", "400 Gb/sec (4X NDR)");
  port("mlx5_1", 2, "4: ACTIVE", "100 Gb/sec (4X EDR)");
  port("mlx5_2", 1, "1: DOWN", "40 Gb/sec (4X QDR)");
  std::map<std::string, double> found;
  for (const RdmaPort& one : Sysfs(root.string()).rdma_ports())
    found[text("{}:{}", one.nic, one.port)] = one.gb_per_s;
  fs::remove_all(root);
  CHECK(found == std::map<std::string, double>{{"mlx5_0:1", 50.0}, {"mlx5_1:2", 12.5}});
  CHECK(Sysfs("/nowhere").rdma_ports().empty());
}

TEST_CASE("opening NVML never throws, and its facts are complete") {
  const auto nvml = open_nvml();
  if (!nvml) return;  // no driver here
  for (const GpuFacts& gpu : nvml->gpus()) CHECK_FALSE(gpu.uuid.empty());
}
