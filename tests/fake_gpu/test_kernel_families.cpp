// Ranks on GPUs that can run some kernels only, or none: set-up finds out together with the peers,
// and every call is served by the kernels left, or refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "fake_cuda/fake_gpu.hpp"
#include "gpu/by_name.hpp"
#include "gpu/lanes/plan_memory.hpp"
#include "gpu/rank/cuda_rank.hpp"
#include "gpu/select/engines.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "plait/error.hpp"

// In place of the build's device code.
extern "C" const void* const plait_fatbins[] = {"a fatbin", nullptr};
extern "C" const char plait_built_for[] = "8.0, 9.0, PTX of 9.0";

using namespace plait;
using plait::cuda::CudaRank;
using plait::cuda::CudaRankOptions;
using plait_test::fake_cuda;
using plait_test::FakeGpu;
using plait_test::FakeLaunch;

namespace {

const FakeGpu kH200;
const FakeGpu kB200{"NVIDIA B200", 10, 0, 148, 227 << 10, 228 << 10, 2048, 100};
const FakeGpu kA100{"NVIDIA A100", 8, 0, 108, 163 << 10, 164 << 10, 2048, 80};
const FakeGpu kRtx{"NVIDIA RTX PRO 6000", 12, 0, 188, 99 << 10, 100 << 10, 1536, 120};
const FakeGpu kSmallRtx{"NVIDIA RTX 2000", 8, 9, 22, 99 << 10, 100 << 10, 1536, 80};
const FakeGpu kSlice{"NVIDIA H100 MIG 1g", 9, 0, 16, 227 << 10, 228 << 10, 2048, 90};
const FakeGpu kV100{"Tesla V100", 7, 0, 80, 96 << 10, 96 << 10, 2048, 0};
constexpr std::uint64_t kMib = 1 << 20;

/// Rank 0 of several with `gpu` as every rank's GPU; the last rank may report other probes in the
/// round of probes, behind that of the processes.
struct ProbedRank {
  explicit ProbedRank(const FakeGpu& gpu, int ranks = 2, std::string last_shows = "",
                      std::byte* message_slots = nullptr) {
    fake_cuda().gpu = gpu;
    fake_cuda().launches.clear();
    CudaRankOptions options;
    options.ranks = ranks;
    options.messages = true;
    options.message_slots = message_slots;
    options.proves_paths = false;  // No kernel runs here.
    options.sizes[cuda::kPlanScratch] = 64 * kMib;
    cuda = std::make_unique<CudaRank>(options, [&](const std::string& mine) {
      std::vector<std::string> records(static_cast<std::size_t>(ranks), mine);
      if (shown.size() == kProbes && !last_shows.empty()) records.back() = last_shows;
      shown.push_back(mine);
      return records;
    });
    tried = fake_cuda().launches;
    fake_cuda().launches.clear();
  }
  static const std::vector<FakeLaunch>& launches() { return fake_cuda().launches; }
  /// Creates a stream in the GPU's context.
  static cuda::Stream stream() {
    return plait_test::machine().stream_of(reinterpret_cast<cuda::Context>(0x100));
  }
  static constexpr std::size_t kProbes = 1;
  std::vector<std::string> shown;  // By round.
  std::vector<FakeLaunch> tried;   // Launches of the set-up.
  std::unique_ptr<CudaRank> cuda;
};

Request request_of(Collective collective, std::uint64_t bytes, int ranks = 2,
                   DataType type = DataType::fp32, ReduceOp op = ReduceOp::sum) {
  Request request;
  request.collective = collective;
  request.type = type;
  request.op = op;
  request.count = bytes / bytes_of(type);
  request.ranks = ranks;
  return request;
}

std::set<std::string> names_of(const std::vector<FakeLaunch>& launches) {
  std::set<std::string> names;
  for (const FakeLaunch& launch : launches) names.insert(launch.kernel);
  return names;
}

bool some_programmatic(const std::vector<FakeLaunch>& launches) {
  return std::any_of(launches.begin(), launches.end(),
                     [](const FakeLaunch& launch) { return launch.is_programmatic; });
}

std::string refusal(const ProbedRank& rank, const std::string& kernel) {
  try {
    bench::run(*rank.cuda, kernel, request_of(Collective::all_reduce, kMib), {}, nullptr);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Makes a call of every collective, type and op at many sizes, with the rank's choice of engine.
void call_all(const ProbedRank& rank, int ranks) {
  const cuda::Stream stream = ProbedRank::stream();
  char* const memory = reinterpret_cast<char*>(0x10000);  // Never read.
  for (const Collective collective : {Collective::all_reduce, Collective::all_gather,
                                      Collective::reduce_scatter, Collective::broadcast})
    for (const DataType type : {DataType::fp32, DataType::bf16, DataType::int64, DataType::uint8})
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max})
        for (std::uint64_t bytes = 1024; bytes <= 64 * kMib; bytes *= 8) {
          const Request request = request_of(collective, bytes, ranks, type, op);
          if (const auto choice = bench::built_in(*rank.cuda, request))
            rank.cuda->run(*rank.cuda->prepare(*choice->engine, request, choice->tuning), request,
                           {memory, memory, {}}, stream);
        }
  rank.cuda->messages({{true, 1, memory, 4096}, {false, 1, memory, 4096}}, stream);
  rank.cuda->messages({{true, 1, memory, 8 * kMib}, {false, 1, memory, 8 * kMib}}, stream);
}

}  // namespace

