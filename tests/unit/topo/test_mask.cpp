// Tests of masks, fingerprints and the printed table.
#include <doctest/doctest.h>

#include "plait/error.hpp"
#include "plait/topology.hpp"
#include "unit/topo/machines.hpp"

using namespace plait;

namespace {

bool has(const Topology& t, int src, int dst) { return find_link(t, src, dst) >= 0; }

bool contains(const std::string& whole, const std::string& part) {
  return whole.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a mask removes a link in both directions, or in one") {
  const Topology t = test::two_sockets();
  const Topology both = without(t, {"nvlink:0-1"});
  CHECK_FALSE(has(both, 0, 1));
  CHECK_FALSE(has(both, 1, 0));
  CHECK(has(both, 2, 3));
  const Topology one = without(t, {"nvlink:0>1"});
  CHECK_FALSE(has(one, 0, 1));
  CHECK(has(one, 1, 0));
  CHECK(without(t, {}) == t);
  CHECK(problems(both).empty());
}

TEST_CASE("host and relay masks, and masked topologies through JSON") {
  const Topology t = test::two_sockets();
  const Topology no_host = without(t, {"host:0"});
  CHECK(paths_between(no_host, 0, 1).size() == 1);
  CHECK(paths_between(no_host, 0, 2).empty());
  const Topology mesh = load_topology("dgx1v");
  const Topology barred = without(mesh, {"relay:3"});
  for (const Path& path : paths_between(barred, 0, 7)) CHECK(path.name != "relay:0>3>7");
  CHECK(has(barred, 0, 3));
  CHECK(topology_from_json(to_json(barred)) == barred);
  CHECK(barred != mesh);
  CHECK(paths_between(without(local_cpu(3), {"relay:cpu1"}), 0, 2).size() == 2);
}

TEST_CASE("bad masks list what exists") {
  const Topology t = test::two_sockets();
  for (const char* bad : {"", "nvlink", "nvlink:0", "nvlink:0-2", "nvlink:0-9", "nvlink:a-b",
                          "wire:0-1", "host:9", "host:numa9", "relay:9", "relay:numa0", ":0-1"}) {
    try {
      without(t, {bad});
      FAIL("accepted " << bad);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      CHECK(contains(error.what(), "nvlink:0-1"));
    }
  }
}

TEST_CASE("the fingerprint covers devices and links, not speeds or order") {
  const Topology t = test::two_sockets();
  Topology faster = t;
  faster.links[0].gb_per_s *= 2;
  faster.resources[0].gb_per_s *= 2;
  std::swap(faster.links[0], faster.links[3]);
  CHECK(fingerprint(faster) == fingerprint(t));
  CHECK(fingerprint(t).size() == 16);
  CHECK(fingerprint(without(t, {"nvlink:0>1"})) != fingerprint(t));
  Topology other = t;
  other.devices[0].model = "another";
  CHECK(fingerprint(other) != fingerprint(t));
}

TEST_CASE("the matrix has nvidia-smi's cells, and every path below it") {
  const std::string mesh = print(load_topology("dgx1v"));
  CHECK(contains(mesh, "GPU0  X     NV1   NV1   NV2   NV2   SYS   SYS   SYS"));
  CHECK(contains(mesh, "CPU Affinity"));
  CHECK(contains(mesh, "relay:0>3>7"));
  const std::string board = print(load_topology("hgx-h200"));
  CHECK(contains(board, "NV18"));
  CHECK(contains(board, "nvlink:0>3"));
  CHECK(contains(print(local_cpu(2)), "CPU0  X     SHM"));
  CHECK(contains(print(local_cpu(16)), "CPU0 to CPU15  SHM         0"));  // a single row for all
  CHECK_FALSE(contains(print(local_cpu(16)), "CPU7"));
  const std::string cluster = print(load_topology("vista"));
  CHECK(contains(cluster, "net:0>1"));
  CHECK_FALSE(contains(cluster, "net:0>2"));  // a line per kind of link
  Topology pcie = test::two_sockets();
  pcie = without(pcie, {"nvlink:0-1"});
  CHECK(contains(print(pcie), "GPU0  X     NODE  SYS   SYS"));
  Topology one_way = load_topology("hgx-h200");
  std::erase_if(one_way.links, [](const Link& link) { return link.dst == 0; });
  CHECK(contains(print(one_way), "GPU1  -     X     NV18"));
}
