// `plait plan` on machines without measurements, against calls of plait's own communicators: the
// engine or plan that runs, and the memory of plans. Processes over a fake driver.
#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/choose/reach.hpp"
#include "comm/choose/what_runs.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "plait/error.hpp"
#include "tests/fake_gpu/on_ranks.hpp"
#include "topo/gpu_models.hpp"
#include "unit/requests.hpp"
#include "unit/scale.hpp"

using namespace plait;
using namespace plait_test;

namespace {

constexpr double kPatienceS = 600;  // of ranks that wait for rank 0's choices

/// Returns a GPU as the topology names it.
FakeGpu gpu_of(const Topology& topology) {
  const GpuModel& model = *gpu_model(topology.devices.front().model);
  const bool is_large = model.capability == 90 || model.capability == 100;
  FakeGpu gpu;
  gpu.name = topology.devices.front().model.c_str();
  gpu.major = model.capability / 10;
  gpu.minor = model.capability % 10;
  if (model.multiprocessors != 0) gpu.multiprocessors = static_cast<int>(model.multiprocessors);
  gpu.shared_bytes = is_large ? 227 << 10 : model.capability == 80 ? 163 << 10 : 99 << 10;
  gpu.multiprocessor_bytes = gpu.shared_bytes + (1 << 10);
  gpu.multiprocessor_threads = is_large || model.capability == 80 ? 2048 : 1536;
  gpu.made_for = model.capability;
  return gpu;
}

/// Returns '1' by rank for each GPU that the rank's GPU addresses.
std::string direct_of(const Topology& topology, int rank, int ranks) {
  const std::vector<int> devices = rank_devices(topology);
  const auto device = [&](int of) { return devices[static_cast<std::size_t>(of)]; };
  std::string peers;
  for (int peer = 0; peer < ranks; ++peer)
    peers += peer == rank || find_link(topology, device(rank), device(peer)) >= 0 ? '1' : '0';
  return peers;
}

/// Returns options as GpuSide has them without settings.
GpuCallsOptions own_calls(const Topology& topology) {
  GpuCallsOptions options;
  options.checks = topology;
  options.rank.proves_paths = false;  // no kernel runs here
  options.rank.memory.pairs = true;
  options.rank.memory.plans = true;
  return options;
}

std::vector<Request> requests(int ranks) {
  using enum Collective;
  std::vector<std::uint64_t> sizes;
  for (int shift = 10; shift <= (ranks > 4 ? 28 : 32); shift += 2)  // larger plans take long
    sizes.push_back(std::uint64_t{1} << shift);
  Request like;
  like.ranks = ranks;
  like.peer = ranks - 1;
  return requests_of({all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, gather,
                      scatter, send_recv, copy},
                     {DataType::fp32}, sizes, like);
}

/// Returns what the machine's description says of a call.
std::string described(const Topology& topology, const Request& request) {
  const Request placed = checked(request, topology);
  if (may_run_engines(topology, placed)) {
    const cuda::Group group = described_group(topology, placed);
    const cuda::Selector selector = described_selector(topology, placed, group, {});
    if (const auto choice = selector.best(placed)) return "engine " + choice->engine->info().name;
  }
  std::string said;
  const auto failure = attempt([&] { said = "plan " + label(taken_by_calls(topology, request)); });
  return failure ? "nothing" : said;
}

/// Returns what a communicator does with a call: "chosen: engine tiled (order=2), as ...".
std::string done(GpuCalls& calls, const Request& request) {
  const std::string said = calls.choice_of(request);
  if (said.starts_with("no plan for ")) return "nothing";
  const std::string what = said.substr(std::min(said.size(), said.find(": ") + 2));
  return what.starts_with("engine ") ? what.substr(0, what.find_first_of(" ,(", 7)) : what;
}

/// every: compares a call of so many.
std::string differences(GpuCalls& calls, const Topology& topology, int ranks, int every) {
  const PlanMemory real = plan_memory(calls.rank().full_group(), cuda::kPlanRingBytes);
  Request like;
  like.ranks = ranks;
  const cuda::Group group = described_group(topology, like);
  const PlanMemory said = plan_memory(group, usual_plan_ring(group));
  std::string found;
  if (real.scratch_bytes != said.scratch_bytes || real.inbox_bytes != said.inbox_bytes ||
      real.ring_bytes != said.ring_bytes)
    found = text("\nmemory for plans: {} {} {}, described {} {} {}", real.scratch_bytes,
                 real.inbox_bytes, real.ring_bytes, said.scratch_bytes, said.inbox_bytes,
                 said.ring_bytes);
  Sample is_next_taken;
  int number = 0;
  for (const Request& request : requests(ranks)) {
    if (every > 1 ? number++ % every != 0 : !is_next_taken()) continue;
    const std::string by_calls = done(calls, request), by_plan = described(topology, request);
    if (by_calls != by_plan && found.size() < 2000)
      found += text("\n{} of {} bytes: calls {}, described {}", name_of(request.collective),
                    message_bytes(request), by_calls, by_plan);
  }
  return found;
}

/// Runs body(calls, rank) on each rank of a communicator on that machine.
template <class Body>
void on_calls(const std::string& name, int ranks, const CallOptions& forced, const Body& body,
              const std::vector<std::string>& masks = {}) {
  const Topology whole = load_topology(name), topology = without(whole, masks);
  fake_cuda().gpu = gpu_of(topology);
  CHECK(run_on_ranks(ranks, [&](const RankProcess& mine) {
          GpuGroup group;
          group.rank = mine.rank;
          group.ranks = ranks;
          group.ordinals.assign(static_cast<std::size_t>(ranks), 0);
          group.kind =
              text("{}, {} multiprocessors", fake_cuda().gpu.name, fake_cuda().gpu.multiprocessors);
          group.in_processes = true;
          group.topology = topology;
          if (!masks.empty()) group.reach = reach_of(topology, group.devices_of_ranks(), masks);
          const std::string direct = direct_of(whole, mine.rank, ranks);
          const bool is_linked = direct.find('0') == std::string::npos;
          make_with_arenas(
              group, mine.exchange, Env(), is_linked ? "" : "the driver grants none",
              ranks > 2 ? direct : "", [&](GpuGroup agreed) {
                GpuCallsOptions options = own_calls(topology);
                options.forced = forced;
                with_calls(mine, std::move(agreed), options, [&](GpuCalls& calls) {
                  const std::string found = mine.rank == 0 ? body(calls, topology) : "";
                  mine.board.barrier(kPatienceS);
                  if (!found.empty())
                    throw std::runtime_error(text("{} ranks of {}:{}", ranks, name, found));
                });
              });
        }) == 0);
  fake_cuda().gpu = {};  // of other cases
}

void compare(const std::string& name, int ranks, int every = 1,
             const std::vector<std::string>& masks = {}) {
  on_calls(
      name, ranks, {},
      [&](GpuCalls& calls, const Topology& topology) {
        return differences(calls, topology, ranks, every);
      },
      masks);
}

}  // namespace

