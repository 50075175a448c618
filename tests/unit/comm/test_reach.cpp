// What masks leave to kernels, which go by every pair's own link.
#include <doctest/doctest.h>

#include "comm/reach.hpp"

using namespace plait;

namespace {

Reach reach_without(const std::vector<std::string>& masks, const std::vector<int>& ranks) {
  const Topology topology = without(load_topology("hgx-h200"), masks);
  std::vector<int> devices;
  for (const int rank : ranks) devices.push_back(find_device(topology, DeviceKind::gpu, rank));
  return reach_of(topology, devices, masks);
}

}  // namespace

TEST_CASE("kernels want a link between every two ranks, in both directions") {
  CHECK(reach_without({"host:5"}, {0, 1, 2, 3}).why_no_kernels == "");
  for (const char* mask : {"nvlink:0-1", "nvlink:0>1", "nvlink:1>0"}) {
    CAPTURE(mask);
    CHECK(reach_without({mask}, {0, 1}).why_no_kernels.find("rank") != std::string::npos);
    CHECK(reach_without({mask}, {2, 1, 0}).why_no_kernels.find("rank 1") != std::string::npos);
    CHECK(reach_without({mask}, {0, 2, 3}).why_no_kernels == "");  // nobody's in this job
  }
  const Topology cube = load_topology("dgx1v");  // 0 and 7 have no link of their own
  CHECK(reach_of(without(cube, {"relay:3"}), {0, 7}, {"relay:3"}).why_no_kernels == "");
}

TEST_CASE("shares of large calls want every rank's way to host memory") {
  CHECK(reach_without({"nvlink:0-1"}, {0, 1}).host);
  CHECK(reach_without({"host:2"}, {0, 1}).host);
  CHECK_FALSE(reach_without({"host:1"}, {0, 1}).host);
}

TEST_CASE("masks are about links between processes or between GPUs") {
  const std::vector<std::string> masks{"nvlink:0-1", "shm:0-1", "relay:2"};
  CHECK(masks_of(masks, true) == std::vector<std::string>{"shm:0-1"});
  CHECK(masks_of(masks, false) == std::vector<std::string>{"nvlink:0-1", "relay:2"});
}
