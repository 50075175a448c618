// Small machines for topology tests, independent of shipped files and figures.
#pragma once
#include "plait/topology.hpp"

namespace plait::test {

/// Two sockets of two GPUs: NVLink within a socket, host memory and a bus between sockets.
inline Topology two_sockets() {
  Topology t;
  t.name = "two-sockets";
  t.source = "made for a test";
  for (int i = 0; i < 4; ++i) t.devices.push_back({DeviceKind::gpu, i, 0, i / 2, "GPU", "", ""});
  for (int i = 0; i < 2; ++i) t.devices.push_back({DeviceKind::host, i, 0, i, "memory", "", ""});
  t.resources = {{"numa0.dram", 100}, {"numa1.dram", 100}, {"bus", 20}};
  const auto both = [&](LinkKind kind, int a, int b, double speed, std::vector<int> drawn) {
    t.links.push_back({kind, a, b, 1, speed, 100, drawn});
    t.links.push_back({kind, b, a, 1, speed, 100, drawn});
  };
  both(LinkKind::nvlink, 0, 1, 75, {});
  both(LinkKind::nvlink, 2, 3, 75, {});
  for (int i = 0; i < 4; ++i) both(LinkKind::pcie, i, 4 + i / 2, 60, {i / 2});
  both(LinkKind::bus, 4, 5, 64, {2});
  t.parameters["copy_launch_ns"] = {1000, "made up"};
  return t;
}

}  // namespace plait::test
