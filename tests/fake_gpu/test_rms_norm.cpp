// Launches of all_reduce_rms_norm over a fake driver: one kernel in the arena of small calls,
// pieces and the large arena for more rows, an all_reduce and the norm behind it for many, and
// refusals.
#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <string>

#include "base/text.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "gpu/ll/ll_memory.hpp"
#include "plait/error.hpp"
#include "tests/fake_gpu/h200_group.hpp"
#include "tests/fake_gpu/on_ranks.hpp"
#include "tests/fake_gpu/require.hpp"

using namespace plait;
using namespace plait_test;

namespace {

constexpr std::uint64_t kMib = 1 << 20;

/// Runs `body` with the calls of each rank. why: reason for arenas in host memory. forced: strategy
/// of PLAIT_ALGO. most_blocks: sm_budget.
void on_ranks(int ranks, const std::function<void(GpuCalls&)>& body, bool has_lazy_arena = true,
              const std::string& why = "", const std::string& forced = "",
              SumOrder order = SumOrder::rank_order, unsigned most_blocks = 0) {
  CHECK(run_on_ranks(ranks, [&](const RankProcess& mine) {
          GpuCallsOptions options = options_without_kernels();
          options.rank.large_arena_wait_s = 30;
          options.has_lazy_arena = has_lazy_arena;
          options.rank.memory.plans = true;
          options.rank.most_blocks = most_blocks;
          options.sum_order = order;
          options.forced.strategy = forced;
          with_calls(mine, h200_group(mine.rank, ranks, mine.exchange, why), options, body);
        }) == 0);
}

void* place(std::uint64_t at) { return reinterpret_cast<void*>(std::uintptr_t{at * 1024 * kMib}); }

/// Options of a call by name.
CallOptions by(const std::string& strategy, std::map<std::string, std::int64_t> params = {}) {
  CallOptions options;
  options.strategy = strategy;
  options.params = std::move(params);
  return options;
}

RmsNormBuffers buffers() { return {place(1), place(2), place(3), place(4), nullptr}; }

/// Makes the call; returns the kernels launched: "name blocks x threads".
std::string launched(GpuCalls& calls, const RmsNorm& norm, const CallOptions& options = {},
                     const RmsNormBuffers& given = buffers()) {
  fake_cuda().launches.clear();
  calls.enqueue(norm, given, nullptr, options);
  std::string all;
  for (const plait_test::FakeLaunch& one : fake_cuda().launches)
    all += text("{}{} {}x{}", all.empty() ? "" : ", ", one.kernel, one.blocks, one.threads);
  return all;
}

void expect(const std::string& found, const std::string& wanted) {
  require(found == wanted, text("wanted {}, found {}", wanted, found));
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("few rows are one launch in the arena of small calls") {
  on_ranks(2, [](GpuCalls& calls) {
    RmsNorm norm{.rows = 1, .hidden = 8192};
    expect(launched(calls, norm), "plait_sum_norm_cluster_bf16_2_1 8x128");
    norm.rows = 64, norm.hidden = 4096, norm.type = norm.output = DataType::fp16;
    expect(launched(calls, norm, by("one_shot")), "plait_sum_norm_cluster_fp16_2_1 64x512");
    norm.output = DataType::fp8e4m3, norm.hidden = 16384, norm.rows = 8;
    expect(launched(calls, norm), "plait_sum_norm_cluster_fp16_2_1 64x256");
    require(calls.rank().engine_path().rings.empty(), "the large arena was allocated");
    Counters counters;
    calls.add_to(counters);
    require(counters.calls_of["all_reduce_rms_norm/fused"] == 3, "counted calls");
    expect(launched(calls, {.rows = 0, .hidden = 8}), "");
  });
}

TEST_CASE("more than two ranks divide larger messages by rows") {
  on_ranks(4, [](GpuCalls& calls) {
    expect(launched(calls, {.rows = 4, .hidden = 8192}), "plait_sum_norm_one_shot_bf16_4_4 4x256");
    expect(launched(calls, {.rows = 64, .hidden = 8192}),
           "plait_sum_norm_two_shot_bf16_4_4 32x256");
  });
  on_ranks(3, [](GpuCalls& calls) {
    expect(launched(calls, {.rows = 1, .hidden = 64}), "plait_sum_norm_one_shot_bf16_0_4 1x32");
  });
}

TEST_CASE("rows that do not fit into the small arena wait for the large arena") {
  on_ranks(2, [](GpuCalls& calls) {
    const std::string all = "plait_sum_norm_one_shot_bf16_2_2 132x512";
    expect(launched(calls, {.rows = 512, .hidden = 8192}, by("one_shot")), all);
    require(calls.rank().engine_path().rings.size() == 2, "no large arena");
  });
}

TEST_CASE("without memory for all rows a call is several launches") {
  on_ranks(2, [](GpuCalls& calls) {
    fake_cuda().memory.most = fake_cuda().memory.bytes;
    const std::uint64_t half = calls.rank().small_arena_group().sizes[cuda::kSentinelPackets];
    const std::uint64_t rows = half / 16384;
    const std::string first = text("plait_sum_norm_one_shot_bf16_2_2 {}x512", rows);
    expect(launched(calls, {.rows = rows + 2, .hidden = 8192}),
           text("{}, plait_sum_norm_one_shot_bf16_2_2 2x512", first));
    fake_cuda().memory.most = ~std::size_t{0};
  });
}

TEST_CASE("strategies: the kernel's two, an all_reduce and the norm, or an engine and the norm") {
  on_ranks(2, [](GpuCalls& calls) {
    const RmsNorm norm{.rows = 4, .hidden = 1024};
    expect(launched(calls, norm, by("two_shot", {{"units", 4}, {"blocks", 2}})),
           "plait_sum_norm_two_shot_bf16_2_4 2x32");
    const std::string alone = "plait_norm_alone_bf16_0_2 4x64";
    const std::string both = launched(calls, norm, by("unfused"));
    require(both.find("plait_one_shot_bf16_sum_2") == 0 && both.find(alone) != both.npos, both);
    const std::string between = launched(calls, {.rows = 65, .hidden = 8192});
    require(between.find("norm_alone") != between.npos, between);
    const std::string tiled = launched(calls, norm, by("tiled"));
    require(tiled.find("tiled") != tiled.npos && tiled.find(alone) != tiled.npos, tiled);
    const std::string many = launched(calls, {.rows = 1 << 13, .hidden = 8192});
    require(many.find("norm_alone") != many.npos, many);
    const auto says = [&](const RmsNorm& given, const CallOptions& options,
                          const std::string& words) {
      const std::string found = refusal([&] { launched(calls, given, options); });
      require(found.find(words) != found.npos, text("wanted {}, found {}", words, found));
    };
    says(norm, by("one_shot", {{"units", 3}}), "found units=3");
    says(norm, by("", {{"window", 2}}), "found window=2");
    RmsNorm fp8 = norm;
    fp8.output = DataType::fp8e4m3;
    says(fp8, by("unfused"), "is one kernel, and the strategy is unfused");
    RmsNormBuffers host = buffers();
    host.weight = &host;
    const std::string found = refusal([&] { launched(calls, norm, {}, host); });
    require(found.find("found host memory") != found.npos, found);
  });
}

TEST_CASE("clusters of blocks hold few rows of two ranks, and others on demand") {
  on_ranks(2, [](GpuCalls& calls) {
    const auto last = [] { return fake_cuda().launches.back(); };
    RmsNorm norm{.rows = 16, .hidden = 4096};
    expect(launched(calls, norm), "plait_sum_norm_cluster_bf16_2_1 128x64");
    require(last().cluster == 8 && last().is_programmatic, "a programmatic launch of clusters");
    norm.rows = 17;
    expect(launched(calls, norm), "plait_sum_norm_cluster_bf16_2_1 17x512");
    require(last().cluster == 1, "a block a row");
    norm.rows = 129;
    require(launched(calls, norm).find("norm_alone") != std::string::npos, "all_reduce, norm");
    norm.rows = 64, norm.hidden = 8192;
    expect(launched(calls, norm), "plait_sum_norm_cluster_bf16_2_1 512x128");
    norm.rows = 65;
    require(launched(calls, norm).find("norm_alone") != std::string::npos, "all_reduce, norm");
    norm.rows = 200, norm.hidden = 16384;
    expect(launched(calls, norm, by("one_shot", {{"cluster", 4}})),
           "plait_sum_norm_cluster_bf16_2_1 132x512");
    expect(launched(calls, norm, by("one_shot", {{"units", 1}})),
           "plait_sum_norm_cluster_bf16_2_1 132x512");
    require(last().cluster == 4, "the smallest cluster that holds a row");
    expect(launched(calls, norm, by("", {{"cluster", 8}})),
           "plait_sum_norm_cluster_bf16_2_1 264x256");
  });
  on_ranks(4, [](GpuCalls& calls) {
    expect(launched(calls, {.rows = 4, .hidden = 8192}, by("one_shot", {{"cluster", 4}})),
           "plait_sum_norm_cluster_bf16_4_1 16x256");
  });
}

TEST_CASE("a parameter that does not hold a row is an error with values that do") {
  on_ranks(2, [](GpuCalls& calls) {
    const auto says = [&](const CallOptions& options, const std::string& words) {
      const std::string found =
          refusal([&] { launched(calls, {.rows = 4, .hidden = 16384}, options); });
      require(found.find(words) != found.npos, text("wanted {}, found {}", words, found));
    };
    says(by("", {{"cluster", 3}}), "found cluster=3");
    const std::string four = "rows of 16384 elements want a cluster of 4 to 8 blocks";
    says(by("one_shot", {{"cluster", 2}}), four);
    says(by("", {{"cluster", 2}}), "found cluster=2");
    says(by("one_shot", {{"cluster", 1}, {"units", 1}}), four);
    says(by("one_shot", {{"units", 1}, {"blocks", 2}}),
         "a cluster of at least 4 blocks by a unit a thread, found blocks=2; wanted blocks=4 or "
         "more");
    says(by("", {{"cluster", 8}, {"blocks", 4}}),
         "a cluster of 4 to 4 blocks by a unit a thread, found cluster=8");
    says(by("one_shot", {{"units", 4}}), "want at least 8 units a thread, found units=4");
    says(by("two_shot", {{"units", 2}}), "found units=2");
    says(by("two_shot", {{"cluster", 8}}), "clusters of blocks are for one_shot");
    says(by("two_shot", {{"units", 1}}), "serves cluster=1 and units of 2, 4 or 8");
    says(by("one_shot", {{"cluster", 8}, {"units", 2}}), "found units=2; wanted cluster=1");
    says(by("one_shot", {{"cluster", 8}, {"ahead", 1}}), "found ahead=1");
  });
  const unsigned sm_budget = 2;
  on_ranks(
      2,
      [](GpuCalls& calls) {
        const std::string found = refusal(
            [&] { launched(calls, {.rows = 4, .hidden = 16384}, by("", {{"cluster", 4}})); });
        require(found.find("found at most 2 blocks a launch; wanted sm_budget=4") != found.npos,
                found);
      },
      true, "", "", SumOrder::rank_order, sm_budget);
}

TEST_CASE("a part of a GPU that places no cluster of eight blocks has rows in a block each") {
  fake_cuda().gpu.multiprocessors = 4;
  on_ranks(2, [](GpuCalls& calls) {
    const RmsNorm norm{.rows = 4, .hidden = 8192};
    expect(launched(calls, norm), "plait_sum_norm_one_shot_bf16_2_2 4x512");
    const std::string found =
        refusal([&] { launched(calls, norm, by("one_shot", {{"cluster", 2}})); });
    require(found.find("rank 0's GPU: plait_sum_norm_cluster_bf16_2_1: ") != found.npos, found);
  });
  fake_cuda().gpu = {};
}

TEST_CASE("parameters without a strategy demand the fused kernel, whatever PLAIT_ALGO names") {
  for (const std::string forced : {"ring", "two_shot"})
    on_ranks(
        2,
        [&](GpuCalls& calls) {
          const RmsNorm norm{.rows = 4, .hidden = 8192};
          expect(launched(calls, norm, by("", {{"cluster", 4}})),
                 "plait_sum_norm_cluster_bf16_2_1 16x256");
          expect(launched(calls, norm, by("", {{"units", 4}})),
                 "plait_sum_norm_one_shot_bf16_2_4 4x256");
          const bool is_two_shot =
              launched(calls, norm) == "plait_sum_norm_two_shot_bf16_2_2 2x512";
          require(is_two_shot == (forced == "two_shot"), "a call without parameters");
        },
        true, "", forced);
}

TEST_CASE("sums in trees have kernels of their own, of 4 units a thread or 8") {
  const auto in_trees = [](int ranks, const std::function<void(GpuCalls&)>& body) {
    on_ranks(ranks, body, true, "", "", SumOrder::tree);
  };
  in_trees(4, [](GpuCalls& calls) {
    RmsNorm norm{.rows = 4, .hidden = 8192};
    expect(launched(calls, norm), "plait_sum_norm_one_shot_tree_bf16_4_4 4x256");
    const std::string wrong =
        refusal([&] { launched(calls, norm, by("one_shot", {{"units", 2}})); });
    require(wrong.find("sums in the order tree want cluster=1 and units of 4 or 8") != wrong.npos,
            wrong);
    require(!refusal([&] { launched(calls, norm, by("", {{"cluster", 8}})); }).empty(), "cluster");
    norm.rows = 64, norm.output = DataType::fp8e4m3;
    expect(launched(calls, norm), "plait_sum_norm_two_shot_tree_bf16_4_4 32x256");
  });
  in_trees(8, [](GpuCalls& calls) {
    expect(launched(calls, {.rows = 1, .hidden = 16384}, by("two_shot")),
           "plait_sum_norm_two_shot_tree_bf16_8_8 4x256");
  });
  in_trees(2, [](GpuCalls& calls) {  // a sum of two has one order
    expect(launched(calls, {.rows = 1, .hidden = 8192}), "plait_sum_norm_cluster_bf16_2_1 8x128");
  });
}

TEST_CASE("one rank normalises its own rows, and arenas may lie in host memory") {
  on_ranks(1, [](GpuCalls& calls) {
    RmsNorm norm{.rows = 2, .hidden = 4096};
    expect(launched(calls, norm), "plait_norm_alone_bf16_0_2 2x256");
    norm.output = DataType::fp8e4m3;
    expect(launched(calls, norm), "plait_norm_alone_bf16_0_2 2x256");
    expect(launched(calls, norm, by("one_shot")), "plait_norm_alone_bf16_0_2 2x256");
  });
  on_ranks(
      1,
      [](GpuCalls& calls) {
        expect(launched(calls, {.rows = 2, .hidden = 4096}), "plait_norm_alone_bf16_0_2 2x256");
      },
      true, "", "two_shot");
  on_ranks(
      2,
      [](GpuCalls& calls) {
        expect(launched(calls, {.rows = 2, .hidden = 4096}),
               "plait_sum_norm_one_shot_bf16_2_2 2x256");
      },
      true, "the driver grants none");
}
