// GPU calls of the NCCL drop-in with two processes over a fake driver: requests served, requests
// that wait for the large arena, and host memory along with that arena. With four ranks: calls that
// use another engine in a graph.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "base/text.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "gpu/select/gpu_tables.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "plait/error.hpp"
#include "tests/fake_gpu/on_ranks.hpp"
#include "tests/fake_gpu/require.hpp"

using namespace plait;
using plait::cuda::CallMode;
using namespace plait_test;

namespace {

constexpr std::uint64_t kMib = 1 << 20;
constexpr int kRanks = 2;

Request all_reduce(std::uint64_t bytes, int ranks = kRanks) {
  Request request;
  request.ranks = ranks;
  request.count = bytes / bytes_of(request.type);
  return request;
}

GpuCallsOptions drop_in() {
  GpuCallsOptions options;
  options.beats_nccl = true;
  options.rank.proves_paths = false;  // No kernel runs here.
  options.rank.overlap_compute = true;
  options.rank.orders_calls = false;
  options.rank.large_arena_wait_s = 30;
  options.rank.memory.floats_only = true;
  return options;
}

/// GPUs of the ranks, their kind and links.
struct Machine {
  plait_test::FakeGpu gpu;
  std::string kind = cuda::default_table().gpus().kind();
  std::string topology = "hgx-h200";
};

GpuGroup group_of(int rank, int ranks, const std::vector<std::string>& masks,
                  const Machine& machine) {
  GpuGroup group;
  group.rank = rank;
  group.ranks = ranks;
  group.ordinals.assign(static_cast<std::size_t>(ranks), 0);
  group.kind = machine.kind;
  group.in_processes = true;
  group.topology = load_topology(machine.topology);
  if (masks.empty()) return group;
  group.topology = without(group.topology, masks);
  group.reach = reach_of(group.topology, group.devices_of_ranks(), masks);
  return group;
}

/// Runs `body` with the calls of each rank, in processes side by side.
void on_ranks(GpuCallsOptions options, const std::vector<std::string>& masks,
              const std::function<void(GpuCalls&)>& body, int ranks = kRanks,
              const Machine& machine = {}) {
  fake_cuda().gpu = machine.gpu;
  options.rank.memory.plans |= !masks.empty();
  CHECK(run_on_ranks(ranks, [&](const RankProcess& mine) {
          with_calls(mine, group_of(mine.rank, ranks, masks, machine), options, body);
        }) == 0);
}

void* const kMemory = reinterpret_cast<void*>(std::uintptr_t{1} << 20);

/// Enqueues the request and returns the serving engine; null = a plan.
const cuda::Engine* served_by(GpuCalls& calls, const LimitedRequest& request) {
  const int place = calls.enqueue_taken(request, kMemory, kMemory, nullptr);
  return place < 0 ? nullptr : cuda::engines()[static_cast<std::size_t>(place)];
}

}  // namespace

TEST_CASE("a call takes at most its limit of blocks, and goes by copy engines if it says so") {
  on_ranks(drop_in(), {}, [](GpuCalls& calls) {
    require(calls.rank().reserve_large_arena(CallMode::alone), calls.rank().why_no_large_arena());
    calls.rank().end_large_call();
    const auto reserve = [&](const LimitedRequest& request) {
      if (calls.wants_large_arena(request))
        require(calls.rank().reserve_large_arena(CallMode::alone), "no large arena");
    };
    int served = 0;
    for (const unsigned most : {4u, 16u, 32u, 48u})
      for (const std::uint64_t bytes : {kMib / 16, 1 * kMib, 4 * kMib, 64 * kMib}) {
        const LimitedRequest limited(all_reduce(bytes), {.most_blocks = most});
        if (!calls.takes(limited)) continue;
        reserve(limited);
        fake_cuda().launches.clear();
        served_by(calls, limited);
        for (const plait_test::FakeLaunch& launch : fake_cuda().launches)
          require(launch.blocks <= most, text("{} takes {} blocks", launch.kernel, launch.blocks));
        ++served;
      }
    require(served > 6, text("{} calls are served", served));
    require(!calls.takes({all_reduce(64 * kMib), {.most_blocks = 4}}), "NCCL is faster with 4");
    Request gather = all_reduce(64 << 10);
    gather.collective = Collective::all_gather;
    require(served_by(calls, gather) != &cuda::copy_exchange_engine(), "a small call by engines");
    const LimitedRequest by_engines(gather, {.engines_move = true});
    require(calls.takes(by_engines) && calls.wants_large_arena(by_engines), "not by engines");
    reserve(by_engines);
    require(served_by(calls, by_engines) == &cuda::copy_exchange_engine(), "by kernels");
    const LimitedRequest sum(all_reduce(64 << 10), {.engines_move = true});
    require(calls.takes(sum) && served_by(calls, sum) == &cuda::one_shot_engine(), "sums");
  });
}

