// Topology <-> JSON "plait.topology/1" (docs/schema/topology.schema.json), strictly: whatever the
// schema does not name is Error(parse_error) with its place, so a typing slip is never a slow link.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/topology.hpp"
#include "topo/names.hpp"

namespace plait {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kSchema = "plait.topology/1";
constexpr std::size_t kMaxBytes = 16U << 20;
constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxLinks = 1U << 20;  // a switch section can ask for its square

[[noreturn]] void refuse(const std::string& place, const std::string& wanted,
                         const std::string& found) {
  throw Error(ErrorCode::parse_error,
              text("topology JSON: ", place.empty() ? "the document" : place, ": wanted ", wanted,
                   ", found ", found));
}

std::string shown(const Json& value) {
  std::string dumped = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  // All ASCII, so that the cut splits no character.
  if (dumped.size() > 60) dumped = dumped.substr(0, 57) + "...";
  return dumped;
}

/// A JSON value with its place in the document, read with the types the schema asks for.
class Place {
 public:
  Place(const Json& value, std::string name) : value_(value), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  bool has(const char* key) const { return value_.contains(key); }

  void object(std::initializer_list<const char*> allowed) const {
    if (!value_.is_object()) refuse(name_, "an object", shown(value_));
    for (const auto& [key, value] : value_.items()) {
      const std::string& given = key;
      if (std::none_of(allowed.begin(), allowed.end(),
                       [&](const char* known) { return given == known; })) {
        std::string known;
        for (const char* one : allowed) known += (known.empty() ? "" : ", ") + std::string(one);
        refuse(name_, "only the keys " + known, "the key \"" + given + "\"");
      }
    }
  }

  Place at(const std::string& key) const {
    const auto found = value_.find(key);
    const std::string place = name_.empty() ? key : name_ + "." + key;
    if (found == value_.end()) refuse(place, "a value", "none");
    return {*found, place};
  }

  std::vector<Place> array() const {
    if (!value_.is_array()) refuse(name_, "an array", shown(value_));
    std::vector<Place> items;
    for (std::size_t i = 0; i < value_.size(); ++i)
      items.emplace_back(value_[i], text(name_, "[", i, "]"));
    return items;
  }

  std::vector<std::pair<std::string, Place>> members() const {
    if (!value_.is_object()) refuse(name_, "an object", shown(value_));
    std::vector<std::pair<std::string, Place>> found;
    for (const auto& [key, value] : value_.items())
      found.emplace_back(key, Place(value, name_ + "." + key));
    return found;
  }

  std::string string() const {
    if (!value_.is_string()) refuse(name_, "a string", shown(value_));
    return value_.get<std::string>();
  }

  int integer(int low) const {
    if (!value_.is_number_integer()) refuse(name_, text("a whole number >= ", low), shown(value_));
    constexpr std::uint64_t kMost = std::numeric_limits<int>::max();
    const bool too_big = value_.is_number_unsigned() && value_.get<std::uint64_t>() > kMost;
    if (too_big || value_.get<std::int64_t>() < low)
      refuse(name_, text("a whole number >= ", low, " that fits 31 bits"), shown(value_));
    return value_.get<int>();
  }

  double number(bool zero_allowed) const {
    const char* wanted = zero_allowed ? "a number >= 0" : "a number > 0";
    if (!value_.is_number()) refuse(name_, wanted, shown(value_));
    const double read = value_.get<double>();
    if (!std::isfinite(read) || read < 0 || (read == 0 && !zero_allowed))
      refuse(name_, wanted, shown(value_));
    return read;
  }

  std::string string_or_empty(const char* key) const {
    return has(key) ? at(key).string() : std::string();
  }

 private:
  const Json& value_;
  std::string name_;
};

/// Text -> JSON, with the limits that keep a hostile file cheap.
Json parse(std::string_view json) {
  if (json.size() > kMaxBytes) refuse("", text("at most ", kMaxBytes, " bytes"), text(json.size()));
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) refuse("", text("nesting of at most ", kMaxDepth), "a deeper one");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      refuse("", "each key once", "\"" + value.get<std::string>() + "\" twice in one object");
    return true;
  };
  try {
    return Json::parse(json.begin(), json.end(), watch);
  } catch (const nlohmann::json::parse_error& error) {
    const std::size_t at = std::min(json.size(), static_cast<std::size_t>(error.byte));
    const std::string_view before = json.substr(0, at);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    refuse(text("line ", line), "well-formed JSON", error.what());
  } catch (const nlohmann::json::exception& error) {
    refuse("", "well-formed JSON", error.what());
  }
}

