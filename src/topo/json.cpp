// Writes and reads topologies as JSON "plait.topology/1" (docs/schema/topology.schema.json). The
// reader is strict: a key that the schema does not name is Error(parse_error) with the key's place.
// A typing error never becomes a slow link.
#include <algorithm>
#include <map>

#include "base/json_place.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/topology.hpp"
#include "topo/cluster.hpp"
#include "topo/names.hpp"

namespace plait {
namespace {

constexpr const char* kSchema = "plait.topology/1";
constexpr const char* kDocument = "topology JSON";
constexpr std::size_t kMaxLinks = 1U << 20;  // a switch section makes a link for each pair

LinkKind link_kind(const JsonPlace& place) {
  const std::string name = place.string();
  for (const LinkKind kind :
       {LinkKind::nvlink, LinkKind::pcie, LinkKind::bus, LinkKind::shm, LinkKind::net})
    if (name == name_of(kind)) return kind;
  place.refuse("nvlink, pcie, bus, shm or net", "\"" + name + "\"");
}

/// Builds the value section by section; later sections refer to earlier sections.
class Reader {
 public:
  Reader(const JsonPlace& root, int nodes) : root_(root), nodes_(nodes) {}

  Topology read() {
    root_.object_of_some({"schema", "name", "source", "devices", "resources", "links", "switches",
                          "parameters", "network"});
    const JsonPlace schema = root_.at("schema");
    if (schema.string() != kSchema) schema.refuse(text("\"{}\"", kSchema));
    topology_.name = root_.at("name").string();
    if (topology_.name.empty()) root_.at("name").refuse("a name", "an empty string");
    topology_.source = root_.string_or_empty("source");
    for (const JsonPlace& item : root_.at("devices").items()) read_device(item);
    if (root_.has("resources"))
      for (const JsonPlace& item : root_.at("resources").items()) read_resource(item);
    if (root_.has("switches"))
      for (const JsonPlace& item : root_.at("switches").items()) read_switch(item);
    if (root_.has("links"))
      for (const JsonPlace& item : root_.at("links").items()) read_link(item);
    if (root_.has("parameters"))
      for (const auto& [key, item] : root_.at("parameters").members()) read_parameter(key, item);
    if (const std::vector<std::string> broken = problems(topology_); !broken.empty())
      root_.refuse("a sound topology", broken.front());
    if (root_.has("network")) return join_nodes(root_.at("network"));
    if (nodes_ != 0) root_.refuse(text("a `network` section that joins {} nodes", nodes_), "none");
    return std::move(topology_);
  }

 private:
  Topology join_nodes(const JsonPlace& place) {
    const Network network = read_network(place);
    if (network.nodes == 1 && nodes_ == 0) return std::move(topology_);
    for (const Device& device : topology_.devices)
      if (device.node != 0 || device.kind == DeviceKind::nic)
        place.refuse("devices of one node, and its NICs in this section", device_name(device));
    if (const int device = without_nic(topology_, network); device >= 0)
      place.at("nics").refuse("a NIC that each rank's device hangs on",
                              text("none for {}", device_name(topology_.devices[index(device)])));
    Topology made = cluster_of(topology_, network);
    if (nodes_ != 0) made.name += text("-{}", nodes_);
    if (const std::vector<std::string> broken = problems(made); !broken.empty())
      place.refuse("a node that forms a valid cluster", broken.front());
    return made;
  }

  Network read_network(const JsonPlace& place) const {
    place.object_of_some({"nodes", "gb_per_s", "latency_ns", "oversubscription", "nics"});
    Network network;
    if (place.has("nodes"))
      network.nodes = static_cast<int>(place.at("nodes").integer(1, kMaxNodes));
    if (nodes_ != 0) network.nodes = nodes_;
    network.gb_per_s = place.at("gb_per_s").number(false);
    if (place.has("latency_ns")) network.latency_ns = place.at("latency_ns").number(true);
    if (place.has("oversubscription"))
      network.oversubscription = place.at("oversubscription").number(false);
    if (network.oversubscription < 1)
      place.at("oversubscription").refuse("1 or more (1 = the spine carries all)");
    for (const JsonPlace& item : place.at("nics").items()) {
      const std::string wanted = text("nic{}", network.nics.size());
      item.object_of_some({"name", "rail", "affinity"});
      if (item.at("name").string() != wanted) item.at("name").refuse("\"" + wanted + "\"");
      network.nics.push_back(read_nic(item));
    }
    return network;
  }

  Nic read_nic(const JsonPlace& item) const {
    Nic nic;
    if (item.has("rail")) nic.rail = item.at("rail").index(0);
    for (const JsonPlace& name : item.at("affinity").items()) {
      nic.affinity.push_back(device(name));
      if (topology_.devices[index(nic.affinity.back())].kind == DeviceKind::nic)
        name.refuse("GPUs, CPUs or NUMA nodes", "\"" + name.string() + "\"");
    }
    return nic;
  }

