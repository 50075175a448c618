// Topology: a machine as a value: devices, directed links, and the resources that transfers share.
// Every resource on a transfer's path limits it; resources are shared max-min fairly.
// Source of the path names and of multi-path use: Micro 2021 (direct + host), WOTIR (relay GPUs).
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

/// Kinds of device. Ranks run on `gpu` devices, or on `cpu` devices if the machine has no GPUs.
enum class DeviceKind : std::uint8_t { gpu, cpu, host, nic };

/// A memory, with its processor.
struct Device {
  DeviceKind kind = DeviceKind::gpu;
  int index = 0;                   ///< index within the kind: GPU 3, NUMA node 0
  int node = 0;                    ///< machine of a cluster
  int numa = -1;                   ///< NUMA node of the device; -1 = unknown
  std::string model;               ///< "NVIDIA H200"
  std::string address;             ///< PCI address; empty = none
  std::string uuid;                ///< the driver's unique id; empty = none
  int rail = -1;                   ///< NIC: its leaf switch; NICs of the same rail need no spine
  std::vector<int> affinity = {};  ///< NIC: adjacent devices (GPUs, or NUMA nodes)
  bool operator==(const Device&) const = default;
};

/// A capacity that several links share: a switch port, a PCIe lane group, host DRAM, a socket bus.
struct Resource {
  std::string name;       ///< "gpu0.nvlink.out", "numa0.dram"
  double gb_per_s = 0.0;  ///< decimal: 1 GB/s = 1 byte/ns
  bool operator==(const Resource&) const = default;
};

enum class LinkKind : std::uint8_t { nvlink, pcie, bus, shm, net };

/// A directed hop between two devices.
struct Link {
  LinkKind kind = LinkKind::nvlink;
  int src = 0;            ///< index into Topology::devices
  int dst = 0;            ///< index into Topology::devices
  int width = 1;          ///< NVLinks or PCIe lanes side by side
  double gb_per_s = 0.0;  ///< speed of a single transfer on this hop
  double latency_ns = 0.0;
  std::vector<int> resources;  ///< indices into Topology::resources that a transfer uses
  bool operator==(const Link&) const = default;
};

/// A measured number of the machine that is no link speed (launch cost, ...), with the source.
struct Parameter {
  double value = 0.0;
  std::string source;
  bool operator==(const Parameter&) const = default;
};

/// The machine. A plain value: comparable, printable, JSON both ways (docs/topology.md).
struct Topology {
  std::string name;
  std::string source;  ///< source of the figures
  std::vector<Device> devices;
  std::vector<Resource> resources;
  std::vector<Link> links;
  std::map<std::string, Parameter> parameters;  ///< names end with units (docs/topology.md)
  bool operator==(const Topology&) const = default;
};

enum class PathKind : std::uint8_t { local, nvlink, relay, host, shm, net };

/// A named route between two devices: `nvlink:0>3`, `relay:0>2>3`, `host:0>numa0>3`.
struct Path {
  PathKind kind = PathKind::local;
  std::vector<int> devices;  ///< every device visited, source first
  std::vector<int> links;    ///< a link per hop; devices.size() - 1 in all
  std::string name;
  bool operator==(const Path&) const = default;
};

const char* name_of(DeviceKind kind);
const char* name_of(LinkKind kind);
const char* name_of(PathKind kind);

/// Returns the number of the device of that kind and index; -1 = none.
int find_device(const Topology& topology, DeviceKind kind, int index);
/// Returns the devices that ranks run on, in order: the GPUs, or without GPUs the CPUs.
std::vector<int> rank_devices(const Topology& topology);
/// Returns the index of the fastest link src -> dst; -1 = none.
int find_link(const Topology& topology, int src_device, int dst_device);
/// Returns a device's label in path names: "0" for GPU 0, "cpu0", "numa0", "nic0".
std::string device_label(const Topology& topology, int device);
/// Returns a parameter's value, or `otherwise` if the topology does not have it.
double parameter(const Topology& topology, std::string_view key, double otherwise);

/// Returns the paths of a pair that plait uses, best first: direct, through host memory (each NUMA
/// node that both reach), through each relay device. Empty only if the pair is not connected.
std::vector<Path> paths_between(const Topology& topology, int src_device, int dst_device);
/// Returns the path of that name; Error(invalid_argument) if the topology has none.
Path find_path(const Topology& topology, std::string_view name);
/// Returns the speed of a single transfer on the path: the least of its link and resource speeds.
double path_gb_per_s(const Topology& topology, const Path& path);
/// Returns the sum of the path's hop latencies.
double path_latency_ns(const Topology& topology, const Path& path);

/// Returns this machine's topology, from NVML, PCI and NUMA facts; without GPUs, of its CPU cores.
Topology discover();
/// Loads a shipped topology ("hgx-h200", "hgx-h200-4" = four nodes), a JSON file, or "local-cpu".
Topology load_topology(const std::string& name_or_file);
/// The names of the shipped topologies.
std::vector<std::string> shipped_topologies();
/// Returns the topology without some links: "nvlink:0-1" (both directions), "host:0", "relay:2".
Topology without(const Topology& topology, const std::vector<std::string>& masks);
/// Returns a topology of `ranks` CPU processes over shared memory, with the speed measured now.
Topology local_cpu(int ranks);

/// Returns all faults of the value (index out of range, speed <= 0, same device twice) or none.
std::vector<std::string> problems(const Topology& topology);
/// Returns a short hash of devices and links, without speeds. The hash is stable for a machine.
std::string fingerprint(const Topology& topology);
/// Prints a matrix as `nvidia-smi topo -m` does, then every named path and speed.
std::string print(const Topology& topology);
std::string to_json(const Topology& topology);
/// Strict: Error(parse_error) with the place for unknown keys, wrong types and invalid values.
Topology topology_from_json(std::string_view json);

}  // namespace plait
