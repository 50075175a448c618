// Spare arenas: memory that a thread makes beside NCCL's call becomes the small arena of a
// communicator of the same size, and goes otherwise.
#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "base/text.hpp"
#include "gpu/arena/spare_arena.hpp"
#include "gpu/ll/ll_memory.hpp"
#include "tests/fake_gpu/h200_group.hpp"
#include "tests/fake_gpu/on_ranks.hpp"

using namespace plait;
using namespace plait_test;
using plait::cuda::SpareArena;

namespace {

std::size_t taken() {
  const std::lock_guard<std::mutex> hold(fake_cuda().memory.guard);
  return fake_cuda().memory.bytes;
}

/// Waits until `done`, for at most 10 s.
void await(const char* what, const std::function<bool()>& done) {
  for (int i = 0; i < 10'000 && !done(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  require(done(), what);
}

/// Opens a communicator with the spare, and returns the bytes of its small arena.
std::uint64_t open_with(const RankProcess& mine, int ranks, std::shared_ptr<SpareArena> spare,
                        const std::function<void()>& opened = [] {}) {
  GpuCallsOptions options = options_without_kernels();
  options.rank.spare = std::move(spare);
  std::uint64_t bytes = 0;
  GpuCalls calls(h200_group(mine.rank, ranks, mine.exchange, ""), options, mine.exchange);
  bytes = calls.rank().memory().of(MemoryPart::small_arena);
  auto* const packets =
      static_cast<const cuda::EngineRank&>(calls.rank()).at(cuda::kFlagPackets, mine.rank);
  packets[0] = static_cast<char>(mine.rank + 1);
  mine.board.barrier();
  const int peer = (mine.rank + 1) % ranks;
  require(static_cast<const cuda::EngineRank&>(calls.rank()).at(cuda::kFlagPackets, peer)[0] ==
              static_cast<char>(peer + 1),
          "a peer's arena is not mapped");
  opened();
  mine.board.barrier();
  calls.rank().unmap_peers();
  mine.board.barrier();
  return bytes;
}

/// Runs `body` on two ranks whose GPUs map memory, once a communicator has noted its arena. bytes:
/// of that arena.
void on_noting_ranks(const std::function<void(const RankProcess&, std::uint64_t bytes)>& body) {
  CHECK(run_on_ranks(2, [&](const RankProcess& mine) {
          fake_cuda().gpu.maps_memory = true;
          require(SpareArena::begin(0, 2) == nullptr, "a spare before any communicator");
          const std::uint64_t bytes = open_with(mine, 2, nullptr);
          require(bytes > 8'000'000 && taken() == 0, "wanted an arena that went");
          const int streams = fake_cuda().streams;
          body(mine, bytes);
          await("memory of a spare is kept", [] { return taken() == 0; });
          await("a stream of a spare is kept", [&] { return fake_cuda().streams == streams; });
        }) == 0);
}

}  // namespace

TEST_CASE("a spare becomes the small arena and the stream of the next communicator") {
  on_noting_ranks([](const RankProcess& mine, std::uint64_t bytes) {
    for (int turn = 0; turn < 3; ++turn) {
      const int streams = fake_cuda().streams;
      const std::shared_ptr<SpareArena> spare = SpareArena::begin(0, 2);
      require(spare != nullptr, "no spare");
      await("no memory of a spare", [&] { return taken() == bytes; });
      fake_cuda().refuses.of("physical_create", 1);
      require(open_with(mine, 2, spare, [&] {
                require(taken() == bytes, "a second arena");
                require(fake_cuda().streams == streams + 1, "a second stream");
              }) == bytes,
              "another arena");
      require(fake_cuda().refuses.is_ahead(), "memory was made beside the spare's");
      fake_cuda().refuses.none();
      require(taken() == 0, "memory is kept behind its communicator");
    }
  });
}

TEST_CASE("a spare that no communicator takes goes") {
  on_noting_ranks([](const RankProcess&, std::uint64_t) {
    for (int i = 0; i < 20; ++i) {
      const std::unique_ptr<SpareArena> spare = SpareArena::begin(0, 2);
      require(spare != nullptr, "no spare");
      if (i % 2 == 0) await("no memory of a spare", [] { return taken() != 0; });
    }
  });
}

TEST_CASE("a communicator makes its arena itself if the spare has another size or has failed") {
  on_noting_ranks([](const RankProcess& mine, std::uint64_t bytes) {
    auto spare = std::make_shared<SpareArena>(0, 4u << 20);
    await("no memory of a spare", [] { return taken() == 4u << 20; });
    require(open_with(mine, 2, std::move(spare),
                      [&] { require(taken() == bytes + (4u << 20), "took too little"); }) == bytes,
            "another arena");
    await("memory of a spare is kept", [] { return taken() == 0; });
    for (const char* const call : {"physical_create", "memory_map", "stream_create"}) {
      fake_cuda().refuses.of(call, 1);
      spare = SpareArena::begin(0, 2);
      await("the spare did not fail", [] { return !fake_cuda().refuses.is_ahead(); });
      require(open_with(mine, 2, spare) == bytes, "another arena");
      spare.reset();
    }
  });
}

TEST_CASE("no spare where the latest communicator made no small arena, or a large one") {
  on_noting_ranks([](const RankProcess&, std::uint64_t bytes) {
    require(SpareArena::begin(0, 3) == nullptr, "a spare for another number of ranks");
    require(SpareArena::begin(1, 2) == nullptr, "a spare on another GPU");
    for (const std::uint64_t none : {std::uint64_t{0}, SpareArena::kMostBytes + 1}) {
      SpareArena::note(0, 2, none);
      require(SpareArena::begin(0, 2) == nullptr, text("a spare of {} bytes", none));
    }
    SpareArena::note(0, 2, bytes);
    fake_cuda().memory.most = 1u << 30;  // less than NCCL may want meanwhile
    SpareArena spare(0, bytes);
    require(spare.take_memory(0, bytes) == nullptr, "a spare on a GPU that is nearly full");
  });
}

TEST_CASE("a communicator that opens at its first call takes no spare") {
  CHECK(run_on_ranks(2, [](const RankProcess& mine) {
          fake_cuda().gpu.maps_memory = true;
          SpareArena::note(0, 2, 4u << 20);
          GpuCallsOptions options = options_without_kernels();
          options.opens_at_first_call = true;
          with_calls(mine, h200_group(mine.rank, 2, mine.exchange, ""), options,
                     [](GpuCalls&) {});
          require(SpareArena::begin(0, 2) == nullptr, "a spare that no rank would take");
        }) == 0);
}