  static std::size_t index(int device) { return static_cast<std::size_t>(device); }

  void read_device(const JsonPlace& item) {
    item.object_of_some({"name", "node", "numa", "model", "address", "uuid", "rail", "affinity"});
    const std::string name = item.at("name").string();
    const auto named = parse_device_name(name);
    if (!named)
      item.at("name").refuse("gpu, cpu, numa or nic and an index, as in \"gpu0\"",
                             "\"" + name + "\"");
    if (!devices_.try_emplace(name, static_cast<int>(topology_.devices.size())).second)
      item.at("name").refuse("each device once", "a second \"" + name + "\"");
    Device device;
    device.kind = named->first;
    device.index = named->second;
    if (item.has("node")) device.node = item.at("node").index(0);
    if (item.has("numa")) device.numa = item.at("numa").index(-1);
    device.model = item.string_or_empty("model");
    device.address = item.string_or_empty("address");
    device.uuid = item.string_or_empty("uuid");
    if (device.kind == DeviceKind::nic) {
      if (item.has("rail")) device.rail = item.at("rail").index(0);
      if (item.has("affinity")) device.affinity = read_nic(item).affinity;
    } else if (item.has("rail") || item.has("affinity")) {
      item.refuse("`rail` and `affinity` of a NIC only", "\"" + name + "\"");
    }
    topology_.devices.push_back(device);
  }

  void read_resource(const JsonPlace& item) {
    item.object_of_some({"name", "gb_per_s"});
    add_resource(item.at("name"), item.at("name").string(), item.at("gb_per_s").number(false));
  }

  int add_resource(const JsonPlace& place, const std::string& name, double gb_per_s) {
    const int index = static_cast<int>(topology_.resources.size());
    if (!resources_.try_emplace(name, index).second)
      place.refuse("each resource once", "a second \"" + name + "\"");
    topology_.resources.push_back({name, gb_per_s});
    return index;
  }

  int device(const JsonPlace& place) const {
    const auto found = devices_.find(place.string());
    if (found == devices_.end())
      place.refuse("the name of a device in `devices`", "\"" + place.string() + "\"");
    return found->second;
  }

  void read_link(const JsonPlace& item) {
    item.object_of_some({"kind", "src", "dst", "width", "gb_per_s", "latency_ns", "resources"});
    Link link;
    link.kind = link_kind(item.at("kind"));
    link.src = device(item.at("src"));
    link.dst = device(item.at("dst"));
    if (link.src == link.dst) item.refuse("two devices", "one link to itself");
    if (item.has("width")) link.width = item.at("width").index(1);
    link.gb_per_s = item.at("gb_per_s").number(false);
    if (item.has("latency_ns")) link.latency_ns = item.at("latency_ns").number(true);
    if (item.has("resources"))
      for (const JsonPlace& name : item.at("resources").items()) {
        const auto found = resources_.find(name.string());
        if (found == resources_.end())
          name.refuse("the name of a resource in `resources`", "\"" + name.string() + "\"");
        link.resources.push_back(found->second);
      }
    add_link(item, link);
  }

  void add_link(const JsonPlace& item, const Link& link) {
    if (topology_.links.size() >= kMaxLinks)
      item.refuse(text("at most {} links", kMaxLinks), "more");
    topology_.links.push_back(link);
  }

  /// Name of a port: a port per member, or a port shared by all members of a node.
  std::string port_name(int member, bool per_node, LinkKind kind, const char* direction) const {
    const Device& device = topology_.devices[static_cast<std::size_t>(member)];
    const std::string owner = per_node ? text("node{}", device.node) : device_name(device);
    return text("{}.{}.{}", owner, name_of(kind), direction);
  }

  std::map<std::string, int> add_ports(const JsonPlace& item, const std::vector<int>& members,
                                       bool per_node, LinkKind kind) {
    std::map<std::string, int> ports;
    for (const int member : members)
      for (const char* direction : {"out", "in"}) {
        const std::string name = port_name(member, per_node, kind, direction);
        if (ports.count(name) > 0) continue;
        const JsonPlace speed = item.at(text("port_{}_gb_per_s", direction));
        ports[name] = add_resource(item, name, speed.number(false));
      }
    return ports;
  }

  bool read_per_node(const JsonPlace& item) const {
    if (!item.has("port_per")) return false;
    const JsonPlace place = item.at("port_per");
    if (place.string() != "device" && place.string() != "node")
      place.refuse("\"device\" or \"node\"", "\"" + place.string() + "\"");
    return place.string() == "node";
  }

