// Discovers the topology from NVML, PCI and NUMA facts. Facts give the links; speeds come from the
// shipped machine with the same GPU, until `plait topo --measure` replaces them. Virtual machines
// hide NVLinks: peers of a model that is sold only with NVSwitch are assumed to be joined by
// NVSwitch.
#include "topo/discover.hpp"

#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "topo/affinity.hpp"
#include "topo/gpu_models.hpp"
#include "topo/local.hpp"
#include "topo/names.hpp"

namespace plait {
namespace {

constexpr const char* kSource = "discovered on this machine";
constexpr double kPlainPcieGbPerS = 12;

double nominal_link_gb_per_s(int version) {
  if (version <= 1) return 20;    // NVLink 1, or version unknown
  return version >= 7 ? 50 : 25;  // NVML counts 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0 as 1 to 7
}

class Discovery {
 public:
  Discovery(Nvml& nvml, const Sysfs& sysfs) : nvml_(nvml), sysfs_(sysfs), gpus_(nvml.gpus()) {
    const GpuModel* model = gpu_model(gpus_.front().model);
    if (model && !model->speeds_of.empty()) like_ = load_topology(model->speeds_of);
  }

  Topology run() {
    made_.name = "discovered";
    made_.source =
        like_.name.empty() ? std::string(kSource) : text("{}; speeds of {}", kSource, like_.name);
    made_.parameters = like_.parameters;
    if (made_.parameters.empty()) plain_parameters();
    add_devices();
    add_nvlinks();
    add_host_links();
    add_buses();
    return std::move(made_);
  }

 private:
  int count() const { return static_cast<int>(gpus_.size()); }
  const GpuFacts& gpu(int index) const { return gpus_[static_cast<std::size_t>(index)]; }

  void plain_parameters() {
    made_.parameters = {{"arena_scratch_bytes", {268435456, "plait's choice"}},
                        {"arena_ring_bytes", {8388608, "plait's choice"}},
                        {"ring_bytes", {8388608, "plait's choice"}}};
  }

  void add_devices() {
    const std::vector<int> nodes = sysfs_.numa_nodes();
    for (int i = 0; i < count(); ++i) {
      int numa = sysfs_.numa_of_pci(gpu(i).address);
      if (std::find(nodes.begin(), nodes.end(), numa) == nodes.end()) numa = -1;
      made_.devices.push_back(
          {DeviceKind::gpu, i, 0, numa, gpu(i).model, gpu(i).address, gpu(i).uuid});
    }
    for (const int node : nodes) {
      hosts_[node] = static_cast<int>(made_.devices.size());
      made_.devices.push_back({DeviceKind::host, node, 0, node, "host memory", "", ""});
    }
  }

  int resource(const std::string& name, double gb_per_s) {
    for (std::size_t i = 0; i < made_.resources.size(); ++i)
      if (made_.resources[i].name == name) return static_cast<int>(i);
    made_.resources.push_back({name, gb_per_s});
    return static_cast<int>(made_.resources.size()) - 1;
  }

  /// Returns the speed of `width` links: the shipped machine's, else the usual share of nominal.
  double nvlink_gb_per_s(int width, int version) const {
    double best = 0;
    for (const Link& link : like_.links) {
      const bool between_gpus =
          link.kind == LinkKind::nvlink &&
          like_.devices[static_cast<std::size_t>(link.src)].kind == DeviceKind::gpu &&
          like_.devices[static_cast<std::size_t>(link.dst)].kind == DeviceKind::gpu;
      if (between_gpus) best = std::max(best, link.gb_per_s / link.width);
    }
    return width *
           (best > 0 ? best : nominal_link_gb_per_s(version) * gpu_models().share_of_nominal);
  }

  void add_nvlink(int src, int dst, int width, int version, bool through_switch) {
    Link link{LinkKind::nvlink, src, dst, width, nvlink_gb_per_s(width, version), 700, {}};
    if (through_switch)
      link.resources = {resource(text("gpu{}.nvlink.out", src), link.gb_per_s),
                        resource(text("gpu{}.nvlink.in", dst), link.gb_per_s)};
    made_.links.push_back(link);
  }

  /// Counts active links of `index` that end at `end`, and at `address` unless empty.
  int links_to(int index, NvlinkEnd end, const std::string& address) const {
    return static_cast<int>(
        std::count_if(gpu(index).nvlinks.begin(), gpu(index).nvlinks.end(), [&](const auto& link) {
          return link.end == end && (address.empty() || link.remote_address == address);
        }));
  }

  /// Number of NVLinks to an NVSwitch: reported, or hidden (virtual machines see links without an
  /// end, or no links).
  int switch_links(int index) const {
    const int reported = links_to(index, NvlinkEnd::nvswitch, "");
    if (reported > 0) return reported;
    if (links_to(index, NvlinkEnd::gpu, "") > 0) return 0;
    const int endless = links_to(index, NvlinkEnd::unknown, "");
    const GpuModel* model = gpu_model(gpu(index).model);
    return endless > 0 ? endless : model ? model->switch_links : 0;
  }

