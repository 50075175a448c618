// Tests that JSON is read, written and refused, and the places from which topologies are loaded.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "plait/error.hpp"
#include "plait/topology.hpp"
#include "unit/topo/machines.hpp"

using namespace plait;

namespace {

std::string refusal(const std::string& json) {
  try {
    topology_from_json(json);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::parse_error);
    return error.what();
  }
  return "accepted";
}

void refused(const std::string& json, const std::string& place) {
  const std::string said = refusal(json);
  CHECK_MESSAGE(said.find(place) != std::string::npos, said);
}

std::string machine(const std::string& rest) {
  return R"({"schema":"plait.topology/1","name":"m","devices":[{"name":"gpu0"},{"name":"gpu1"}])" +
         rest + "}";
}

std::string one_link(const std::string& speed, const std::string& rest = "") {
  return machine(R"(,"links":[{"kind":"nvlink","src":"gpu0","dst":"gpu1","gb_per_s":)" + speed +
                 rest + "}]");
}

ErrorCode load_code(const std::string& name) {
  try {
    load_topology(name);
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::ok;
}

}  // namespace

TEST_CASE("a written topology is read back as the same value") {
  const Topology made = test::two_sockets();
  CHECK(topology_from_json(to_json(made)) == made);
  for (const std::string& name : shipped_topologies()) {
    const Topology t = load_topology(name);
    CHECK_MESSAGE(t.name == name, name);
    CHECK_MESSAGE(topology_from_json(to_json(t)) == t, name);
    for (const auto& [key, value] : t.parameters)
      CHECK_MESSAGE(!value.source.empty(), name << " " << key);
  }
}

TEST_CASE("keys outside the schema are refused with their place") {
  CHECK(refusal(one_link("5")) == "accepted");
  refused(one_link("-5"), "links[0].gb_per_s: wanted a number > 0, found -5");
  refused(one_link("1e300"), "links[0].gb_per_s: wanted a number > 0 and at most 1e+06, found 1e+");
  refused(one_link("0"), "links[0].gb_per_s");
  refused(one_link("\"5\""), "links[0].gb_per_s");
  refused(one_link("NaN"), "well-formed JSON");
  refused(one_link("1e999"), "well-formed JSON");
  refused(one_link("5", R"(,"latency_ns":-1)"), "links[0].latency_ns");
  refused(one_link("5", R"(,"width":1.5)"), "links[0].width");
  refused(one_link("5", R"(,"width":99999999999)"), "links[0].width");
  refused(one_link("5", R"(,"speed":1)"), "\"speed\"");
  refused(one_link("5", R"(,"resources":["x"])"), "links[0].resources[0]");
  refused(one_link("5", R"(,"gb_per_s":6)"), "twice");
  refused(machine(R"(,"links":[{"kind":"nvlink","src":"gpu0","dst":"gpu7","gb_per_s":1}])"),
          "links[0].dst");
  refused(machine(R"(,"links":[{"kind":"wire","src":"gpu0","dst":"gpu1","gb_per_s":1}])"),
          "links[0].kind");
  refused(machine(R"(,"links":[{"kind":"nvlink","src":"gpu0","dst":"gpu0","gb_per_s":1}])"),
          "links[0]");
  refused(machine(R"(,"links":{})"), "links: wanted an array");
  refused(machine(R"(,"extra":1)"), "\"extra\"");
  refused(machine(R"(,"parameters":{"a":{"value":1}})"), "parameters.a.source");
  refused(machine(R"(,"parameters":{"a":{"value":-1,"source":"s"}})"), "parameters.a.value");
  refused(machine(R"(,"resources":[{"name":"r","gb_per_s":1},{"name":"r","gb_per_s":1}])"),
          "resources[1].name");
  refused("", "line 1");
  refused("[]", "an object");
  refused("{\n\n\"schema\": }", "line 3");
  refused(R"({"schema":"plait.topology/2","name":"m","devices":[]})", "schema");
  refused(R"({"schema":"plait.topology/1","name":"m","devices":[]})", "at least one gpu");
  refused(R"({"schema":"plait.topology/1","name":"m","devices":[{"name":"gpu"}]})",
          "devices[0].name");
  refused(R"({"schema":"plait.topology/1","name":"m","devices":[{"name":"gpu01"}]})",
          "devices[0].name");
}

TEST_CASE("depth and size are limited") {
  refused(std::string(1000, '[') + std::string(1000, ']'), "nesting");
  refused(std::string((64U << 20) + 1, ' '), "at most");
}