TEST_CASE("selectors are kept for the limits used last, and a limit that comes again is obeyed") {
  on_ranks(drop_in(), {}, [](GpuCalls& calls) {
    for (int round = 0; round < 2; ++round)
      for (unsigned most = 8; most < 8 + 3 * GpuCalls::kMostLimits; ++most) {
        // A count of its own: offers of calls that were seen before need no selectors.
        Request request = all_reduce(64 << 10);
        request.count += most + 1000u * static_cast<unsigned>(round);
        const LimitedRequest limited(request, {.most_blocks = most});
        require(calls.takes(limited), text("refused with {} blocks", most));
        fake_cuda().launches.clear();
        served_by(calls, limited);
        require(!fake_cuda().launches.empty(), "no launch");
        for (const plait_test::FakeLaunch& launch : fake_cuda().launches)
          require(launch.blocks <= most, text("{} takes {} blocks", launch.kernel, launch.blocks));
        require(calls.kept_limits() <= GpuCalls::kMostLimits,
                text("{} limits are kept", calls.kept_limits()));
      }
    require(calls.kept_limits() == GpuCalls::kMostLimits, "no limits are kept");
  });
}

TEST_CASE("small calls are served at once, large ones with the large arena and its host memory") {
  on_ranks(drop_in(), {}, [](GpuCalls& calls) {
    const Request small = all_reduce(kMib), large = all_reduce(1024 * kMib);
    require(calls.takes(small) && !calls.wants_large_arena(small), "small calls");
    require(calls.takes(large) && calls.wants_large_arena(large), "large calls");
    require(calls.choice_of(large).find("copy_exchange") != std::string::npos,
            calls.choice_of(large));
    require(calls.rank().small_arena_group().host_bytes == 0, "host memory before the large arena");
    require(calls.rank().full_group().host_bytes == 16 * kMib, "host memory");
    fake_cuda().launches.clear();
    require(served_by(calls, small) == &cuda::one_shot_engine() && fake_cuda().launches.size() == 1,
            "a small call");
    require(calls.rank().engine_path().rings.empty(), "rings before the large arena");
    const std::uint64_t first = fake_cuda().memory.bytes;
    require(calls.rank().reserve_large_arena(CallMode::alone), calls.rank().why_no_large_arena());
    require(fake_cuda().memory.bytes > first, "no large arena");
    require(calls.rank().engine_path().rings.size() == kRanks &&
                calls.rank().engine_path().host_rings.size() == kRanks,
            "rings");
    require(served_by(calls, large) == &cuda::copy_exchange_engine(), "a large call");
    Counters counters;
    calls.add_to(counters);
    require(counters.calls == 2 && counters.calls_of["all_reduce/one_shot"] == 1 &&
                counters.calls_of["all_reduce/copy_exchange"] == 1,
            "counted calls");
  });
}

TEST_CASE("a rank without a stream for the large arena: all ranks keep the small arena") {
  // All streams of the large arena.
  const int streams = 1 + static_cast<int>(cuda::kEngineStreams + cuda::kHostStreams);
  for (int nth = 1; nth <= streams; ++nth) {
    on_ranks(drop_in(), {}, [nth](GpuCalls& calls) {
      const Request small = all_reduce(kMib), large = all_reduce(1024 * kMib);
      require(calls.takes(large) && calls.wants_large_arena(large), "large calls");
      if (calls.group().rank == 1) fake_cuda().refuses.of("stream_create", nth);
      for (int turn = 0; turn < 3; ++turn) {
        require(!calls.rank().reserve_large_arena(CallMode::alone), "large arena without a stream");
        require(calls.rank().why_no_large_arena().find("rank 1: ") == 0 &&
                    calls.rank().why_no_large_arena().find("stream_create") != std::string::npos,
                calls.rank().why_no_large_arena());
        require(served_by(calls, small) == &cuda::one_shot_engine(), "a small call");
      }
    });
  }
}

