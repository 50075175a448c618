// Tests which pairs of GPUs masks leave to kernels, since kernels need a direct link per pair.
#include <doctest/doctest.h>

#include "base/text.hpp"
#include "comm/choose/choose.hpp"
#include "comm/choose/gpu_plans.hpp"
#include "comm/choose/reach.hpp"

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
    CHECK(reach_without({mask}, {0, 2, 3}).why_no_kernels == "");  // no rank of this job uses it
  }
  const Topology cube = load_topology("dgx1v");  // GPUs 0 and 7 have no direct link
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

/// Message sizes up to two ranks' memory, whatever else the machine has.
TEST_CASE("two GPUs without their link have a plan for every size, in rank order") {
  const PlanMemory memory{64ull << 20, 16ull << 20, 8ull << 20};
  const Topology masked = without(load_topology("hgx-h200"), {"nvlink:0-1"});
  std::vector<int> devices;
  for (const int rank : {0, 1}) devices.push_back(find_device(masked, DeviceKind::gpu, rank));
  const Topology plannable = for_plans(masked, devices, memory);
  CHECK(rank_devices(plannable) == rank_devices(masked));
  Chooser chooser(plannable, {}, true,
                  [&](const Plan& plan) { return why_no_plan_memory(plan, memory); });
  for (const Collective what : {Collective::all_reduce, Collective::all_gather, Collective::copy,
                                Collective::send_recv, Collective::reduce_scatter})
    for (const std::uint64_t count :
         {1ull, 1021ull, 1ull << 18, 1ull << 24, 1ull << 26, 1ull << 28}) {
      Request request;
      request.collective = what;
      request.count = count;
      request.ranks = 2;
      request.peer = 1;
      request.devices = devices;
      CAPTURE(text("{} of {}", name_of(what), count));
      const auto chosen = chooser.plan_for(request, {});
      CHECK(chosen->plan.relay_devices.empty());
      CHECK(why_no_plan_memory(chosen->plan, memory) == "");
    }
}
