// A machine as a value: devices, directed links, and the resources that transfers share.
// A transfer is limited by every resource on its path; resources are shared max-min fairly.
// Source of the path names and of multi-path use: Micro 2021 (direct + host), WOTIR (relay GPUs).
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

/// What a device is. Ranks run on `gpu` or (on machines without GPUs) on `cpu` devices.
enum class DeviceKind : std::uint8_t { gpu, cpu, host, nic };

/// One memory that data can lie in, with the processor that works on it.
struct Device {
  DeviceKind kind = DeviceKind::gpu;
  int index = 0;        ///< index within its kind: GPU 3, NUMA node 0
  int node = 0;         ///< which machine of a cluster
  int numa = -1;        ///< NUMA node the device hangs off; -1 = not known
  std::string model;    ///< "NVIDIA H200"
  std::string address;  ///< PCI address; empty where there is none
  std::string uuid;     ///< the driver's unique id; empty where there is none
  int rail = -1;        ///< of a NIC: the leaf switch it is on; NICs of one rail need no spine
  std::vector<int> affinity = {};  ///< of a NIC: devices that hang on it (GPUs, or NUMA nodes)
  bool operator==(const Device&) const = default;
};

/// A capacity that several links draw on: a switch port, a PCIe lane group, host DRAM, a socket
/// bus.
struct Resource {
  std::string name;       ///< "gpu0.nvlink.out", "numa0.dram"
  double gb_per_s = 0.0;  ///< decimal: 1 GB/s = 1 byte/ns
  bool operator==(const Resource&) const = default;
};

enum class LinkKind : std::uint8_t { nvlink, pcie, bus, shm, net };

/// One directed hop between two devices.
struct Link {
  LinkKind kind = LinkKind::nvlink;
  int src = 0;            ///< index into Topology::devices
  int dst = 0;            ///< index into Topology::devices
  int width = 1;          ///< NVLinks or PCIe lanes side by side
  double gb_per_s = 0.0;  ///< what one transfer alone reaches on this hop
  double latency_ns = 0.0;
  std::vector<int> resources;  ///< indices into Topology::resources that a transfer draws on
  bool operator==(const Link&) const = default;
};

/// A number of the machine that is no link speed (launch cost, reduction speed), with its source.
struct Parameter {
  double value = 0.0;
  std::string source;
  bool operator==(const Parameter&) const = default;
};

/// The machine. A plain value: comparable, printable, JSON both ways (docs/topology.md).
struct Topology {
  std::string name;
  std::string source;  ///< where the figures come from
  std::vector<Device> devices;
  std::vector<Resource> resources;
  std::vector<Link> links;
  std::map<std::string, Parameter> parameters;  ///< keys in docs/topology.md, units last
  bool operator==(const Topology&) const = default;
};

enum class PathKind : std::uint8_t { local, nvlink, relay, host, shm, net };

/// A named route between two devices: `nvlink:0>3`, `relay:0>2>3`, `host:0>numa0>3`.
struct Path {
  PathKind kind = PathKind::local;
  std::vector<int> devices;  ///< every device visited, source first
  std::vector<int> links;    ///< one link a hop; devices.size() - 1 of them
  std::string name;
  bool operator==(const Path&) const = default;
};

const char* name_of(DeviceKind kind);
const char* name_of(LinkKind kind);
const char* name_of(PathKind kind);

/// Index of a device of that kind and index; -1 where there is none.
int find_device(const Topology& topology, DeviceKind kind, int index);
/// The devices that ranks run on, in order: the GPUs, or where there are none the CPUs.
std::vector<int> rank_devices(const Topology& topology);
/// Index of the fastest link src -> dst; -1 where there is none.
int find_link(const Topology& topology, int src_device, int dst_device);
/// "0" for GPU 0, "cpu0", "numa0", "nic0": how a device is written in a path name.
std::string device_label(const Topology& topology, int device);
/// A parameter's value, or `otherwise` where the machine does not state it.
double parameter(const Topology& topology, std::string_view key, double otherwise);

/// All simple paths of a pair that plait uses, best first: direct, host (each NUMA node that both
/// reach), relay over each third rank device. Never empty unless the pair is cut off.
std::vector<Path> paths_between(const Topology& topology, int src_device, int dst_device);
/// The path of that name; Error(invalid_argument) where the topology has none.
Path find_path(const Topology& topology, std::string_view name);
/// The smallest of the path's link and resource speeds: what one transfer alone can reach.
double path_gb_per_s(const Topology& topology, const Path& path);
/// The sum of the path's hop latencies.
double path_latency_ns(const Topology& topology, const Path& path);

/// The machine plait runs on, from NVML, PCI and NUMA facts; without GPUs, its CPU cores.
Topology discover();
/// A shipped topology by name ("hgx-h200"), so many nodes of it ("hgx-h200-4"), a JSON file by
/// path, or "local-cpu".
Topology load_topology(const std::string& name_or_file);
/// The names of the shipped topologies.
std::vector<std::string> shipped_topologies();
/// The topology less some links: "nvlink:0-1" (both directions), "host:0", "relay:2".
Topology without(const Topology& topology, const std::vector<std::string>& masks);
/// A topology of `ranks` CPU processes over shared memory; speed measured once, here and now.
Topology local_cpu(int ranks);

/// Every broken rule of the value (dangling index, speed <= 0, duplicate device); empty = sound.
std::vector<std::string> problems(const Topology& topology);
/// A short stable hash of devices and links (not of speeds): the same machine, the same text.
std::string fingerprint(const Topology& topology);
/// The matrix of `nvidia-smi topo -m`, then every named path with its speed.
std::string print(const Topology& topology);
std::string to_json(const Topology& topology);
/// Strict: unknown keys, wrong types and unsound values are Error(parse_error) naming the place.
Topology topology_from_json(std::string_view json);

}  // namespace plait