LinkKind link_kind(const Place& place) {
  const std::string name = place.string();
  for (const LinkKind kind :
       {LinkKind::nvlink, LinkKind::pcie, LinkKind::bus, LinkKind::shm, LinkKind::net})
    if (name == name_of(kind)) return kind;
  refuse(place.name(), "nvlink, pcie, bus, shm or net", "\"" + name + "\"");
}

/// Builds the value section by section; later sections name what earlier ones declared.
class Reader {
 public:
  explicit Reader(const Place& root) : root_(root) {}

  Topology read() {
    root_.object(
        {"schema", "name", "source", "devices", "resources", "links", "switches", "parameters"});
    const Place schema = root_.at("schema");
    if (schema.string() != kSchema)
      refuse("schema", text("\"", kSchema, "\""), "\"" + schema.string() + "\"");
    topology_.name = root_.at("name").string();
    if (topology_.name.empty()) refuse("name", "a name", "an empty string");
    topology_.source = root_.string_or_empty("source");
    for (const Place& item : root_.at("devices").array()) read_device(item);
    if (root_.has("resources"))
      for (const Place& item : root_.at("resources").array()) read_resource(item);
    if (root_.has("switches"))
      for (const Place& item : root_.at("switches").array()) read_switch(item);
    if (root_.has("links"))
      for (const Place& item : root_.at("links").array()) read_link(item);
    if (root_.has("parameters"))
      for (const auto& [key, item] : root_.at("parameters").members()) read_parameter(key, item);
    const std::vector<std::string> broken = problems(topology_);
    if (!broken.empty()) refuse("", "a sound topology", broken.front());
    return std::move(topology_);
  }

 private:
  void read_device(const Place& item) {
    item.object({"name", "node", "numa", "model", "address", "uuid"});
    const std::string name = item.at("name").string();
    const auto named = parse_device_name(name);
    if (!named)
      refuse(item.name() + ".name", "gpu, cpu, numa or nic and an index, as in \"gpu0\"",
             "\"" + name + "\"");
    if (!devices_.try_emplace(name, static_cast<int>(topology_.devices.size())).second)
      refuse(item.name() + ".name", "each device once", "a second \"" + name + "\"");
    Device device;
    device.kind = named->first;
    device.index = named->second;
    if (item.has("node")) device.node = item.at("node").integer(0);
    if (item.has("numa")) device.numa = item.at("numa").integer(-1);
    device.model = item.string_or_empty("model");
    device.address = item.string_or_empty("address");
    device.uuid = item.string_or_empty("uuid");
    topology_.devices.push_back(device);
  }

  void read_resource(const Place& item) {
    item.object({"name", "gb_per_s"});
    add_resource(item.at("name"), item.at("name").string(), item.at("gb_per_s").number(false));
  }

  int add_resource(const Place& place, const std::string& name, double gb_per_s) {
    const int index = static_cast<int>(topology_.resources.size());
    if (!resources_.try_emplace(name, index).second)
      refuse(place.name(), "each resource once", "a second \"" + name + "\"");
    topology_.resources.push_back({name, gb_per_s});
    return index;
  }

  int device(const Place& place) const {
    const auto found = devices_.find(place.string());
    if (found == devices_.end())
      refuse(place.name(), "the name of a device in `devices`", "\"" + place.string() + "\"");
    return found->second;
  }

  void read_link(const Place& item) {
    item.object({"kind", "src", "dst", "width", "gb_per_s", "latency_ns", "resources"});
    Link link;
    link.kind = link_kind(item.at("kind"));
    link.src = device(item.at("src"));
    link.dst = device(item.at("dst"));
    if (link.src == link.dst) refuse(item.name(), "two devices", "one link to itself");
    if (item.has("width")) link.width = item.at("width").integer(1);
    link.gb_per_s = item.at("gb_per_s").number(false);
    if (item.has("latency_ns")) link.latency_ns = item.at("latency_ns").number(true);
    if (item.has("resources"))
      for (const Place& name : item.at("resources").array()) {
        const auto found = resources_.find(name.string());
        if (found == resources_.end())
          refuse(name.name(), "the name of a resource in `resources`", "\"" + name.string() + "\"");
        link.resources.push_back(found->second);
      }
    add_link(item, link);
  }

