// Discovery through a fake NVML and a fake /sys.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "plait/topology.hpp"
#include "topo/discover.hpp"

using namespace plait;
namespace fs = std::filesystem;

namespace {

class FakeNvml : public Nvml {
 public:
  std::vector<GpuFacts> facts;
  bool peers_work = true, joined = true;
  std::vector<GpuFacts> gpus() override { return facts; }
  bool peers(int, int) override { return peers_work; }
  bool nvlink_peers(int, int) override { return joined; }
  PciDistance pci_distance(int, int) override { return PciDistance::unknown; }
};

std::string address(int gpu) { return "0000:0" + std::to_string(gpu + 1) + ":00.0"; }

FakeNvml gpus(int count, const std::string& model) {
  FakeNvml nvml;
  for (int i = 0; i < count; ++i)
    nvml.facts.push_back({model, "GPU-" + std::to_string(i), address(i), {}});
  return nvml;
}

/// A /sys of two NUMA nodes with GPUs, two GPUs for each PCIe switch.
class FakeSys {
 public:
  explicit FakeSys(int count) {
    char name[] = "/tmp/plait-sys-XXXXXX";
    root_ = mkdtemp(name);
    put("devices/system/node/online", "0-1");
    put("devices/system/node/node0/cpulist", "0-31");
    put("devices/system/node/node1/cpulist", "32-63");
    fs::create_directories(root_ / "bus/pci/devices");
    for (int i = 0; i < count; ++i) {
      const std::string place = "devices/pci0000:0" + std::to_string(i * 2 / count) + "/0000:a" +
                                std::to_string(i / 2) + ":00.0/" + address(i);
      put(place + "/numa_node", std::to_string(i * 2 / count));
      put(place + "/max_link_speed", "16.0 GT/s PCIe");
      put(place + "/max_link_width", "16");
      fs::create_directory_symlink(root_ / place, root_ / "bus/pci/devices" / address(i));
    }
  }
  ~FakeSys() { fs::remove_all(root_); }
  FakeSys(const FakeSys&) = delete;
  FakeSys& operator=(const FakeSys&) = delete;
  Sysfs sysfs() const { return Sysfs(root_.string()); }

 private:
  void put(const std::string& path, const std::string& line) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << line << "\n";
  }
  fs::path root_;
};

int nvlinks(const Topology& t) {
  int count = 0;
  for (const Link& link : t.links) count += link.kind == LinkKind::nvlink;
  return count;
}

}  // namespace

TEST_CASE("without a driver the topology has the CPU cores") {
  const Topology t = discover_from(nullptr, Sysfs("/nowhere"));
  CHECK(t.name == "local-cpu");
  CHECK(rank_devices(t).size() >= 16);
  CHECK(problems(t).empty());
}

TEST_CASE("eight GPUs on an NVSwitch: all pairs, with ports") {
  FakeNvml nvml = gpus(8, "NVIDIA H200");
  for (GpuFacts& gpu : nvml.facts) gpu.nvlinks.assign(18, {NvlinkEnd::nvswitch, "", 6});
  const FakeSys sys(8);
  const Topology t = discover_from(&nvml, sys.sysfs());
  CHECK(problems(t).empty());
  CHECK(nvlinks(t) == 56);
  const Link& link = t.links[static_cast<std::size_t>(find_link(t, 0, 5))];
  CHECK(link.width == 18);
  CHECK(link.gb_per_s == doctest::Approx(395));
  CHECK(link.resources.size() == 2);
  CHECK(t.devices[7].numa == 1);
  CHECK(t.devices[7].uuid == "GPU-7");
  CHECK(find_path(t, "host:0>numa0>numa1>7").links.size() == 3);
  CHECK(parameter(t, "stream_signal_ns", 0) == 6600);
  const Link& up = t.links[static_cast<std::size_t>(find_path(t, "host:0>numa0>1").links[0])];
  const auto both = std::find_if(up.resources.begin(), up.resources.end(), [&](int resource) {
    return t.resources[static_cast<std::size_t>(resource)].name == "gpu0.host.both";
  });
  CHECK(both !=
        up.resources.end());  // both directions of a GPU share one, as on the shipped machine
}

TEST_CASE("a guest that hides NVLinks: peers of a switched model are joined") {
  FakeNvml nvml = gpus(4, "NVIDIA H200");
  const Sysfs none("/nowhere");
  CHECK(nvlinks(discover_from(&nvml, none)) == 12);
  nvml.joined = false;
  CHECK(nvlinks(discover_from(&nvml, none)) == 12);
  nvml.peers_work = false;
  const Topology apart = discover_from(&nvml, none);
  CHECK(nvlinks(apart) == 0);
  CHECK(problems(apart).empty());
  CHECK(paths_between(apart, 0, 1).front().kind == PathKind::host);
}

TEST_CASE("direct links as on a DGX-1V: widths are counted by the other end") {
  const Topology mesh = load_topology("dgx1v");
  FakeNvml nvml = gpus(8, "Tesla V100-SXM2-16GB");
  for (const Link& link : mesh.links)
    if (link.kind == LinkKind::nvlink)
      for (int i = 0; i < link.width; ++i)
        nvml.facts[static_cast<std::size_t>(link.src)].nvlinks.push_back(
            {NvlinkEnd::gpu, address(link.dst), 2});
  const FakeSys sys(8);
  const Topology t = discover_from(&nvml, sys.sysfs());
  CHECK(problems(t).empty());
  for (int src = 0; src < 8; ++src)
    for (int dst = 0; dst < 8; ++dst) {
      const int expected = find_link(mesh, src, dst), found = find_link(t, src, dst);
      REQUIRE((expected < 0) == (found < 0));
      if (found < 0) continue;
      CHECK(t.links[static_cast<std::size_t>(found)].width ==
            mesh.links[static_cast<std::size_t>(expected)].width);
      CHECK(t.links[static_cast<std::size_t>(found)].gb_per_s ==
            doctest::Approx(mesh.links[static_cast<std::size_t>(expected)].gb_per_s));
    }
}

TEST_CASE("two GPUs on PCIe only, of an unknown model") {
  FakeNvml nvml = gpus(2, "Some GPU");
  nvml.joined = false;
  const FakeSys sys(2);
  const Topology t = discover_from(&nvml, sys.sysfs());
  CHECK(problems(t).empty());
  CHECK(nvlinks(t) == 0);
  const Path path = paths_between(t, 0, 1).front();
  CHECK(path.name == "host:0>numa0>numa1>1");
  CHECK(path_gb_per_s(t, path) == doctest::Approx(16 * 128.0 / 130 / 8 * 16 * 0.88));
}

TEST_CASE("GPUs under one PCIe switch share it") {
  FakeNvml nvml = gpus(4, "NVIDIA A30");
  const FakeSys sys(4);
  const Topology t = discover_from(&nvml, sys.sysfs());
  int shared = 0;
  for (const Resource& resource : t.resources) shared += resource.name.starts_with("switch.");
  CHECK(shared == 4);  // two switches, up and down
  CHECK(print(t).find("PIX") != std::string::npos);
}
