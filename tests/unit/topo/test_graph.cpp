// Tests of devices, links, labels, problems(), and the named paths of a pair.
#include <doctest/doctest.h>

#include <limits>
#include <set>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/topology.hpp"
#include "topo/pair_paths.hpp"
#include "unit/topo/machines.hpp"

using namespace plait;
using plait::test::two_sockets;

namespace {

std::vector<std::string> names(const Topology& t, int src, int dst) {
  std::vector<std::string> found;
  for (const Path& path : paths_between(t, src, dst)) found.push_back(path.name);
  return found;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("devices are found by kind and index, and labelled as in path names") {
  const Topology t = two_sockets();
  CHECK(find_device(t, DeviceKind::gpu, 3) == 3);
  CHECK(find_device(t, DeviceKind::host, 1) == 5);
  CHECK(find_device(t, DeviceKind::nic, 0) == -1);
  CHECK(rank_devices(t) == std::vector<int>{0, 1, 2, 3});
  CHECK(device_label(t, 2) == "2");
  CHECK(device_label(t, 5) == "numa1");
  CHECK(rank_devices(local_cpu(3)) == std::vector<int>{0, 1, 2});
  CHECK(device_label(local_cpu(3), 1) == "cpu1");
}

TEST_CASE("the fastest of parallel links is found") {
  Topology t = two_sockets();
  t.links.push_back({LinkKind::nvlink, 0, 1, 2, 150, 100, {}});
  CHECK(find_link(t, 0, 1) == static_cast<int>(t.links.size()) - 1);
  CHECK(find_link(t, 0, 3) == -1);
  CHECK(path_gb_per_s(t, paths_between(t, 0, 1).front()) == 150);
}

TEST_CASE("parameters fall back to the caller's default") {
  const Topology t = two_sockets();
  CHECK(parameter(t, "copy_launch_ns", 7) == 1000);
  CHECK(parameter(t, "no_such", 7) == 7);
}

TEST_CASE("direct comes first, then the host; over the bus between sockets") {
  const Topology t = two_sockets();
  CHECK(names(t, 0, 1) == Names{"nvlink:0>1", "host:0>numa0>1"});
  CHECK(names(t, 0, 2) == Names{"host:0>numa0>numa1>2"});
  CHECK(names(t, 1, 1) == Names{"local:1"});
}

TEST_CASE("a pair without a path is an error that says what it lacks") {
  Topology t = two_sockets();
  CHECK(any_host_path(t, 0, 2).name == "host:0>numa0>numa1>2");
  CHECK_THROWS_WITH_AS(host_path(t, 0, 2),
                       doctest::Contains("wanted a path through the memory of one NUMA node from 0 "
                                         "to 2, topology"),
                       Error);
  CHECK_THROWS_WITH_AS(direct_path(t, 0, 2), doctest::Contains("wanted a direct link from 0 to 2"),
                       Error);
  std::erase_if(t.links, [](const Link& link) { return link.dst == 2; });
  CHECK_THROWS_WITH_AS(any_host_path(t, 0, 2),
                       doctest::Contains("wanted a path through host memory from 0 to 2"), Error);
}

TEST_CASE("a path is as fast as its slowest hop, and hops through one memory share it") {
  const Topology t = two_sockets();
  CHECK(path_gb_per_s(t, find_path(t, "host:0>numa0>1")) == 50);  // 100 GB/s of DRAM, twice
  CHECK(path_gb_per_s(t, find_path(t, "host:0>numa0>numa1>2")) == 20);
  CHECK(path_latency_ns(t, find_path(t, "host:0>numa0>numa1>2")) == 300);
  CHECK(path_latency_ns(t, find_path(t, "local:0")) == 0);
}

TEST_CASE("relays go over each third rank device, never over the network") {
  Topology t = two_sockets();
  t.links.push_back({LinkKind::nvlink, 1, 2, 1, 30, 100, {}});
  CHECK(names(t, 0, 2) == Names{"relay:0>1>2", "host:0>numa0>numa1>2"});
  t.links.back().kind = LinkKind::net;
  CHECK(names(t, 0, 2) == Names{"host:0>numa0>numa1>2"});
}

TEST_CASE("every path of every shipped machine is found by its name, and no name comes twice") {
  for (const std::string& name : shipped_topologies()) {
    const Topology t = load_topology(name);
    CHECK_MESSAGE(problems(t).empty(), name);
    const std::vector<int> ranks = rank_devices(t);
    std::set<std::string> seen;
    std::size_t count = 0;
    for (std::size_t i = 0; i < ranks.size() && i < 8; ++i)
      for (std::size_t j = 0; j < ranks.size() && j < 8; ++j)
        for (const Path& path : paths_between(t, ranks[i], ranks[j])) {
          seen.insert(path.name);
          ++count;
          CHECK(find_path(t, path.name) == path);
          CHECK(path.devices.size() == path.links.size() + 1);
        }
    CHECK_MESSAGE(seen.size() == count, name);
  }
}

TEST_CASE("direct_paths() finds the paths of one link") {
  const auto direct_of_all = [](const Topology& t, int src, int dst) {
    std::vector<Path> direct;
    for (const Path& path : paths_between(t, src, dst))
      if (path.links.size() == 1) direct.push_back(path);
    return direct;
  };
  std::size_t found = 0;
  for (const std::string& name : shipped_topologies()) {
    const Topology t = load_topology(name);
    const int devices = static_cast<int>(t.devices.size());
    for (int src = 0; src < devices; ++src)
      for (int dst = 0; dst < devices; ++dst) {
        const std::vector<Path> direct = direct_paths(t, src, dst);
        found += direct.size();
        CHECK(direct == direct_of_all(t, src, dst));
      }
  }
  CHECK(found > 100);
  Topology t = two_sockets();
  const Link first = t.links.front();
  t.links.push_back(first);  // a second, faster link of the same kind: only this link counts
  t.links.back().gb_per_s *= 2;
  CHECK(direct_paths(t, first.src, first.dst).size() == 1);
  CHECK(direct_paths(t, first.src, first.dst) == direct_of_all(t, first.src, first.dst));
  CHECK(direct_paths(t, first.src, first.dst)[0].links[0] == static_cast<int>(t.links.size()) - 1);
  CHECK_THROWS_AS(direct_paths(t, 0, 99), std::exception);
}

TEST_CASE("no pair of a shipped machine is cut off") {
  for (const std::string& name : shipped_topologies()) {
    const Topology t = load_topology(name);
    for (const int src : rank_devices(t))
      for (const int dst : rank_devices(t))
        if (paths_between(t, src, dst).empty()) FAIL(name << ": " << src << " to " << dst);
  }
}

TEST_CASE("dgx1v: pairs without a link have two relay GPUs") {
  const Topology t = load_topology("dgx1v");
  int far_pairs = 0;
  for (int src = 0; src < 8; ++src)
    for (int dst = 0; dst < 8; ++dst) {
      if (src == dst || find_link(t, src, dst) >= 0) continue;
      ++far_pairs;
      int relays = 0;
      for (const Path& path : paths_between(t, src, dst)) relays += path.kind == PathKind::relay;
      CHECK(relays == 2);
    }
  CHECK(far_pairs == 24);
  CHECK(names(t, 0, 7) == Names{"relay:0>4>7", "relay:0>3>7", "host:0>numa0>numa1>7"});
  CHECK(find_path(t, "relay:2>3>7").links.size() == 2);
  CHECK(find_path(t, "relay:2>6>7").links.size() == 2);
  CHECK(path_gb_per_s(t, find_path(t, "host:0>numa0>numa1>7")) == 9);
}

TEST_CASE("names that are no path say why") {
  const Topology t = two_sockets();
  for (const char* bad : {"", "nvlink", "nvlink:", "nvlink:0", "nvlink:0>2", "nvlink:0>9",
                          "host:0>numa7>1", "relay:0>1", "nvlink:0>1>", "nvlink:00>1", "x:0>1"}) {
    try {
      find_path(t, bad);
      FAIL("accepted " << bad);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      CHECK(std::string(error.what()).find(bad) != std::string::npos);
    }
  }
}

TEST_CASE("CPU ranks: bare numbers and cpuN name the same path") {
  const Topology t = local_cpu(4);
  CHECK(find_path(t, "shm:0>3").name == "shm:cpu0>cpu3");
  CHECK(find_path(t, "relay:0>1>3") == find_path(t, "relay:cpu0>cpu1>cpu3"));
  CHECK(names(t, 0, 1).size() == 4);
  CHECK(t == local_cpu(4));  // measured once a process
  CHECK_THROWS_AS(local_cpu(0), Error);
  CHECK_THROWS_AS(local_cpu(100000), Error);
}

TEST_CASE("problems() names each fault with its place") {
  const auto first = [](auto breaks) {
    Topology t = two_sockets();
    breaks(t);
    const std::vector<std::string> found = problems(t);
    return found.empty() ? std::string("sound") : found.front();
  };
  const auto says = [&](const char* wanted, auto breaks) {
    CHECK_MESSAGE(first(breaks).find(wanted) != std::string::npos, first(breaks));
  };
  says("sound", [](Topology&) {});
  says("devices[1]: a second gpu 0", [](Topology& t) { t.devices[1].index = 0; });
  says("devices[0].index", [](Topology& t) { t.devices[0].index = -1; });
  says("devices[0].node", [](Topology& t) { t.devices[0].node = -1; });
  says("devices[0].numa", [](Topology& t) { t.devices[0].numa = -2; });
  says("devices[0].numa: wanted the index of a host among devices, found 77",
       [](Topology& t) { t.devices[0].numa = 77; });
  says("uuid", [](Topology& t) { t.devices[0].uuid = t.devices[1].uuid = "GPU-1"; });
  says("at least one gpu", [](Topology& t) {
    t.devices.clear();
    t.links.clear();
  });
  says("resources[0].name", [](Topology& t) { t.resources[0].name = ""; });
  says("a second resource", [](Topology& t) { t.resources[1].name = "numa0.dram"; });
  says("resources[0].gb_per_s", [](Topology& t) { t.resources[0].gb_per_s = 0; });
  says("links[0]: device 99", [](Topology& t) { t.links[0].dst = 99; });
  says("begins and ends", [](Topology& t) { t.links[0].dst = t.links[0].src; });
  says("links[0].width", [](Topology& t) { t.links[0].width = 0; });
  says("links[0].gb_per_s", [](Topology& t) { t.links[0].gb_per_s = -5; });
  says("links[0].gb_per_s",
       [](Topology& t) { t.links[0].gb_per_s = std::numeric_limits<double>::quiet_NaN(); });
  says("links[0].gb_per_s: wanted a number > 0 and at most 1e+06",
       [](Topology& t) { t.links[0].gb_per_s = 1e300; });
  says(": links[0] a second time", [](Topology& t) { t.links.push_back(t.links[0]); });
  says("links[0].latency_ns", [](Topology& t) { t.links[0].latency_ns = -1; });
  says("resource 9", [](Topology& t) { t.links[0].resources = {9}; });
  says("twice", [](Topology& t) { t.links[0].resources = {1, 1}; });
  says("parameters.signal_ns", [](Topology& t) { t.parameters["signal_ns"] = {-1, "x"}; });
  says("parameters.copy_lanch_ns: wanted one of copy_launch_ns, ",
       [](Topology& t) { t.parameters["copy_lanch_ns"] = {1, "x"}; });
  for (const char* const speed : {"gpu_memory_gb_per_s", "gpu_reduce_gb_per_s",
                                  "engine_reduce_gb_per_s", "line_norm", "tile_norm"})
    says(text("parameters.{}: wanted a number > 0, found 0", speed).c_str(),
         [&](Topology& t) { t.parameters[speed] = {0, "x"}; });
  for (const double share : {0.0, 1.5})
    says(text("parameters.stores_to_one_share: wanted a share > 0 and at most 1, found {}", share)
             .c_str(),
         [&](Topology& t) { t.parameters["stores_to_one_share"] = {share, "x"}; });
  says("sound", [](Topology& t) { t.parameters["kernel_copy_gb_per_s"] = {0, "as GPU memory"}; });
}

TEST_CASE("a path of another topology has no speed here") {
  const Topology large = load_topology("hgx-h200"), small = load_topology("mist");
  const Path path = find_path(large, "nvlink:6>7");
  CHECK(path_gb_per_s(large, path) > 0);
  CHECK_THROWS_WITH_AS(path_gb_per_s(small, path), doctest::Contains("wanted a path of topology"),
                       Error);
  CHECK_THROWS_AS(path_latency_ns(small, path), Error);
}