TEST_CASE("a rank short of memory for a while: a later call retries, and all ranks get the arena") {
  for (const bool has_stream : {true, false}) {
    on_ranks(drop_in(), {}, [has_stream](GpuCalls& calls) {
      const Request large = all_reduce(1024 * kMib);
      require(calls.takes(large) && calls.wants_large_arena(large), "large calls");
      plait_test::FakeCuda& gpu = fake_cuda();
      const bool is_full = calls.group().rank == 1;
      if (is_full && has_stream) gpu.memory.most = gpu.memory.bytes + 8 * kMib;
      if (is_full && !has_stream) gpu.refuses.of("stream_create", 4);
      require(!calls.rank().reserve_large_arena(CallMode::alone), "large arena without memory");
      const std::string why = calls.rank().why_no_large_arena();
      require(why.find("rank 1: out of memory: ") == 0 && why.find("tries again") != why.npos, why);
      gpu.memory.most = ~std::size_t{0};
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (!calls.rank().reserve_large_arena(CallMode::alone) &&
             std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      require(calls.rank().reserve_large_arena(CallMode::alone), calls.rank().why_no_large_arena());
      require(calls.rank().engine_path().rings.size() == kRanks, "rings");
      require(served_by(calls, large) == &cuda::copy_exchange_engine(), "a large call");
    });
  }
}

/// Host share of a 1 GiB call in thousandths, on communicators with different device memory.
std::uint64_t permille_through_host(GpuCalls& calls) {
  const Request large = all_reduce(1024 * kMib);
  require(calls.takes(large), "large calls");
  require(calls.rank().reserve_large_arena(CallMode::alone), calls.rank().why_no_large_arena());
  require(served_by(calls, large) == &cuda::copy_exchange_engine(), "a large call");
  Counters counters;
  calls.add_to(counters);
  std::uint64_t through_host = 0, all = 0;
  for (const auto& [path, bytes] : counters.bytes_of_path) {
    all += bytes;
    if (path.find("host") != std::string::npos) through_host += bytes;
  }
  return all == 0 ? 0 : through_host * 1000 / all;
}

TEST_CASE("large calls share host memory if their inbox has space beside its chunks") {
  // An inbox of 68 MiB, in which pieces would be too small; of 128 MiB; the long inbox.
  for (const std::uint64_t budget : {183 * kMib, 640 * kMib, std::uint64_t{0}}) {
    GpuCallsOptions options = drop_in();
    options.rank.memory.budget_bytes = budget;
    on_ranks(options, {}, [budget](GpuCalls& calls) {
      const std::uint64_t permille = permille_through_host(calls);
      require(budget == 183 * kMib ? permille == 0 : permille > 50,
              text("{} thousandths through host memory with {} bytes", permille, budget));
    });
  }
}

TEST_CASE("with masked links calls use plans, and no kernel that uses all links") {
  on_ranks(drop_in(), {"nvlink:0-1"}, [](GpuCalls& calls) {
    require(!calls.group().reach.why_no_kernels.empty(), "no mask");
    require(!calls.rank().has_lazy_arena(), "a lazy arena");
    for (const std::uint64_t bytes : {kMib, 64 * kMib}) {
      const Request request = all_reduce(bytes);
      require(calls.takes(request), text("{} bytes are not taken", bytes));
      require(calls.explain(request).find("no kernel: ") != std::string::npos,
              calls.explain(request));
      require(served_by(calls, request) == nullptr, "by an engine");
    }
  });
}

TEST_CASE("with masked links the smallest share of a pair is enough for its plans") {
  GpuCallsOptions options = drop_in();
  options.has_lazy_arena = false;
  options.rank.memory = cuda::pair_arena_options(cuda::kArenaGrainBytes);
  on_ranks(options, {"nvlink:0-1"}, [](GpuCalls& calls) {
    require(fake_cuda().memory.bytes <= cuda::kArenaGrainBytes, "more memory than its part");
    for (const Collective collective : {Collective::copy, Collective::send_recv})
      for (const std::uint64_t bytes : {kMib, 256 * kMib}) {
        Request request = all_reduce(bytes);
        request.collective = collective;
        request.peer = 1;
        require(calls.takes(request), text("{} of {} is not taken", name_of(collective), bytes));
        require(served_by(calls, request) == nullptr, "by an engine");
      }
  });
}

TEST_CASE("the first call of a plan does not wait for the GPU, even in a capture") {
  on_ranks(drop_in(), {"nvlink:0-1"}, [](GpuCalls& calls) {
    plait_test::FakeCuda& gpu = fake_cuda();
    const auto call = [&](std::uint64_t bytes) {
      require(calls.takes(all_reduce(bytes)), "it is not taken");
      gpu.waits_for_all = 0;
      gpu.notes.clear();
      gpu.launches.clear();
      require(served_by(calls, all_reduce(bytes)) == nullptr, "by an engine");
      require(gpu.waits_for_all == 0, "the host waited for the GPU");
      require(gpu.launches.size() == 1, "no launch");
    };
    const auto waits = [&] {
      const std::vector<FakeNote> notes = gpu.notes.all();
      return std::count_if(notes.begin(), notes.end(),
                           [](const FakeNote& note) { return note.what == "wait"; });
    };
    gpu.busy_looks = 2;  // The plan's tables are in flight for the first two queries.
    call(kMib);
    require(waits() == 1, "its stream did not wait for its tables");
    call(kMib);
    require(waits() == 1, "its stream did not wait again");
    call(kMib);
    call(kMib);
    require(waits() == 0, "it waits for what is there");
    gpu.is_capturing = true;
    gpu.busy_looks = 3;
    call(2 * kMib);
    require(gpu.busy_looks == 0 && waits() == 0, "a graph that may come too early");
    gpu.is_capturing = false;
  });
}

TEST_CASE("a strategy that PLAIT_ALGO names serves all that it can") {
  GpuCallsOptions options = drop_in();
  options.forced.strategy = "tiled";
  on_ranks(options, {}, [](GpuCalls& calls) {
    const Request request = all_reduce(64 * kMib);
    require(calls.takes(request) && calls.wants_large_arena(request), "it is not taken");
    require(calls.rank().reserve_large_arena(CallMode::alone), calls.rank().why_no_large_arena());
    require(served_by(calls, request) == &cuda::tiled_engine(), "another engine");
  });
}

namespace {

/// Number of calls counted under names that start with `name`, as in "all_reduce/tiled".
std::uint64_t counted(const GpuCalls& calls, const std::string& name) {
  Counters counters;
  calls.add_to(counters);
  std::uint64_t found = 0;
  for (const auto& [as, count] : counters.calls_of)
    if (as == name || as.starts_with(name + "(")) found += count;
  return found;
}

void require_counted(const GpuCalls& calls, std::uint64_t by_tiles, std::uint64_t by_rings) {
  const std::uint64_t tiles = counted(calls, "all_reduce/tiled"),
                      rings = counted(calls, "all_reduce/scatter_ring");
  require(tiles == by_tiles && rings == by_rings, text("{} by tiles, {} by rings", tiles, rings));
}

}  // namespace

TEST_CASE("long all_reduces of four ranks use another engine in a graph") {
  GpuCallsOptions options = drop_in();
  options.beats_nccl = options.rank.overlap_compute = false;
  options.checks = load_topology("hgx-h200");
  constexpr int kFour = 4;
  const Request large = all_reduce(512 * kMib, kFour), shorter = all_reduce(128 * kMib, kFour);
  const auto enqueue = [](GpuCalls& calls, const Request& request, bool in_graph,
                          const CallOptions& wanted = {}) {
    fake_cuda().is_capturing = in_graph;
    calls.enqueue(request, kMemory, kMemory, nullptr, wanted);
    fake_cuda().is_capturing = false;
  };
  on_ranks(
      options, {},
      [&](GpuCalls& calls) {
        require(calls.rank().reserve_large_arena(CallMode::alone),
                calls.rank().why_no_large_arena());
        for (const bool in_graph : {true, false, true, false, true}) {
          enqueue(calls, large, in_graph);
          enqueue(calls, shorter, in_graph);
        }
        require_counted(calls, 2, 3);
        require(counted(calls, "all_reduce/two_shot") == 5, "the shorter ones by LL packets");
        require(calls.explain(large).find("in graphs: engine scatter_ring") != std::string::npos,
                calls.explain(large));
        // A caller's parameters apply in both: the row's ring has no share and no window.
        for (const char* param : {"host_permille", "window"})
          for (const bool in_graph : {false, true}) {
            CallOptions wanted;
            wanted.params[param] = 1;
            enqueue(calls, large, in_graph, wanted);
          }
        require_counted(calls, 6, 3);
      },
      kFour);
  on_ranks(
      options, {},
      [&](GpuCalls& calls) {  // Captured without the large arena, then with the arena.
        enqueue(calls, large, true);
        require_counted(calls, 0, 0);
        enqueue(calls, large, false);
        enqueue(calls, large, true);
        require_counted(calls, 1, 1);
      },
      kFour);
  // The drop-in's choice does not depend on captures, even if calls may take the whole GPU.
  options.rank.most_blocks = 132;
  options.bitwise = true;
  on_ranks(
      options, {},
      [&](GpuCalls& calls) {
        require(calls.takes(large) && calls.rank().reserve_large_arena(CallMode::alone),
                calls.rank().why_no_large_arena());
        require(!calls.rank().full_group().leaves_sms(), "it leaves multiprocessors");
        for (const bool in_graph : {true, false}) {
          fake_cuda().is_capturing = in_graph;
          require(served_by(calls, large) == &cuda::tiled_engine(), "by another engine");
        }
        fake_cuda().is_capturing = false;
      },
      kFour);
}

TEST_CASE("on GPUs that were not measured a plan serves calls it is predicted to win") {
  Machine a100;
  a100.kind = "NVIDIA A100-SXM4-40GB, 108 multiprocessors, 12 NVLinks to GPUs";
  a100.topology = "narval";
  a100.gpu.name = "NVIDIA A100-SXM4-40GB";
  a100.gpu.major = 8;
  a100.gpu.multiprocessors = 108;
  a100.gpu.shared_bytes = 163 << 10;
  a100.gpu.made_for = 80;
  GpuCallsOptions options = drop_in();
  options.beats_nccl = options.rank.overlap_compute = false;
  options.rank.memory.plans = true;
  options.checks = load_topology("narval");
  constexpr int kFour = 4;
  on_ranks(
      options, {},
      [&](GpuCalls& calls) {
        const Request small = all_reduce(kMib, kFour);
        Request large = all_reduce(64 * kMib, kFour);
        large.collective = Collective::broadcast;  // By engines over a single link of three.
        require(!calls.rank().full_group().runs(cuda::kTiledKernels), "tiled kernels");
        calls.enqueue(small, kMemory, kMemory, nullptr, {});
        calls.enqueue(large, kMemory, kMemory, nullptr, {});
        Counters counters;
        calls.add_to(counters);
        const auto counted_as = [&](const char* what) {
          return std::count_if(
              counters.calls_of.begin(), counters.calls_of.end(),
              [&](const auto& row) { return row.first.find(what) != std::string::npos; });
        };
        require(counters.calls == 2 && counted_as("broadcast/direct(") == 1, calls.explain(large));
        require(calls.explain(small).find("chosen: engine") != std::string::npos,
                calls.explain(small));
        require(calls.explain(large).find("chosen: direct(") != std::string::npos,
                calls.explain(large));
      },
      kFour, a100);
}

TEST_CASE("a plan refused for lack of memory is served once the large arena exists") {
  GpuCallsOptions options = drop_in();
  options.beats_nccl = false;
  options.rank.large_arena_wait_s = 0;
  options.rank.memory.plans = true;
  options.checks = load_topology("hgx-h200");
  CallOptions by_ring;
  by_ring.strategy = "ring";
  on_ranks(options, {}, [&](GpuCalls& calls) {
    bool was_refused = false, is_served = false;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!is_served && std::chrono::steady_clock::now() < until) {
      try {
        calls.enqueue(all_reduce(kMib), kMemory, kMemory, nullptr, by_ring);
        is_served = true;
      } catch (const Error& error) {
        require(error.code() == ErrorCode::unsupported, error.what());
        was_refused = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    require(was_refused && is_served, text("refused {}, served {}", was_refused, is_served));
    const std::vector<CounterRow> rows = counter_rows();
    require(rows.size() == 1 && rows[0].name == std::string("all_reduce") &&
                rows[0].served == kByPlait && rows[0].calls == 1 && rows[0].bytes == kMib,
            "another row in the book of calls");
  });
}