// First, because code is loaded once per process.
TEST_CASE("a GPU without device code is refused by name") {
  try {
    const ProbedRank rank(kV100);
    FAIL("a rank should not have set up");
  } catch (const Error& error) {
    const std::string what = error.what();
    CAPTURE(what);
    CHECK(error.code() == ErrorCode::unsupported);
    for (const char* const said : {"Tesla V100", "7.0", "8.0, 9.0, PTX of 9.0"})
      CHECK(what.find(said) != std::string::npos);
  }
}

TEST_CASE("an H200 runs all families, and each kernel is probed before the first call") {
  for (const int ranks : {2, 3, 8}) {
    const ProbedRank rank(kH200, ranks);
    for (const char* const kernel : {"one_shot", "two_shot", "direct_ll", "tiled"}) {
      CAPTURE(kernel);
      CHECK(bench::takes(*rank.cuda, kernel, request_of(Collective::all_reduce, kMib, ranks)));
    }
    for (const FakeLaunch& launch : rank.tried) CHECK(launch.blocks == launch.cluster);
    call_all(rank, ranks);
    const std::set<std::string> tried = names_of(rank.tried);
    CHECK(ProbedRank::launches().size() > 50);
    for (const std::string& kernel : names_of(ProbedRank::launches())) {
      CAPTURE(kernel);
      CHECK(tried.contains(kernel));
    }
    CHECK(some_programmatic(ProbedRank::launches()));
  }
}

TEST_CASE("setting up leaves the process's environment alone") {
  const ProbedRank rank(kH200);
  CHECK(std::getenv("CUDA_MODULE_LOADING") == nullptr);
}

TEST_CASE("a GPU of 100 KiB of shared memory: no tiled kernels, and calls are served without") {
  const ProbedRank rank(kRtx);
  const Request large = request_of(Collective::all_reduce, 40 * kMib);
  CHECK_FALSE(bench::takes(*rank.cuda, "tiled", large));
  CHECK(bench::takes(*rank.cuda, "two_shot", large));
  const auto choice = bench::built_in(*rank.cuda, large);
  REQUIRE(choice);
  CHECK(choice->engine != &cuda::tiled_engine());
  const std::string why_not = refusal(rank, "tiled");
  CAPTURE(why_not);
  CHECK(why_not.find("rank 0's GPU") != std::string::npos);
  CHECK(why_not.find("shared memory") != std::string::npos);
  call_all(rank, 2);
  for (const FakeLaunch& launch : ProbedRank::launches()) CHECK(launch.shared_bytes <= 99 << 10);
}

TEST_CASE("no rank runs a kernel that one rank's GPU lacks") {
  const std::string of_rtx = ProbedRank(kRtx).shown[ProbedRank::kProbes];
  const ProbedRank rank(kH200, 2, of_rtx);
  CHECK_FALSE(bench::takes(*rank.cuda, "tiled", request_of(Collective::all_reduce, kMib)));
  CHECK(bench::takes(*rank.cuda, "direct_ll", request_of(Collective::all_reduce, kMib)));
  CHECK(refusal(rank, "tiled").find("rank 1's GPU") != std::string::npos);
  call_all(rank, 2);
  for (const FakeLaunch& launch : ProbedRank::launches()) CHECK(launch.shared_bytes == 0);
}

TEST_CASE("compute capability 8.0: no kernels of bulk copies, no programmatic launches") {
  for (const int ranks : {2, 4}) {
    const ProbedRank rank(kA100, ranks);
    CHECK_FALSE(bench::takes(*rank.cuda, "tiled", request_of(Collective::all_reduce, kMib, ranks)));
    for (const char* const kernel : {"one_shot", "two_shot", "direct_ll"})
      CHECK(bench::takes(*rank.cuda, kernel, request_of(Collective::all_reduce, kMib, ranks)));
    CHECK(refusal(ProbedRank(kA100), "tiled").find("plait_tiled") != std::string::npos);
    call_all(rank, ranks);
    CHECK(ProbedRank::launches().size() > 50);
    CHECK_FALSE(some_programmatic(ProbedRank::launches()));
  }
}