  void add_nvlinks() {
    for (int src = 0; src < count(); ++src)
      for (int dst = 0; dst < count(); ++dst) {
        if (src == dst) continue;
        const int version = gpu(src).nvlinks.empty() ? 0 : gpu(src).nvlinks.front().version;
        const int direct = links_to(src, NvlinkEnd::gpu, gpu(dst).address);
        const int switched = std::min(switch_links(src), switch_links(dst));
        if (direct > 0)
          add_nvlink(src, dst, direct, version, false);
        else if (switched > 0 && nvml_.peers(src, dst) && reported_or_nvlink_peers(src, dst))
          add_nvlink(src, dst, switched, version, true);
      }
  }

  /// With hidden links, relies on the driver's peer status, or on equal GPU models.
  bool reported_or_nvlink_peers(int src, int dst) {
    if (links_to(src, NvlinkEnd::nvswitch, "") > 0) return true;
    return nvml_.nvlink_peers(src, dst) || gpu(src).model == gpu(dst).model;
  }

  double host_gb_per_s(int index) const {
    for (const Link& link : like_.links)
      if (like_.devices[static_cast<std::size_t>(link.dst)].kind == DeviceKind::host &&
          like_.devices[static_cast<std::size_t>(link.src)].kind == DeviceKind::gpu)
        return link.gb_per_s;
    const double nominal = sysfs_.pcie_gb_per_s(gpu(index).address);
    return nominal > 0 ? nominal * gpu_models().share_of_nominal : kPlainPcieGbPerS;
  }

  double figure(const char* name, double otherwise) const {
    for (const Resource& one : like_.resources)
      if (one.name == name) return one.gb_per_s;
    return otherwise;
  }

  /// Returns the bridge below the root port that at least two GPUs share; empty = none.
  std::string shared_switch(int index) const {
    const std::vector<std::string> mine = sysfs_.bridges_of_pci(gpu(index).address);
    for (std::size_t depth = mine.size(); depth-- > 1;)
      for (int other = 0; other < count(); ++other) {
        if (other == index) continue;
        const auto theirs = sysfs_.bridges_of_pci(gpu(other).address);
        if (depth < theirs.size() && theirs[depth] == mine[depth]) return mine[depth];
      }
    return "";
  }

  void add_host_links() {
    for (int i = 0; i < count(); ++i) {
      const int numa = std::max(0, made_.devices[static_cast<std::size_t>(i)].numa);
      const auto found = hosts_.find(numa);
      const int host = found == hosts_.end() ? hosts_.begin()->second : found->second;
      const std::string node = device_name(made_.devices[static_cast<std::size_t>(host)]);
      const double speed = host_gb_per_s(i);
      const int dram =
          resource(text("{}.dram", node), figure("numa0.dram", gpu_models().dram_gb_per_s));
      const double both = figure("gpu0.host.both", 0);  // less than twice one direction, if known
      const std::string bridge = shared_switch(i);
      for (const bool up : {true, false}) {
        const char* direction = up ? "up" : "down";
        Link link{LinkKind::pcie, up ? i : host, up ? host : i, 16, speed, 1500, {}};
        link.resources = {resource(text("gpu{}.host.{}", i, direction), speed), dram};
        if (both > 0) link.resources.push_back(resource(text("gpu{}.host.both", i), both));
        if (!bridge.empty())
          link.resources.push_back(resource(text("switch.{}.{}", bridge, direction), speed));
        made_.links.push_back(link);
      }
    }
  }

  void add_buses() {
    const double speed = gpu_models().bus_gb_per_s;
    for (const auto& [one, src] : hosts_)
      for (const auto& [other, dst] : hosts_) {
        if (src == dst) continue;
        const int bus = resource(text("numa{}.numa{}.bus", one, other), speed);
        made_.links.push_back({LinkKind::bus, src, dst, 1, speed, 500, {bus}});
      }
  }

  Nvml& nvml_;
  const Sysfs& sysfs_;
  std::vector<GpuFacts> gpus_;
  Topology like_;  // the shipped machine with this GPU; empty = none
  Topology made_;
  std::map<int, int> hosts_;  // NUMA node -> device
};

}  // namespace

Topology discover_from(Nvml* nvml, const Sysfs& sysfs) {
  if (!nvml || nvml->gpus().empty()) return local_cpu(local_rank_count());
  return Discovery(*nvml, sysfs).run();
}

Topology discover() {
  const auto nvml = open_nvml();
  return discover_from(nvml.get(), Sysfs());
}

bool is_this_machine(const Topology& topology) { return topology.source.starts_with(kSource); }

std::string cpus_of_numa(int numa) { return Sysfs().cpus_of_numa(numa); }

}  // namespace plait