  void add_link(const Place& item, const Link& link) {
    if (topology_.links.size() >= kMaxLinks)
      refuse(item.name(), text("at most ", kMaxLinks, " links"), "more");
    topology_.links.push_back(link);
  }

  /// A port's name: one a member, or one that all members of a node share.
  std::string port_name(int member, bool per_node, LinkKind kind, const char* way) const {
    const Device& device = topology_.devices[static_cast<std::size_t>(member)];
    const std::string owner = per_node ? text("node", device.node) : device_name(device);
    return text(owner, ".", name_of(kind), ".", way);
  }

  std::map<std::string, int> add_ports(const Place& item, const std::vector<int>& members,
                                       bool per_node, LinkKind kind) {
    std::map<std::string, int> ports;
    for (const int member : members)
      for (const char* way : {"out", "in"}) {
        const std::string name = port_name(member, per_node, kind, way);
        if (ports.count(name) > 0) continue;
        const Place speed = item.at(text("port_", way, "_gb_per_s"));
        ports[name] = add_resource(item, name, speed.number(false));
      }
    return ports;
  }

  bool read_per_node(const Place& item) const {
    if (!item.has("port_per")) return false;
    const Place place = item.at("port_per");
    if (place.string() != "device" && place.string() != "node")
      refuse(place.name(), "\"device\" or \"node\"", "\"" + place.string() + "\"");
    return place.string() == "node";
  }

  /// All pairs of members, each link drawing on its sender's out port and its receiver's in port.
  void read_switch(const Place& item) {
    item.object({"kind", "members", "gb_per_s", "latency_ns", "width", "port_out_gb_per_s",
                 "port_in_gb_per_s", "port_per"});
    Link link;
    link.kind = link_kind(item.at("kind"));
    link.gb_per_s = item.at("gb_per_s").number(false);
    if (item.has("latency_ns")) link.latency_ns = item.at("latency_ns").number(true);
    if (item.has("width")) link.width = item.at("width").integer(1);
    std::vector<int> members;
    for (const Place& name : item.at("members").array()) {
      members.push_back(device(name));
      if (std::count(members.begin(), members.end(), members.back()) > 1)
        refuse(name.name(), "each member once", "a second \"" + name.string() + "\"");
    }
    if (members.size() < 2)
      refuse(item.name() + ".members", "at least two devices", text(members.size()));
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

  void read_parameter(const std::string& key, const Place& item) {
    item.object({"value", "source"});
    const Place source = item.at("source");
    if (source.string().empty()) refuse(source.name(), "where the number comes from", "nothing");
    topology_.parameters[key] = {item.at("value").number(true), source.string()};
  }

  const Place& root_;
  Topology topology_;
  std::map<std::string, int> devices_, resources_;
};

Json device_json(const Device& device) {
  Json made = {{"name", device_name(device)}};
  if (device.node != 0) made["node"] = device.node;
  if (device.numa != -1) made["numa"] = device.numa;
  if (!device.model.empty()) made["model"] = device.model;
  if (!device.address.empty()) made["address"] = device.address;
  if (!device.uuid.empty()) made["uuid"] = device.uuid;
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

std::string dumped(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// One entry a line: long enough to read, short enough to compare.
template <class Entries, class Write>
std::string section(const char* name, char open, char close, const Entries& entries, Write write) {
  std::string made = text(",\n  \"", name, "\": ", open);
  bool first = true;
  for (const auto& entry : entries) {
    made += (first ? "\n    " : ",\n    ") + write(entry);
    first = false;
  }
  return made + (first ? "" : "\n  ") + close;
}

}  // namespace

std::string to_json(const Topology& topology) {
  std::string made =
      text("{\n  \"schema\": \"", kSchema, "\",\n  \"name\": ", dumped(topology.name),
           ",\n  \"source\": ", dumped(topology.source));
  made += section("devices", '[', ']', topology.devices,
                  [](const Device& device) { return dumped(device_json(device)); });
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

Topology topology_from_json(std::string_view json) {
  const Json document = parse(json);
  const Place root(document, "");
  return Reader(root).read();
}

}  // namespace plait