TEST_CASE("a described machine with links runs what calls run there") {
  for (const int ranks : {2, 3, 4}) compare("narval", ranks);
  for (const int ranks : {2, 5, 8}) compare("hgx-b200", ranks);
}

TEST_CASE("a described machine without links, or with some, runs what calls run there") {
  for (const int ranks : {2, 3, 4}) compare("a100-pcie-x4", ranks);
  for (const int ranks : {2, 4}) compare("l40s-x4", ranks);
}

TEST_CASE("a described machine with masked links runs what calls run there") {
  constexpr int kEvery = 3;
  compare("hgx-h200", 2, kEvery, {"nvlink:0-1"});
  compare("hgx-b200", 5, kEvery, {"nvlink:0>1"});
  compare("hgx-b200", 4, kEvery, {"host:0"});
  compare("narval", 4, kEvery, {"nvlink:2-3", "host:1"});
  compare("a100-pcie-x4", 4, kEvery, {"nvlink:0-1"});
}

TEST_CASE("plans have their host ring also if copy engines have too few hardware queues") {
  CallOptions forced;
  forced.strategy = "direct";
  forced.params = {{"host_permille", 250}};
  for (const char* const queues : {"8", "1"}) {
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues, 1);
    on_calls("hgx-h200", 2, forced, [](GpuCalls& calls, const Topology&) {
      Request request;
      request.ranks = 2;
      const std::string said = done(calls, of_message_bytes(request, 64 << 20));
      return said.find("host_permille=250") == said.npos ? said + " runs" : "";
    });
  }
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

TEST_CASE("each described machine of GPUs with kernels runs what calls run there") {
  for (const char* const name :
       {"cardinal", "daisy", "delta-ai", "dgx-a100", "hgx-b200", "hgx-h200", "l40s-x8", "narval",
        "rtx-5090-x2", "rtx-5090-x4", "rtx-pro-6000-x4"}) {
    const Topology topology = load_topology(name);
    const int node = topology.devices.front().node;
    const std::vector<int> devices = rank_devices(topology);
    const auto all = std::count_if(devices.begin(), devices.end(), [&](int device) {
      return topology.devices[static_cast<std::size_t>(device)].node == node;
    });
    for (int ranks = 2; ranks <= std::min<int>(8, static_cast<int>(all)); ++ranks) {
      if (takes_few() && ranks % 3 != 2) continue;
      constexpr int kEvery = 17;
      compare(name, ranks, kEvery);
    }
  }
}
