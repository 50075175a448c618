// Device memory of communicators: how much is allocated, when, and that all memory is freed. One
// rank over a driver that hands out addresses; the peers are emulated by set-up records.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "base/text.hpp"
#include "fake_cuda/fake_gpu.hpp"
#include "gpu/rank/cuda_rank.hpp"
#include "gpu/select/select.hpp"
#include "plait/error.hpp"

using namespace plait;
using plait::cuda::CallMode;
using plait::cuda::CudaRank;
using plait::cuda::CudaRankOptions;
using plait::cuda::LargeArenaPage;
using plait::cuda::LazyArenaPage;
using plait_test::fake_cuda;

namespace {

constexpr std::uint64_t kMib = 1 << 20;

std::uint64_t taken() { return fake_cuda().memory.bytes; }

CudaRankOptions library(int ranks) {
  CudaRankOptions options;
  options.ranks = ranks;
  options.proves_paths = false;  // No kernel runs here.
  options.memory.plans = true;
  options.memory.pairs = true;
  return options;
}

/// Options of the NCCL drop-in.
CudaRankOptions drop_in(int ranks) {
  CudaRankOptions options = library(ranks);
  options.memory.plans = options.memory.pairs = false;
  options.memory.floats_only = true;
  options.overlap_compute = true;
  options.messages = cuda::messages_beat_nccl(ranks, 0);
  options.orders_calls = false;
  return options;
}

/// A rank with peers' records equal to the rank's own.
std::unique_ptr<CudaRank> made(const CudaRankOptions& options) {
  fake_cuda().gpu = {};
  return std::make_unique<CudaRank>(options, [&](const std::string& mine) {
    return std::vector<std::string>(static_cast<std::size_t>(options.ranks), mine);
  });
}

/// The peers of rank 0 on a page; each repeats rank 0's actions there.
class FakePeers {
 public:
  FakePeers(LazyArenaPage& page, int ranks) {
    for (int rank = 1; rank < ranks; ++rank)
      threads_.emplace_back([&page, rank, ranks] { be(page, rank, ranks); });
  }
  ~FakePeers() {
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  static void be(LazyArenaPage& page, int rank, int ranks) {
    cuda::PageExchange exchange(page.exchange, rank, ranks);
    const auto& first = page.exchange.slots[0];
    try {
      for (std::uint32_t round = 1; round <= 2; ++round) {
        // Round of the first attempt.
        const std::uint32_t shown = cuda::PageExchange::kMostRounds + round;
        while (first.round.load() < shown && exchange.failure().empty()) std::this_thread::yield();
        exchange.exchange(std::string(first.records[round % 2], first.bytes[round % 2]), [] {});
      }
      cuda::AgreedSwitch(page.switched, rank, ranks).set_ready();
    } catch (const Error&) {  // Rank 0 has no memory.
    }
  }
  std::vector<std::thread> threads_;
};

/// A rank with a page and peers.
struct Growing {
  Growing(std::unique_ptr<LargeArenaPage> page_, std::unique_ptr<CudaRank> rank_)
      : page(std::move(page_)), rank(std::move(rank_)) {}
  explicit Growing(CudaRankOptions options) : page(std::make_unique<LargeArenaPage>()) {
    options.lazy_arena = page.get();
    options.large_arena_wait_s = 30;
    rank = made(options);
    peers = std::make_unique<FakePeers>(page->steps[0], options.ranks);
  }
  std::unique_ptr<LargeArenaPage> page;
  std::unique_ptr<CudaRank> rank;
  std::unique_ptr<FakePeers> peers;
};

Request request_of(Collective collective, std::uint64_t bytes, int ranks,
                   DataType type = DataType::fp32) {
  Request request;
  request.collective = collective;
  request.type = type;
  request.count = bytes / bytes_of(type);
  request.ranks = ranks;
  return request;
}

}  // namespace

TEST_CASE("the small arena comes first, the large one with a large call, and all memory is freed") {
  for (const int ranks : {2, 3, 4, 8})
    for (const CudaRankOptions& options : {library(ranks), drop_in(ranks)}) {
      CAPTURE(ranks);
      CAPTURE(options.overlap_compute);
      REQUIRE(taken() == 0);
      {
        Growing one(options);
        const std::uint64_t first = taken();
        const MemoryHeld& held = one.rank->memory();
        CHECK(held.of(MemoryPart::small_arena) == first);
        CHECK(first <= (ranks == 2 ? 24'000'000 : 32'000'000));
        CHECK_FALSE(one.rank->reserve_large_arena(CallMode::captured));
        CHECK(taken() == first);
        CHECK(one.rank->reserve_large_arena(CallMode::alone));
        CHECK(taken() > 2 * first);
        CHECK(taken() <= (ranks == 2 ? 192'000'000 : 256'000'000));
        CHECK(held.of(MemoryPart::small_arena) + held.of(MemoryPart::large_arena) == taken());
        CHECK(held.on_gpu() == taken() + held.of(MemoryPart::streams));
        CHECK(one.rank->reserve_large_arena(CallMode::captured));
      }
      CHECK(taken() == 0);
    }
}

TEST_CASE("a communicator and its pairs with all other ranks keep within every budget together") {
  for (const int ranks : {2, 4, 8})
    for (const std::uint64_t mib : {24, 32, 64, 128, 183, 400, 700})
      for (const bool two_tiers : {true, false}) {
        CAPTURE(ranks);
        CAPTURE(mib);
        REQUIRE(taken() == 0);
        CudaRankOptions options = library(ranks);
        options.memory.budget_bytes = mib * kMib;
        std::vector<std::unique_ptr<Growing>> all;
        const auto make = [&](const CudaRankOptions& of, bool has_two_tiers) -> CudaRank& {
          all.push_back(has_two_tiers ? std::make_unique<Growing>(of)
                                      : std::make_unique<Growing>(nullptr, made(of)));
          if (has_two_tiers) CHECK(all.back()->rank->reserve_large_arena(CallMode::alone));
          return *all.back()->rank;
        };
        const CudaRank& whole = make(options, two_tiers);
        const std::uint64_t bytes = whole.full_group().tiers.pair_bytes;
        REQUIRE(bytes != 0);
        for (int peer = 1; peer < ranks; ++peer) {
          CudaRankOptions of = library(2);
          of.memory = cuda::pair_arena_options(bytes);
          of.most_blocks = static_cast<unsigned>(cuda::pair_blocks(ranks));
          CudaRank& pair = make(of, two_tiers && of.memory.two_tiers);
          for (const Collective collective : {Collective::copy, Collective::send_recv})
            for (const std::uint64_t size : {kMib / 64, kMib, 16 * kMib, 1024 * kMib}) {
              Request request = request_of(collective, size, 2);
              request.peer = 1;
              const auto choice = cuda::Selector(pair.full_group(), {}, true).best(request);
              REQUIRE(choice);
              CHECK(pair.prepare(*choice->engine, request, choice->tuning) != nullptr);
            }
        }
        CHECK(taken() <= mib * kMib);
        CHECK(taken() > mib * kMib / 2);
        all.clear();
      }
  CHECK(taken() == 0);
}

TEST_CASE("ten communicators of two ranks that carry up to 1 MiB: 300 MB of each GPU at most") {
  const int streams_before = fake_cuda().streams;
  std::vector<std::unique_ptr<Growing>> all;
  for (int i = 0; i < 10; ++i) {
    // No call asks for the large arena, hence no peers are needed.
    auto page = std::make_unique<LargeArenaPage>();
    CudaRankOptions options = drop_in(2);
    options.lazy_arena = page.get();
    auto rank = made(options);
    const cuda::Selector first(rank->small_arena_group(), {}, true),
        whole(rank->full_group(), {}, true);
    int calls = 0;
    for (const Collective collective :
         {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
          Collective::all_to_all, Collective::broadcast, Collective::reduce, Collective::gather,
          Collective::scatter, Collective::send_recv})
      for (const DataType type : {DataType::fp32, DataType::bf16})
        for (std::uint64_t bytes = 1024; bytes <= kMib; bytes *= 2) {
          Request request = request_of(collective, bytes, 2, type);
          while (message_bytes(request) > bytes) request.count /= 2;
          CAPTURE(name_of(collective));
          CAPTURE(bytes);
          CHECK_FALSE(wants_large_arena(first, whole, request));
          const auto choice = first.no_slower_than_nccl(request);
          REQUIRE(choice);
          CHECK(rank->prepare(*choice->engine, request, choice->tuning,
                              CudaRank::ArenaTier::small) != nullptr);
          ++calls;
        }
    CHECK(calls == 9 * 2 * 11);
    CHECK(rank->takes_messages());
    all.push_back(std::make_unique<Growing>(std::move(page), std::move(rank)));
  }
  // A stream takes this much of an H200, by cuMemGetInfo.
  constexpr std::uint64_t kStreamBytes = 590'000;
  const auto streams = static_cast<std::uint64_t>(fake_cuda().streams - streams_before);
  CHECK(streams == all.size());
  CHECK(taken() + streams * kStreamBytes <= 300'000'000);
  MESSAGE("ten communicators of two ranks: ", (taken() + streams * kStreamBytes) / 1'000'000,
          " MB");
  all.clear();
  CHECK(taken() == 0);
  CHECK(fake_cuda().streams == streams_before);
}

TEST_CASE("memory that the program asks for is allocated at once") {
  CudaRankOptions options = drop_in(4);
  options.memory.budget_bytes = 400'000'000;
  const auto rank = made(options);
  CHECK_FALSE(rank->has_lazy_arena());
  CHECK(taken() > 250'000'000);
  CHECK(taken() <= 400'000'000);
  CHECK(rank->full_group().sizes == rank->small_arena_group().sizes);
}

TEST_CASE("engines without slots report the memory they need, and other engines serve") {
  CudaRankOptions options = drop_in(4);
  options.memory.budget_bytes = 14 * kMib;
  const auto rank = made(options);
  const Request request = request_of(Collective::all_reduce, 64 * kMib, 4);
  const std::string why = why_not(cuda::tiled_engine(), request, {}, rank->full_group());
  CAPTURE(why);
  CHECK(why.starts_with("it wants 13 MB of slots of tiles; PLAIT_DEVICE_MEMORY=14M leaves "));
  CHECK_THROWS_WITH_AS(rank->prepare(cuda::tiled_engine(), request),
                       doctest::Contains("PLAIT_DEVICE_MEMORY=14M"), Error);
  const Request small = request_of(Collective::all_reduce, kMib, 4);
  CHECK(cuda::Selector(rank->full_group(), {}, true).best(small));
  options.memory.budget_bytes = 2 * kMib;
  CHECK_THROWS_WITH_AS(made(options), doctest::Contains("PLAIT_DEVICE_MEMORY=2M"), Error);
}

TEST_CASE("without memory for the large arena calls use the small one, and nothing leaks") {
  {
    Growing one(library(2));
    const std::uint64_t first = taken();
    fake_cuda().memory.most = first + 8 * kMib;
    CHECK_FALSE(one.rank->reserve_large_arena(CallMode::alone));
    CHECK_FALSE(one.rank->reserve_large_arena(CallMode::alone));
    fake_cuda().memory.most = ~std::size_t{0};
    CHECK(taken() == first);
    CHECK(one.rank->why_no_large_arena().find("rank 0: ") == 0);
    CHECK(one.rank->why_no_large_arena().find("memory_alloc") != std::string::npos);
    // Without slots, LL packets serve any size in pieces.
    const cuda::Selector selector(one.rank->small_arena_group(), {}, true);
    for (const Collective collective : {Collective::all_reduce, Collective::all_gather})
      for (const DataType type : {DataType::fp32, DataType::int64}) {
        const Request request = request_of(collective, 256 * kMib, 2, type);
        const auto choice = selector.best(request);
        REQUIRE(choice);
        CHECK(one.rank->prepare(*choice->engine, request, choice->tuning,
                                CudaRank::ArenaTier::small) != nullptr);
      }
  }
  CHECK(taken() == 0);
}

TEST_CASE("a rank that closes before its peers come frees its unfinished arena") {
  auto page = std::make_unique<LargeArenaPage>();
  CudaRankOptions options = library(2);
  options.lazy_arena = page.get();
  options.large_arena_wait_s = 0;
  auto rank = made(options);
  CHECK_FALSE(rank->reserve_large_arena(CallMode::alone));
  CHECK(rank->wanted_steps() == 1);
  rank.reset();
  CHECK(taken() == 0);
}

TEST_CASE("long blocks of unequal counts use an engine that serves them, others use plans") {
  const cuda::Group group = cuda::usual_group(4);
  Request gather;
  gather.collective = Collective::all_gather;
  gather.ranks = 4;
  for (const bool is_measured : {true, false}) {
    const auto anything = [](const cuda::Engine&, const Request&) { return 1.0; };
    const cuda::Selector selector(group, {}, is_measured, anything);
    gather.count = 100 * kMib;
    gather.counts = {gather.count, 7, 0, gather.count};
    const auto large = selector.best(gather);
    REQUIRE(large);
    CHECK(large->engine->info().name == "copy_ring");
    CHECK_FALSE(large->beats_nccl.value_or(false));
    gather.count = 1000;
    gather.counts = {1000, 7, 0, 1000};
    CHECK_FALSE(selector.best(gather));
    gather.counts.clear();
    CHECK(selector.best(gather));
  }
}
