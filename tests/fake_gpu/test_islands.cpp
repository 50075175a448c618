// Machines of which some GPUs address each other and others do not, as pairs with NVLink bridges.
// Arenas lie in host memory that all ranks map, and ranks of an island map each other's GPU memory
// for plans. Four processes over a fake driver.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/choose/what_runs.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "gpu/arena/arena.hpp"
#include "gpu/lanes/plan_memory.hpp"
#include "plait/error.hpp"
#include "plait/report.hpp"
#include "tests/fake_gpu/on_ranks.hpp"
#include "tests/fake_gpu/require.hpp"
#include "tests/gpu/ranks.hpp"

using namespace plait;
using namespace plait_test;

namespace {

constexpr int kRanks = 4;
constexpr std::uint64_t kMib = 1 << 20;
constexpr const char* kPairs = "a100-pcie-x4";  // ranks 0 and 1, 2 and 3 have a bridge

void* const kMemory = reinterpret_cast<void*>(std::uintptr_t{1} << 20);

std::string direct_of(int rank) { return rank < 2 ? "1100" : "0011"; }
int island_of(int rank) { return rank / 2; }

GpuCallsOptions options_of() {
  GpuCallsOptions options;
  options.checks = load_topology(kPairs);
  options.has_lazy_arena = false;
  options.rank.memory.plans = true;
  return options;
}

/// What a rank found: its calls, or the error of their set-up.
using Body = std::function<void(GpuCalls& calls, int makes)>;

/// Makes each rank's calls as communicators do; `spoil` breaks a rank's driver.
void on_pairs(const std::function<void(int rank)>& spoil, const Body& body) {
  CHECK(run_on_ranks(kRanks, [&](const RankProcess& mine) {
          if (spoil) spoil(mine.rank);
          GpuGroup group;
          group.rank = mine.rank;
          group.ranks = kRanks;
          group.ordinals.assign(kRanks, 0);
          group.kind = "NVIDIA A100 80GB PCIe";
          group.in_processes = true;
          group.topology = load_topology(kPairs);
          int makes = 0;
          make_with_arenas(group, mine.exchange, Env(), "the driver grants none",
                           direct_of(mine.rank), [&](GpuGroup agreed) {
                             ++makes;
                             with_calls(mine, std::move(agreed), options_of(),
                                        [&](GpuCalls& calls) { body(calls, makes); });
                           });
        }) == 0);
}

Request request_of(Collective collective, std::uint64_t bytes) {
  Request request;
  request.collective = collective;
  request.ranks = kRanks;
  request.count = bytes / bytes_of(request.type);
  request.peer = 1;
  return request;
}

bool are_linked(const Topology& topology, int one, int other) {
  const std::vector<int> devices = rank_devices(topology);
  return find_link(topology, devices[static_cast<std::size_t>(one)],
                   devices[static_cast<std::size_t>(other)]) >= 0;
}

}  // namespace

TEST_CASE("an island is a set of ranks that all address each other") {
  const auto none = std::vector<int>();
  CHECK(islands_of({"1100", "1100", "0011", "0011"}) == std::vector<int>{0, 0, 1, 1});
  CHECK(islands_of({"1010", "0101", "1010", "0101"}) == std::vector<int>{0, 1, 0, 1});
  CHECK(islands_of({"110", "111", "011"}) == std::vector<int>{0, 0, 1});  // 0 and 2 do not
  CHECK(islands_of({"11", "01"}) == none);                                // one way
  CHECK(islands_of({"100", "010", "001"}) == none);
  CHECK(islands_of({"", "", ""}) == none);
  CHECK(islands_of({"110", "", "011"}) == none);
}

TEST_CASE("plans on islands touch no GPU memory of another island, and are proved") {
  const Topology topology = load_topology(kPairs);
  int direct = 0;
  for (const Collective collective :
       {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
        Collective::broadcast, Collective::reduce, Collective::all_to_all, Collective::gather,
        Collective::scatter, Collective::send_recv})
    for (const std::uint64_t bytes : {4 * kMib / 1024, kMib, 64 * kMib})
      for (const Plan& plan : propose(topology, checked(request_of(collective, bytes), topology))) {
        CAPTURE(label(plan));
        bool is_apart = false;
        for (const Lane& lane : plan.lanes)
          for (const Op& op : lane.ops) {
            std::vector<Region> touched = op.srcs;
            if (op.kind == OpKind::copy || op.kind == OpKind::reduce) touched.push_back(op.dst);
            for (const Region& region : touched) {
              if (region.space != Space::scratch || region.rank == lane.rank) continue;
              ++direct;
              is_apart |= island_of(region.rank) != island_of(lane.rank);
            }
          }
        CHECK_FALSE(is_apart);
        if (bytes == kMib) CHECK(verify(plan).proved());
      }
  CHECK(direct > 0);
}