  /// Adds links for all pairs of members; each uses the sender's out port and the receiver's in
  /// port.
  void read_switch(const JsonPlace& item) {
    item.object_of_some({"kind", "members", "gb_per_s", "latency_ns", "width", "port_out_gb_per_s",
                         "port_in_gb_per_s", "port_per"});
    Link link;
    link.kind = link_kind(item.at("kind"));
    link.gb_per_s = item.at("gb_per_s").number(false);
    if (item.has("latency_ns")) link.latency_ns = item.at("latency_ns").number(true);
    if (item.has("width")) link.width = item.at("width").index(1);
    std::vector<int> members;
    for (const JsonPlace& name : item.at("members").items()) {
      members.push_back(device(name));
      if (std::count(members.begin(), members.end(), members.back()) > 1)
        name.refuse("each member once", "a second \"" + name.string() + "\"");
    }
    if (members.size() < 2)
      item.at("members").refuse("at least two devices", text("{}", members.size()));
    const bool per_node = read_per_node(item);
    const auto ports = add_ports(item, members, per_node, link.kind);
    for (const int src : members)
      for (const int dst : members) {
        if (src == dst || (link.kind == LinkKind::net && same_node(src, dst))) continue;
        link.src = src;
        link.dst = dst;
        link.resources = {ports.at(port_name(src, per_node, link.kind, "out")),
                          ports.at(port_name(dst, per_node, link.kind, "in"))};
        add_link(item, link);
      }
  }

  bool same_node(int one, int other) const {
    return topology_.devices[static_cast<std::size_t>(one)].node ==
           topology_.devices[static_cast<std::size_t>(other)].node;
  }

  void read_parameter(const std::string& key, const JsonPlace& item) {
    item.object_of_some({"value", "source"});
    const JsonPlace source = item.at("source");
    if (source.string().empty()) source.refuse("where the number comes from", "nothing");
    topology_.parameters[key] = {item.at("value").number(true), source.string()};
  }

  const JsonPlace& root_;
  int nodes_ = 0;  // 0 = the file's number
  Topology topology_;
  std::map<std::string, int> devices_, resources_;
};

Json device_json(const Topology& topology, const Device& device) {
  Json made = {{"name", device_name(device)}};
  if (device.node != 0) made["node"] = device.node;
  if (device.numa != -1) made["numa"] = device.numa;
  if (!device.model.empty()) made["model"] = device.model;
  if (!device.address.empty()) made["address"] = device.address;
  if (!device.uuid.empty()) made["uuid"] = device.uuid;
  if (device.rail != -1) made["rail"] = device.rail;
  for (const int near : device.affinity)
    made["affinity"].push_back(device_name(topology.devices.at(static_cast<std::size_t>(near))));
  return made;
}

Json link_json(const Topology& topology, const Link& link) {
  const auto name = [&](int device) {
    return device_name(topology.devices.at(static_cast<std::size_t>(device)));
  };
  Json made = {{"kind", name_of(link.kind)}, {"src", name(link.src)}, {"dst", name(link.dst)}};
  if (link.width != 1) made["width"] = link.width;
  made["gb_per_s"] = link.gb_per_s;
  made["latency_ns"] = link.latency_ns;
  if (!link.resources.empty()) made["resources"] = Json::array();
  for (const int resource : link.resources)
    made["resources"].push_back(topology.resources.at(static_cast<std::size_t>(resource)).name);
  return made;
}

/// Writes a section with an entry per line.
template <class Entries, class Write>
std::string section(const char* name, char open, char close, const Entries& entries, Write write) {
  std::string made = text(",\n  \"{}\": {}", name, open);
  bool first = true;
  for (const auto& entry : entries) {
    made += (first ? "\n    " : ",\n    ") + write(entry);
    first = false;
  }
  return made + (first ? "" : "\n  ") + close;
}

}  // namespace

std::string to_json(const Topology& topology) {
  std::string made = text("{{\n  \"schema\": \"{}\",\n  \"name\": {},\n  \"source\": {}", kSchema,
                          dumped(topology.name), dumped(topology.source));
  made += section("devices", '[', ']', topology.devices,
                  [&](const Device& device) { return dumped(device_json(topology, device)); });
  made += section("resources", '[', ']', topology.resources, [](const Resource& resource) {
    return dumped({{"name", resource.name}, {"gb_per_s", resource.gb_per_s}});
  });
  made += section("links", '[', ']', topology.links,
                  [&](const Link& link) { return dumped(link_json(topology, link)); });
  made += section("parameters", '{', '}', topology.parameters, [](const auto& entry) {
    const Json value = {{"value", entry.second.value}, {"source", entry.second.source}};
    return dumped(entry.first) + ": " + dumped(value);
  });
  return made + "\n}\n";
}

Topology topology_from_json(std::string_view json) { return nodes_from_json(json, 0); }

Topology nodes_from_json(std::string_view json, int nodes) {
  const Json document = parse_json(json, kDocument);
  const JsonPlace root(document, "", kDocument);
  return Reader(root, nodes).read();
}

}  // namespace plait
