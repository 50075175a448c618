// Copies a node and joins the copies by a network. A message between nodes uses the sender's NIC,
// the spine for a change of rails, and the receiver's NIC.
#include "topo/cluster.hpp"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/text.hpp"
#include "topo/names.hpp"

namespace plait {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// Splits "gpu3" into {"gpu", 3}; without a number -1.
std::pair<std::string, int> split(const std::string& part) {
  const std::size_t digits = part.find_last_not_of("0123456789") + 1;
  int index = -1;
  std::from_chars(part.data() + digits, part.data() + part.size(), index);
  return {part.substr(0, digits), index};
}

/// Splits "numa0.numa1.bus" at dots.
std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts(1);
  for (const char letter : name) {
    if (letter == '.')
      parts.emplace_back();
    else
      parts.back() += letter;
  }
  return parts;
}

class Cluster {
 public:
  Cluster(const Topology& node, const Network& network)
      : node_(node), network_(network), made_(node), nic_of_(node.devices.size(), -1) {
    for (const Device& device : node.devices) count(device_name(device));
    for (const Device& device : node.devices)
      numas_ =
          std::max(numas_, device.kind == DeviceKind::host ? device.index + 1 : device.numa + 1);
    for (const Resource& resource : node.resources)
      for (const std::string& part : parts_of(resource.name)) count(part);
    for (std::size_t nic = network.nics.size(); nic-- > 0;)
      for (std::size_t i = 0; i < node.devices.size(); ++i)
        if (hangs_on(static_cast<int>(i), network.nics[nic])) nic_of_[i] = static_cast<int>(nic);
  }

  int without_nic() const {
    for (const int device : rank_devices(node_))
      if (nic_of_[at(device)] < 0) return device;
    return -1;
  }

  Topology made() {
    for (int copy = 1; copy < network_.nodes; ++copy) add_node(copy);
    for (int copy = 0; copy < network_.nodes; ++copy) add_nics(copy);
    add_spine();
    for (int from = 0; from < network_.nodes; ++from)
      for (int to = 0; to < network_.nodes; ++to)
        if (from != to) join(from, to);
    return std::move(made_);
  }

 private:
  bool hangs_on(int device, const Nic& nic) const {
    const Device& own = node_.devices[at(device)];
    return std::any_of(nic.affinity.begin(), nic.affinity.end(), [&](int one) {
      const Device& near = node_.devices[at(one)];
      return one == device || (near.kind == DeviceKind::host && own.numa == near.index &&
                               own.kind != DeviceKind::host);
    });
  }

  void count(const std::string& part) {
    const auto [stem, index] = split(part);
    int& known = counts_[stem];
    known = std::max(known, index + 1);
  }

  std::string renamed(const std::string& name, int copy) const {
    std::string made;
    bool is_renamed = false;
    for (const std::string& part : parts_of(name)) {
      const auto [stem, index] = split(part);
      is_renamed |= index >= 0;
      made += (made.empty() ? "" : ".") +
              (index < 0 ? part : text("{}{}", stem, index + copy * counts_.at(stem)));
    }
    return is_renamed ? made : text("node{}.{}", copy, name);
  }

  int device_of(int device, int copy) const {
    return device + copy * static_cast<int>(node_.devices.size());
  }

  void add_node(int copy) {
    for (Device device : node_.devices) {
      device.index += copy * counts_.at(split(device_name(device)).first);
      device.node = copy;
      if (device.numa >= 0) device.numa += copy * numas_;
      device.uuid.clear();  // unique to each device
      made_.devices.push_back(device);
    }
    for (const Resource& resource : node_.resources)
      made_.resources.push_back({renamed(resource.name, copy), resource.gb_per_s});
    for (Link link : node_.links) {
      link.src = device_of(link.src, copy);
      link.dst = device_of(link.dst, copy);
      for (int& resource : link.resources)
        resource += copy * static_cast<int>(node_.resources.size());
      made_.links.push_back(link);
    }
  }

  int add_resource(const std::string& name, double gb_per_s) {
    made_.resources.push_back({name, gb_per_s});
    return static_cast<int>(made_.resources.size()) - 1;
  }

  void add_nics(int copy) {
    const int count = static_cast<int>(network_.nics.size());
    for (int i = 0; i < count; ++i) {
      Device nic;
      nic.kind = DeviceKind::nic;
      nic.index = copy * count + i;
      nic.node = copy;
      nic.rail = network_.nics[at(i)].rail;
      for (const int near : network_.nics[at(i)].affinity)
        nic.affinity.push_back(device_of(near, copy));
      const std::string name = device_name(nic);
      ports_.push_back({add_resource(name + ".out", network_.gb_per_s),
                        add_resource(name + ".in", network_.gb_per_s)});
      made_.devices.push_back(nic);
    }
  }

  void add_spine() {
    std::map<int, int> nics_of_rail;
    for (const Nic& nic : network_.nics) nics_of_rail[nic.rail] += network_.nodes;
    if (nics_of_rail.size() < 2) return;
    for (const auto& [rail, nics] : nics_of_rail) {
      const double gb_per_s = network_.gb_per_s * nics / network_.oversubscription;
      spine_[rail] = {add_resource(text("rail{}.spine.up", rail), gb_per_s),
                      add_resource(text("rail{}.spine.down", rail), gb_per_s)};
    }
  }

  void join(int from, int to) {
    const int count = static_cast<int>(network_.nics.size());
    for (const int src : rank_devices(node_))
      for (const int dst : rank_devices(node_)) {
        const int out = nic_of_[at(src)], in = nic_of_[at(dst)];
        Link link;
        link.kind = LinkKind::net;
        link.src = device_of(src, from);
        link.dst = device_of(dst, to);
        link.gb_per_s = network_.gb_per_s;
        link.latency_ns = network_.latency_ns;
        link.resources = {ports_[at(from * count + out)].out};
        const int rail = network_.nics[at(out)].rail, other = network_.nics[at(in)].rail;
        if (rail != other)
          link.resources.insert(link.resources.end(), {spine_.at(rail).out, spine_.at(other).in});
        link.resources.push_back(ports_[at(to * count + in)].in);
        made_.links.push_back(link);
      }
  }

  struct Port {
    int out = 0;
    int in = 0;
  };
  const Topology& node_;
  const Network& network_;
  Topology made_;
  std::map<std::string, int> counts_;  // by stem of a name: highest number + 1
  int numas_ = 0;
  std::vector<int> nic_of_;  // by device of the node
  std::vector<Port> ports_;  // by NIC
  std::map<int, Port> spine_;
};

}  // namespace

Topology cluster_of(const Topology& node, const Network& network) {
  return network.nodes == 1 ? node : Cluster(node, network).made();
}

int without_nic(const Topology& node, const Network& network) {
  return Cluster(node, network).without_nic();
}

}  // namespace plait
