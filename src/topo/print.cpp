// Prints a topology: a matrix as of `nvidia-smi topo -m` with a legend, then every named path with
// the speed of a single transfer.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>

#include "base/text.hpp"
#include "plait/topology.hpp"
#include "topo/affinity.hpp"
#include "topo/names.hpp"

namespace plait {
namespace {

constexpr std::size_t kMostListed = 8;  // rank devices; with more, a line for each kind of path

using Row = std::vector<std::string>;

std::string upper(std::string name) {
  for (char& letter : name)
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  return name;
}

const Device& device_at(const Topology& topology, int device) {
  return topology.devices[static_cast<std::size_t>(device)];
}

/// Whether two devices are on the same PCIe switch: both use a resource named after that switch.
bool share_switch(const Topology& topology, int one, int other) {
  const auto switches = [&](int device) {
    std::vector<int> found;
    for (const Link& link : topology.links)
      if (link.src == device && link.kind == LinkKind::pcie)
        for (const int resource : link.resources)
          if (topology.resources[static_cast<std::size_t>(resource)].name.starts_with("switch"))
            found.push_back(resource);
    return found;
  };
  const std::vector<int> others = switches(other);
  for (const int mine : switches(one))
    if (std::find(others.begin(), others.end(), mine) != others.end()) return true;
  return false;
}

std::string cell(const Topology& topology, int row, int column) {
  if (row == column) return "X";
  const std::vector<Path> paths = paths_between(topology, row, column);
  if (paths.empty()) return "-";
  for (const Path& path : paths) {
    const Link* link =
        path.links.size() == 1 ? &topology.links[static_cast<std::size_t>(path.links[0])] : nullptr;
    if (link && link->kind == LinkKind::nvlink) return text("NV{}", link->width);
    if (link && link->kind == LinkKind::shm) return "SHM";
    if (link && link->kind == LinkKind::net) return "NET";
  }
  const Device& one = device_at(topology, row);
  const Device& other = device_at(topology, column);
  if (one.numa != other.numa || one.numa < 0) return "SYS";
  return share_switch(topology, row, column) ? "PIX" : "NODE";
}

std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (widths.size() <= i) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string made;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += row[i] + std::string(widths[i] + 2 - row[i].size(), ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    made += line + "\n";
  }
  return made;
}

std::string matrix(const Topology& topology, const std::vector<int>& ranks) {
  Row head = {""};
  for (const int device : ranks) head.push_back(upper(device_name(device_at(topology, device))));
  head.insert(head.end(), {"CPU Affinity", "NUMA Affinity"});
  std::vector<Row> rows = {head};
  const bool here = !ranks.empty() && is_this_machine(topology);
  for (const int from : ranks) {
    const Device& device = device_at(topology, from);
    Row row = {upper(device_name(device))};
    for (const int to : ranks) row.push_back(cell(topology, from, to));
    const std::string cpus = here ? cpus_of_numa(device.numa) : "";
    row.push_back(cpus.empty() ? "N/A" : cpus);
    row.push_back(device.numa < 0 ? "N/A" : text("{}", device.numa));
    rows.push_back(row);
  }
  return table(rows);
}

/// Whether all pairs of ranks are linked alike, and are too many for a matrix (CPU ranks).
bool are_all_alike(const Topology& topology, const std::vector<int>& ranks) {
  if (ranks.size() <= kMostListed) return false;
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    const Device& device = device_at(topology, rank);
    const Device& first = device_at(topology, ranks[0]);
    return device.kind == DeviceKind::cpu && device.node == first.node && device.numa == first.numa;
  });
}

std::string one_row(const Topology& topology, const std::vector<int>& ranks) {
  const auto name = [&](int rank) { return upper(device_name(device_at(topology, rank))); };
  const int numa = device_at(topology, ranks[0]).numa;
  return table({{"", "Each other", "NUMA Affinity"},
                {text("{} to {}", name(ranks.front()), name(ranks.back())),
                 cell(topology, ranks[0], ranks[1]), numa < 0 ? "N/A" : text("{}", numa)}});
}

constexpr const char* kLegend =
    "\nLegend:\n\n"
    "  X    = Self\n"
    "  SYS  = Connection over PCIe and the bus between NUMA nodes\n"
    "  NODE = Connection over PCIe within a NUMA node\n"
    "  PHB  = Connection over a PCIe host bridge\n"
    "  PIX  = Connection over one PCIe switch\n"
    "  NV#  = Connection over # NVLinks side by side\n"
    "  SHM  = Shared memory of one machine\n"
    "  NET  = Network between machines\n"
    "  -    = No path\n";

std::string speed(double gb_per_s) {
  if (gb_per_s == std::numeric_limits<double>::infinity()) return "-";
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.1f", gb_per_s);
  return digits;
}

std::string every_path(const Topology& topology, const std::vector<int>& ranks) {
  std::vector<Row> rows = {{"Path", "GB/s alone", "Latency ns"}};
  for (const int from : ranks)
    for (const int to : ranks) {
      if (from == to) continue;
      for (const Path& path : paths_between(topology, from, to))
        rows.push_back({path.name, speed(path_gb_per_s(topology, path)),
                        text("{}", path_latency_ns(topology, path))});
    }
  return table(rows);
}

struct ResourceSpan {
  std::size_t count = 0;
  double slowest = std::numeric_limits<double>::infinity();
  double fastest = 0;
  std::string example;
};

std::string path_kinds(const Topology& topology, const std::vector<int>& ranks) {
  std::map<PathKind, ResourceSpan> kinds;
  for (const int from : ranks)
    for (const int to : ranks) {
      if (from == to) continue;
      for (const Path& path : paths_between(topology, from, to)) {
        ResourceSpan& span = kinds[path.kind];
        const double alone = path_gb_per_s(topology, path);
        if (span.count++ == 0) span.example = path.name;
        span.slowest = std::min(span.slowest, alone);
        span.fastest = std::max(span.fastest, alone);
      }
    }
  std::vector<Row> rows = {{"Paths", "Count", "GB/s alone", "Such as"}};
  for (const auto& [kind, span] : kinds) {
    const std::string range = span.slowest == span.fastest
                                  ? speed(span.slowest)
                                  : speed(span.slowest) + " to " + speed(span.fastest);
    rows.push_back({name_of(kind), text("{}", span.count), range, span.example});
  }
  return table(rows);
}

/// Table of NICs of the first nodes; further nodes are alike.
std::string nics(const Topology& topology) {
  std::vector<Row> rows = {{"NIC", "Node", "Rail", "Of"}};
  for (const Device& device : topology.devices) {
    if (device.kind != DeviceKind::nic || rows.size() > 2 * kMostListed) continue;
    std::string near;
    for (const int one : device.affinity)
      near += (near.empty() ? "" : " ") + device_name(device_at(topology, one));
    rows.push_back({device_name(device), text("{}", device.node),
                    device.rail < 0 ? "-" : text("{}", device.rail), near});
  }
  return rows.size() == 1 ? "" : "\n" + table(rows);
}

}  // namespace

std::string print(const Topology& topology) {
  const std::vector<int> ranks = rank_devices(topology);
  std::string made =
      text("Topology {} ({}): {}\n\n", topology.name, fingerprint(topology), topology.source);
  made += are_all_alike(topology, ranks) ? one_row(topology, ranks) : matrix(topology, ranks);
  made += text("{}\n", kLegend);
  made += ranks.size() <= kMostListed ? every_path(topology, ranks) : path_kinds(topology, ranks);
  return made + nics(topology);
}

}  // namespace plait