TEST_CASE("a switch section stands for all pairs, each with a port out and a port in") {
  const std::string ports = R"("gb_per_s":10,"port_out_gb_per_s":12,"port_in_gb_per_s":11)";
  const Topology t = topology_from_json(machine(
      R"(,"switches":[{"kind":"nvlink","members":["gpu0","gpu1"],"width":3,)" + ports + "}]"));
  REQUIRE(t.links.size() == 2);
  CHECK(t.links[0].width == 3);
  CHECK(t.resources[static_cast<std::size_t>(t.links[0].resources[0])].name == "gpu0.nvlink.out");
  CHECK(t.resources[static_cast<std::size_t>(t.links[0].resources[1])].name == "gpu1.nvlink.in");
  CHECK(t.resources[static_cast<std::size_t>(t.links[0].resources[1])].gb_per_s == 11);
  refused(machine(R"(,"switches":[{"kind":"nvlink","members":["gpu0"],)" + ports + "}]"),
          "switches[0].members");
  refused(machine(R"(,"switches":[{"kind":"nvlink","members":["gpu0","gpu0"],)" + ports + "}]"),
          "switches[0].members[1]");
  refused(machine(R"(,"switches":[{"kind":"nvlink","members":["gpu0","gpu1"],"gb_per_s":1}])"),
          "port_out_gb_per_s");
  refused(machine(R"(,"switches":[{"kind":"net","members":["gpu0","gpu1"],"port_per":"rack",)" +
                  ports + "}]"),
          "port_per");
}

TEST_CASE("a network joins nodes, not devices of one node") {
  const Topology t = load_topology("mist-2");
  for (const Link& one : t.links)
    if (one.kind == LinkKind::net)
      CHECK(t.devices[static_cast<std::size_t>(one.src)].node !=
            t.devices[static_cast<std::size_t>(one.dst)].node);
  CHECK(paths_between(t, 0, find_device(t, DeviceKind::gpu, 5)).front().name == "net:0>5");
}

TEST_CASE("errors of loading name what was wanted") {
  CHECK(load_code("no-such-machine") == ErrorCode::invalid_argument);
  CHECK(load_code("") == ErrorCode::invalid_argument);
  CHECK(load_code("/nowhere/at-all.json") == ErrorCode::io_error);
  CHECK(load_code("/tmp/") == ErrorCode::io_error);
  CHECK(load_code("/dev/zero") == ErrorCode::io_error);
  const std::string pipe = "/tmp/plait-pipe-" + std::to_string(getpid());
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);  // no writer: the reader must not wait
  CHECK(load_code(pipe) == ErrorCode::io_error);
  unlink(pipe.c_str());
  char file[] = "/tmp/plait-topology-XXXXXX.json";
  const int handle = mkstemps(file, 5);
  REQUIRE(handle >= 0);
  close(handle);
  CHECK(load_code(file) == ErrorCode::parse_error);
  std::ofstream(file) << to_json(test::two_sockets());
  CHECK(load_topology(file) == test::two_sockets());
  REQUIRE(truncate(file, (64 << 20) + 1) == 0);
  CHECK(load_code(file) == ErrorCode::io_error);
  unlink(file);
}

TEST_CASE("PLAIT_DATA_DIR stands in for the shipped files") {
  const std::string folder = "/tmp/plait-data-" + std::to_string(getpid());
  REQUIRE(system(("mkdir -p " + folder).c_str()) == 0);
  Topology t = test::two_sockets();
  t.name = "mist";
  std::ofstream(folder + "/mist.json") << to_json(t);
  setenv("PLAIT_DATA_DIR", folder.c_str(), 1);
  CHECK(load_topology("mist") == t);
  CHECK(load_code("cedar") == ErrorCode::io_error);
  const std::string file = folder + "/mist.json";
  REQUIRE(chmod(file.c_str(), 0666) == 0);
  CHECK(load_code("mist") == ErrorCode::permission);
  CHECK(load_topology(file) == t);  // named by the user, hence trusted
  REQUIRE(chmod(file.c_str(), 0644) == 0);
  REQUIRE(chmod(folder.c_str(), 0777) == 0);
  CHECK(load_code("mist") == ErrorCode::permission);
  REQUIRE(chmod(folder.c_str(), 0755) == 0);
  if (geteuid() == 0) {
    REQUIRE(chown(file.c_str(), 12345, static_cast<gid_t>(-1)) == 0);
    CHECK(load_code("mist") == ErrorCode::permission);
    REQUIRE(chown(file.c_str(), 0, static_cast<gid_t>(-1)) == 0);
  }
  CHECK(load_topology("mist") == t);
  setenv("PLAIT_DATA_DIR", "relative", 1);
  CHECK(load_code("mist") == ErrorCode::invalid_argument);
  unsetenv("PLAIT_DATA_DIR");
  CHECK(load_topology("mist") != t);
  CHECK(system(("rm -r " + folder).c_str()) == 0);
}