TEST_CASE("ranks of an island map each other's GPU memory, and no others") {
  on_pairs(nullptr, [](GpuCalls& calls, int makes) {
    cuda::CudaRank& rank = calls.rank();
    require(makes == 1 && rank.full_group().through_host, "arenas are not in host memory");
    require(calls.group().islands == std::vector<int>{0, 0, 1, 1}, "other islands");
    for (int peer = 0; peer < kRanks; ++peer) {
      const bool is_near = island_of(peer) == island_of(rank.rank());
      require((rank.at(cuda::kPlanScratch, peer) != nullptr) == is_near,
              text("scratch of rank {}", peer));
      for (int other = 0; other < kRanks; ++other)
        if (peer != other)
          require(are_linked(calls.group().topology, peer, other) ==
                      (island_of(peer) == island_of(other)),
                  text("link of {} and {}", peer, other));
    }
  });
}

TEST_CASE("large sums of islands go by a plan over the bridges and the host, at its price") {
  const Topology described = load_topology(kPairs);
  const Request large = request_of(Collective::all_reduce, 64 * kMib);
  on_pairs(nullptr, [&](GpuCalls& calls, int) {
    const std::string said = calls.explain(large);
    for (const char* const part : {"fold", "nvlink:0>1", "nvlink:3>2", "host:0>numa0>numa1>2"})
      require(said.find(part) != std::string::npos, said);
    const std::string plan = label(taken_by_calls(described, large));
    require(said.find("chosen: " + plan) != std::string::npos, plan + " is described: " + said);
    calls.enqueue(large, kMemory, kMemory, nullptr, {});
    calls.enqueue(request_of(Collective::all_reduce, 4096), kMemory, kMemory, nullptr, {});
  });
}

TEST_CASE("an island whose memory is not mapped is left for host memory by all ranks") {
  constexpr int kPeerAccessUnsupported = 217;
  const auto body = [](GpuCalls& calls, int makes) {
    require(makes == 1 && calls.group().islands.empty(), "islands are kept");
    require(!calls.group().has_broken_paths, "a path is said to be broken");
    const int peer = calls.rank().rank() ^ 1;
    require(calls.rank().at(cuda::kPlanScratch, peer) == nullptr, "scratch of a peer");
    require(!are_linked(calls.group().topology, 0, 1), "a link is kept");
    calls.enqueue(request_of(Collective::all_reduce, 64 * kMib), kMemory, kMemory, nullptr, {});
  };
  for (const char* const function : {"ipc_get", "ipc_open"})
    for (const int broken : {0, 3})
      on_pairs(
          [&](int rank) {
            if (rank == broken) fake_cuda().refuses.of(function, 1, kPeerAccessUnsupported);
          },
          // The first attempt ends before the body.
          [&](GpuCalls& calls, int makes) { body(calls, makes - 1); });
}

TEST_CASE("an island whose path loses data is left for host memory, and the ranks are named") {
  bench::Board* const board = bench::make_board(kRanks);
  CHECK(bench::run_ranks(board, true, [&](int rank) {
          const cuda::Exchange exchange = [&](const std::string& mine) {
            return board->exchange(rank, mine);
          };
          if (rank == 3) fake_cuda().loses_from = 0;  // the first rank of its island
          GpuGroup group;
          group.rank = rank;
          group.ranks = kRanks;
          group.ordinals.assign(kRanks, 0);
          group.in_processes = true;
          group.topology = load_topology(kPairs);
          agree_on_arenas(group, exchange, "the driver grants none", direct_of(rank));
          const std::optional<Error> found =
              attempt([&] { const GpuCalls calls(std::move(group), options_of(), exchange); });
          require(found && found->code() == ErrorCode::driver_error, "no error");
          const std::string said = found->what();
          require(said.find("data that rank 2's GPU") != std::string::npos &&
                      said.find("rank 3's") != std::string::npos,
                  said);
        }) == 0);
  on_pairs(
      [](int rank) {
        if (rank == 3) fake_cuda().loses_from = 0;
      },
      [](GpuCalls& calls, int makes) {
        require(makes == 2 && calls.group().islands.empty(), "islands are kept");
        require(calls.group().has_broken_paths, "NCCL may hang there");
      });
}