TEST_CASE("code made for 8.0 on a later GPU is not launched as if it waited for the one before") {
  FakeGpu gpu = kH200;
  gpu.made_for = 80;
  const ProbedRank rank(gpu);
  call_all(rank, 2);
  CHECK_FALSE(some_programmatic(ProbedRank::launches()));
}

TEST_CASE("few multiprocessors: no launch has more blocks than run at once") {
  for (const FakeGpu& gpu : {kSlice, kSmallRtx}) {
    const ProbedRank rank(gpu, 3);
    const Topology topology = load_topology("hgx-h200");
    const Request request = checked(request_of(Collective::all_reduce, 8 * kMib, 3), topology);
    const auto bound = rank.cuda->bind(propose_one(topology, request, "direct"));
    rank.cuda->run(*bound, nullptr, nullptr, ProbedRank::stream());
    call_all(rank, 3);
    CHECK(ProbedRank::launches().size() > 20);
    for (const FakeLaunch& launch : ProbedRank::launches()) {
      CAPTURE(launch.kernel);
      CHECK(static_cast<int>(launch.blocks) <= gpu.multiprocessors);
    }
  }
}

TEST_CASE("plans of two communicators have room for the blocks of both") {
  for (const FakeGpu& gpu : {kA100, kSlice, kH200}) {
    const ProbedRank rank(gpu, 3);
    const Topology topology = load_topology("hgx-h200");
    const Request request = checked(request_of(Collective::all_reduce, 8 * kMib, 3), topology);
    const auto bound = rank.cuda->bind(propose_one(topology, request, "direct"));
    rank.cuda->run(*bound, nullptr, nullptr, ProbedRank::stream());
    unsigned most = 0;
    for (const FakeLaunch& launch : ProbedRank::launches()) most = std::max(most, launch.blocks);
    CHECK(2 * static_cast<int>(most) <= gpu.multiprocessors);
    CHECK(3 * static_cast<int>(most) > gpu.multiprocessors);
  }
}

TEST_CASE("the SMs that GPUs report bound tiled calls, and the flags and slots of their blocks") {
  for (const auto& [gpu, blocks] : {std::pair{kH200, 100u}, {kB200, 116u}}) {
    const ProbedRank rank(gpu);
    CHECK(rank.cuda->full_group().multiprocessors == static_cast<unsigned>(gpu.multiprocessors));
    CHECK(rank.cuda->full_group().sizes.divided(cuda::kTileMemory) == blocks);
    cuda::Tuning tuning;
    tuning.blocks = gpu.multiprocessors;
    const Request request = request_of(Collective::all_reduce, 256 * kMib, 2);
    char* const memory = reinterpret_cast<char*>(0x10000);  // Never read.
    bench::run(*rank.cuda, "tiled", request, {memory, memory, {}}, ProbedRank::stream(), tuning);
    CHECK(ProbedRank::launches().back().blocks == blocks);
  }
}

TEST_CASE("long messages of two ranks take host channels, where both map memory for them") {
  std::vector<std::byte> slots(plait::cuda::kMessageHostBytes);
  char* const memory = reinterpret_cast<char*>(0x10000);  // Never read.
  const auto blocks = [&](const ProbedRank& rank, std::uint64_t bytes) {
    fake_cuda().launches.clear();
    rank.cuda->messages({{true, 1, memory, bytes}}, ProbedRank::stream());
    return ProbedRank::launches().back().blocks;
  };
  constexpr unsigned kAll = plait::cuda::kMessageChannels + plait::cuda::kMessageHostChannels;
  {
    const ProbedRank rank(kH200, 2, "", slots.data());
    CHECK(blocks(rank, 1 << 30) == kAll);
    CHECK(blocks(rank, 64 * kMib) == plait::cuda::kMessageChannels);
  }
  CHECK(blocks(ProbedRank(kH200, 2), 1 << 30) < plait::cuda::kMessageChannels);
  CHECK(blocks(ProbedRank(kH200, 3, "", slots.data()), 1 << 30) < plait::cuda::kMessageChannels);
  const ProbedRank small(kSlice, 2, "", slots.data());  // The blocks have no space for more.
  CHECK(blocks(small, 1 << 30) < kAll);
}
