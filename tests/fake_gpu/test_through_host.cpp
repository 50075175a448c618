// Ranks whose GPUs do not address each other: arenas lie in host memory that all ranks map, and
// only a rank's own state is in GPU memory. Two and four processes over a fake driver.
#include <doctest/doctest.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "base/text.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "gpu/abi/call_args.hpp"
#include "gpu/chunk/chunk_memory.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/lanes/plan_memory.hpp"
#include "gpu/ll/ll_memory.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "plait/error.hpp"
#include "tests/fake_gpu/h200_group.hpp"
#include "tests/fake_gpu/on_ranks.hpp"
#include "tests/fake_gpu/require.hpp"

using namespace plait;
using namespace plait_test;

namespace {

constexpr std::uint64_t kMib = 1 << 20;

/// Runs `body` with the calls of each rank. Only the last rank has a reason for host memory.
void on_ranks(int ranks, const std::function<void(GpuCalls&)>& body,
              std::uint64_t budget_bytes = 64 * kMib) {
  CHECK(run_on_ranks(ranks, [&](const RankProcess& mine) {
          GpuCallsOptions options = options_without_kernels();
          options.rank.memory = {.budget_bytes = budget_bytes, .plans = true};
          options.rank.large_arena_wait_s = 60;
          const std::string why = mine.rank == ranks - 1 ? "the driver grants none" : "";
          with_calls(mine, h200_group(mine.rank, ranks, mine.exchange, why), options, body);
        }) == 0);
}

Request all_reduce(std::uint64_t bytes, int ranks) {
  Request request;
  request.ranks = ranks;
  request.count = bytes / bytes_of(request.type);
  return request;
}

void* const kMemory = reinterpret_cast<void*>(std::uintptr_t{1} << 20);

}  // namespace

TEST_CASE("arenas lie in host memory on all ranks if one rank's GPU addresses no peer") {
  for (const int ranks : {2, 4})
    on_ranks(ranks, [ranks](GpuCalls& calls) {
      require(calls.group().through_host == "the driver grants none",
              "the reason of the last rank");
      require(calls.group().kind == "NVIDIA H200, through host memory", calls.group().kind);
      cuda::CudaRank& rank = calls.rank();
      require(rank.full_group().through_host, "the group");
      const cuda::DeviceArenaSizes& first = rank.full_group().tiers.small;
      const std::uint64_t own =
          sizeof(cuda::DeviceState) + first[cuda::kPlanScratch] + first[cuda::kChunkStaging];
      const std::uint64_t found = fake_cuda().memory.bytes;
      require(found >= own && found < own + 2 * kMib,
              text("the state and own parts alone are on the GPU: {} bytes, found {}", own, found));
      require((rank.full_group().sizes[cuda::kChunkStaging] != 0) == (ranks == 2),
              "staging buffers for an exchange of two ranks");
      const int peer = (rank.rank() + 1) % ranks;
      require(rank.at(cuda::kPlanScratch, peer) == nullptr, "scratch of a peer");
    });
}

TEST_CASE("all ranks see what a rank stores into an arena in host memory") {
  on_ranks(2, [](GpuCalls& calls) {
    cuda::CudaRank& rank = calls.rank();
    const int me = rank.rank(), peer = 1 - me;
    char* const mine = rank.at(cuda::kFlagPackets, me);
    char* const theirs = rank.at(cuda::kFlagPackets, peer);
    require(*mine == 0 && static_cast<unsigned char>(*rank.at(cuda::kSentinelPackets, me)) == 0xff,
            "initial values");
    theirs[64] = static_cast<char>(10 + me);
    for (int looks = 0; static_cast<volatile char*>(mine)[64] == 0 && looks < 100000; ++looks)
      usleep(100);
    require(mine[64] == 10 + peer, "the peer's store");
  });
}

TEST_CASE("small calls go by LL packets in host memory, priced by the way through the host") {
  on_ranks(2, [](GpuCalls& calls) {
    require(calls.group().topology.links.size() < load_topology("hgx-h200").links.size(),
            "no NVLink between the ranks' GPUs");
    for (const std::uint64_t bytes : {std::uint64_t{4096}, std::uint64_t{256} << 10}) {
      const std::string how = calls.choice_of(all_reduce(bytes, 2));
      require(
          how.find("one_shot") != std::string::npos || how.find("direct_ll") != std::string::npos,
          how);
      calls.enqueue(all_reduce(bytes, 2), kMemory, kMemory, nullptr, {});
    }
  });
}

TEST_CASE("engines of every kind serve calls through host memory") {
  on_ranks(2, [](GpuCalls& calls) {
    const auto enqueue = [&](const char* name, std::uint64_t bytes) -> std::string {
      CallOptions options;
      options.strategy = name;
      try {
        calls.enqueue(all_reduce(bytes, 2), kMemory, kMemory, nullptr, options);
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    for (const char* name : {"one_shot", "two_shot"})
      require(enqueue(name, kMib / 4).empty(), text("{}: {}", name, enqueue(name, kMib / 4)));
    require(enqueue("copy_exchange", 64 * kMib).empty(), enqueue("copy_exchange", 64 * kMib));
    require(enqueue("tiled", 64 * kMib).empty(), enqueue("tiled", 64 * kMib));
  });
}

TEST_CASE("the usual arenas in host memory hold a message of 8 MiB in chunks beside other memory") {
  constexpr std::uint64_t kUsual = 0;
  on_ranks(
      2,
      [](GpuCalls& calls) {
        const cuda::DeviceArenaSizes& sizes = calls.rank().full_group().sizes;
        require(sizes[cuda::kChunkMemory] == 8 * kMib,
                text("{} bytes of chunks", sizes[cuda::kChunkMemory]));
        require(sizes[cuda::kTileMemory] > 6 * kMib,
                text("{} bytes of slots", sizes[cuda::kTileMemory]));
        require(sizes[cuda::kChunkStaging] >= 16 * kMib,
                text("{} bytes of staging", sizes[cuda::kChunkStaging]));
        require(calls.rank().full_group().tiers.small[cuda::kSentinelPackets] == 4 * kMib,
                "packets of small calls");
      },
      kUsual);
}

TEST_CASE("calls through host memory are explained: engine, reason, price and bytes by path") {
  for (const int ranks : {2, 4})
    on_ranks(ranks, [ranks](GpuCalls& calls) {
      for (const Collective collective :
           {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
            Collective::broadcast, Collective::all_to_all, Collective::send_recv})
        for (const std::uint64_t bytes : {4 * kMib / 1024, kMib, 64 * kMib}) {
          Request request = all_reduce(bytes, ranks);
          request.collective = collective;
          request.peer = 1;
          const std::string said = calls.explain(request);
          const bool by_engine = said.find("chosen: engine") != std::string::npos;
          require(by_engine || said.find("chosen: ") != std::string::npos, said);
          if (!by_engine) continue;  // a plan
          for (const char* const part :
               {", as ", "  predicted: ", "host:", " bytes\n", "  proved: "})
            require(said.find(part) != std::string::npos, text("{}: no \"{}\"", said, part));
          require(said.find("not predicted") == std::string::npos, said);
        }
      calls.enqueue(all_reduce(4096, ranks), kMemory, kMemory, nullptr, {});
      Counters counters;
      calls.add_to(counters);
      require(!counters.bytes_of_path.empty(), "no bytes by path");
      for (const auto& [path, bytes] : counters.bytes_of_path)
        require(path.rfind("host:", 0) == 0, path);
    });
}