TEST_CASE("a network section makes nodes with NICs on rails") {
  const std::string node = R"({"schema":"plait.topology/1","name":"m","devices":[
    {"name":"gpu0","numa":0},{"name":"gpu1","numa":0},{"name":"numa0"}],
    "resources":[{"name":"gpu1.host.up","gb_per_s":5},{"name":"numa0.dram","gb_per_s":9},
                 {"name":"fabric","gb_per_s":3}],
    "links":[{"kind":"pcie","src":"gpu1","dst":"numa0","gb_per_s":5,
              "resources":["gpu1.host.up","fabric"]}])";
  const auto with = [&](const std::string& head, const std::string& nics) {
    return node + R"(,"network":{"gb_per_s":48,)" + head + R"("nics":[)" + nics + "]}}";
  };
  const std::string rails = R"({"name":"nic0","affinity":["gpu0"]},
                              {"name":"nic1","rail":1,"affinity":["gpu1"]})";
  const Topology t =
      topology_from_json(with(R"("nodes":3,"latency_ns":7,"oversubscription":2,)", rails));
  CHECK(topology_from_json(to_json(t)) == t);
  CHECK(rank_devices(t).size() == 6);
  const Device& gpu = t.devices[static_cast<std::size_t>(find_device(t, DeviceKind::gpu, 5))];
  CHECK(gpu.node == 2);
  CHECK(gpu.numa == 2);
  const Device& nic = t.devices[static_cast<std::size_t>(find_device(t, DeviceKind::nic, 5))];
  CHECK(nic.rail == 1);
  CHECK(nic.affinity == std::vector<int>{find_device(t, DeviceKind::gpu, 5)});
  const auto names = [&](const std::string& path) {
    std::string all;
    for (const int resource :
         t.links[static_cast<std::size_t>(find_path(t, path).links[0])].resources)
      all += t.resources[static_cast<std::size_t>(resource)].name + " ";
    return all;
  };
  CHECK(names("net:1>5") == "nic1.out nic5.in ");  // on one rail
  CHECK(names("net:1>4") == "nic1.out rail1.spine.up rail0.spine.down nic4.in ");
  CHECK(path_latency_ns(t, find_path(t, "net:1>4")) == 7);
  for (const Resource& resource : t.resources)
    if (resource.name == "rail1.spine.up") CHECK(resource.gb_per_s == 3 * 48 / 2.0);
  const int last =
      find_link(t, find_device(t, DeviceKind::gpu, 5), find_device(t, DeviceKind::host, 2));
  const auto& used = t.links[static_cast<std::size_t>(last)].resources;
  CHECK(t.resources[static_cast<std::size_t>(used[0])].name == "gpu5.host.up");
  CHECK(t.resources[static_cast<std::size_t>(used[1])].name == "node2.fabric");
  const Topology one = topology_from_json(with("", rails));
  CHECK(one.devices.size() == 3);  // a single node needs no NICs
  const std::string two = R"("nodes":2,)";
  refused(with(R"("nodes":65,)", rails), "network.nodes");
  refused(with(R"("nodes":2,"oversubscription":0.5,)", rails),
          "network.oversubscription: wanted 1");
  refused(with(two, R"({"name":"nic1","affinity":["gpu0"]})"),
          "network.nics[0].name: wanted \"nic0\"");
  refused(with(two, R"({"name":"nic0","affinity":["gpu7"]})"), "network.nics[0].affinity[0]");
  refused(with(two, R"({"name":"nic0","affinity":["gpu0"]})"),
          "network.nics: wanted a NIC that each");
  refused(with(two, R"({"name":"nic0","rail":-1,"affinity":["gpu0"]})"), "network.nics[0].rail");
  refused(machine(R"(,"network":{"nodes":2,"nics":[]})"), "network.gb_per_s");
}

TEST_CASE("NAME-N is N nodes of NAME") {
  const Topology four = load_topology("mist-4"), eight = load_topology("hgx-h200-8");
  CHECK(four.name == "mist-4");
  CHECK(rank_devices(four).size() == 16);
  CHECK(rank_devices(eight).size() == 64);
  CHECK(rank_devices(load_topology("cardinal")).size() == 32);
  CHECK(rank_devices(load_topology("cardinal-2")).size() == 8);
  CHECK(load_code("mist-1") == ErrorCode::invalid_argument);
  CHECK(load_code("mist-65") == ErrorCode::invalid_argument);
  CHECK(load_code("mist-02") == ErrorCode::invalid_argument);
  CHECK(load_code("dgx1v-2") == ErrorCode::parse_error);  // no network section
}
