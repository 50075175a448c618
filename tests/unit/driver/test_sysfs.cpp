// Tests of /sys: lists, addresses and missing files.
#include <doctest/doctest.h>

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

TEST_CASE("opening NVML never throws, and its facts are complete") {
  const auto nvml = open_nvml();
  if (!nvml) return;  // no driver here
  for (const GpuFacts& gpu : nvml->gpus()) CHECK_FALSE(gpu.uuid.empty());
}
