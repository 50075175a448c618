// Whole calls of scatter_ring: tiled kernels on host threads and copies on emulated engines, in the
// order of the engine, in shared memory.
#include <doctest/doctest.h>

#include <deque>

#include "conformance/conformance.hpp"
#include "unit/scale.hpp"
// Includes the text of the engine, so that the kernels of the first half can run here.
#define scatter_ring_engine scatter_ring_of_this_test
#include "gpu/copy/scatter_ring.cpp"
#undef scatter_ring_engine

using namespace plait_test;
using namespace plait_test::conformance;
using namespace plait_test::engine_calls;

namespace {

/// Engine tiled with kernels that run on host threads once the streams of all ranks have reached
/// the kernels.
class TilesOnHost : public Engine {
 public:
  TilesOnHost(FakeEngines& engines, int ranks, bool works)
      : engines_(engines), works_(works), kernels_(ranks), made_(static_cast<std::size_t>(ranks)) {}

  const StrategyInfo& info() const override { return tiled_engine().info(); }
  std::string why_not(const Request& request, const Tuning& tuning,
                      const Group& group) const override {
    return tiled_engine().why_not(request, tuning, group);
  }
  Plan plan(const Topology& topology, const Request& request, const Tuning& tuning,
            const Group& group) const override {
    return tiled_engine().plan(topology, request, tuning, group);
  }
  const Resources& resources() const override { return tiled_engine().resources(); }
  std::unique_ptr<PreparedCall> prepare(const Request& request, const Tuning& tuning,
                                        EngineRank& rank) const override {
    return std::make_unique<LaunchedTiles>(*this, request, tile_wish(tuning, rank.group()),
                                           rank.rank());
  }
  std::size_t launches() const { return launches_.size(); }

 private:
  struct TileLaunch {
    Request request;
    TileWish wish;
    std::vector<CallBuffers> buffers;  // by rank
    std::size_t come = 0;
    bool done = false;
  };
  class LaunchedTiles : public PreparedCall {
   public:
    LaunchedTiles(const TilesOnHost& engine, const Request& request, const TileWish& wish, int rank)
        : engine_(engine), request_(request), wish_(wish), rank_(rank) {}
    void enqueue(const CallBuffers& buffers, Stream stream) override {
      engine_.put({request_, wish_, {}}, rank_, buffers, stream);
    }

   private:
    const TilesOnHost& engine_;
    const Request request_;
    const TileWish wish_;
    const int rank_;
  };

  /// A rank's n-th launch belongs with the peers' n-th launch.
  void put(TileLaunch asked, int rank, const CallBuffers& buffers, Stream stream) const {
    const auto at = static_cast<std::size_t>(rank);
    const std::size_t number = made_[at]++;
    if (number == launches_.size()) {
      asked.buffers.resize(made_.size());
      launches_.push_back(std::move(asked));
    }
    TileLaunch& launch = launches_[number];
    launch.buffers[at] = buffers;
    const auto all_are_here = [this, &launch] { return launch.come == made_.size(); };
    engines_.put(rank, stream, {[] { return true; }, [&launch] { ++launch.come; }});
    engines_.put(rank, stream, {all_are_here, [this, &launch] {
                                  if (!launch.done && works_)
                                    kernels_.run(launch.request, launch.wish, launch.buffers);
                                  launch.done = true;
                                }});
  }

  FakeEngines& engines_;
  const bool works_;
  mutable TileKernels kernels_;
  mutable std::vector<std::size_t> made_;  // launches, by rank
  mutable std::deque<TileLaunch> launches_;
};

/// scatter_ring on these tiles.
class WholeCall : public ScatterRingEngine {
 public:
  explicit WholeCall(const Engine& tiles) : tiles_(tiles) {}
  std::unique_ptr<PreparedCall> prepare(const Request& request, const Tuning& tuning,
                                        EngineRank& rank) const override {
    return std::make_unique<ScatterRingReady>(tiles_, request, tuning, rank);
  }

 private:
  const Engine& tiles_;
};

/// Runs two calls in a row, as emulate() does. works: whether the kernels do any work.
std::string emulate_in(QueueOrder order, const EngineRun& run, bool works) {
  const Topology topology = linked_machine(run.request.ranks);
  FakeEngines emulated;
  const TilesOnHost tiles(emulated, run.request.ranks, works);
  const WholeCall whole(tiles);
  Ranks all(emulated, run.group);
  std::vector<CopyCall> calls;
  for (const unsigned seed : {1u, 2u})
    calls.push_back(call_of(topology, whole, run.request, run.tuning, seed, run.group.sum_order));
  for (int rank = 0; rank < run.request.ranks; ++rank)
    for (CopyCall& call : calls) all.enqueue(call, rank);
  emulated.run(order, static_cast<unsigned>(run.request.count));
  if (!emulated.faults.empty()) return emulated.faults.front();
  const bool has_rest = run.request.count % static_cast<unsigned>(run.request.ranks) != 0;
  if (tiles.launches() != (has_rest ? 2 : 1) * calls.size())
    return "wanted a launch for each part of the call";
  for (const CopyCall& call : calls)
    if (call.outputs != call.expected) return "other bits than the reference's";
  return "";
}

}  // namespace

std::string plait_test::conformance::emulate_scatter_ring(const EngineRun& run) {
  return emulate_in(QueueOrder::by_chance, run, true);
}

TEST_CASE("the whole call of scatter_ring gives the reference's bits in any order of streams") {
  for (const int ranks : {3, 4, 8})
    for (const std::uint64_t count : {8ull, 123ull, 1009ull, 4000ull}) {
      Request request;
      request.ranks = ranks;
      request.count = count;
      request = checked(request, linked_machine(ranks));
      Tuning tuning;
      tuning.blocks = 3;
      tuning.tile_units = 16;
      const EngineRun run{cuda::scatter_ring_engine(), request, tuning, group_of(ranks)};
      CAPTURE(text("{} ranks, {}", ranks, count));
      REQUIRE(why_not(run.engine, request, tuning, run.group) == "");
      if (ranks > 4 && count != 1009 && plait_test::takes_few()) continue;
      for (const QueueOrder order :
           {QueueOrder::by_chance, QueueOrder::one_queue, QueueOrder::one_branch})
        CHECK(emulate_in(order, run, true) == "");
      CHECK(emulate_in(QueueOrder::by_chance, run, false) == "other bits than the reference's");
    }
}
