// Engine scatter_ring: an all_reduce whose parts are summed by tiles in rank order, each by the
// owner, and then go round a ring by copy engines. For half of the time no SM works, and the half
// by kernels moves half of the bytes. Source: reduce-scatter and all-gather (Rabenseifner), the
// ring by copy engines (engine_ring.hpp).
#include "base/text.hpp"
#include "gpu/copy/copy_plans.hpp"
#include "gpu/copy/copy_tuning.hpp"
#include "gpu/copy/planned_engine.hpp"
#include "gpu/engine/engine.hpp"
#include "gpu/tile/tile_plan.hpp"

namespace plait::cuda {
namespace {

/// The calls behind a call of this engine: scatter and gather of the elements that divide evenly,
/// and an all_reduce of the rest.
struct ScatterRingCalls {
  Request scatter, gather, rest;
};

ScatterRingCalls calls_of(const Request& request) {
  ScatterRingCalls calls{request, request, request};
  const auto ranks = static_cast<std::uint64_t>(request.ranks);
  calls.scatter.collective = Collective::reduce_scatter;
  calls.gather.collective = Collective::all_gather;
  calls.scatter.count = calls.gather.count = request.count / ranks;
  calls.rest.count = request.count % ranks;
  return calls;
}

/// Tiles keep their own size: the caller's size is for the pieces of the ring.
Tuning tuning_of_tiles(Tuning tuning) {
  tuning.tile_units = 0;
  return tuning;
}

class ScatterRingReady : public PreparedCall {
 public:
  ScatterRingReady(const Engine& tiles, const Request& request, const Tuning& tuning,
                   EngineRank& rank)
      : rank_(rank) {
    const ScatterRingCalls calls = calls_of(request);
    part_bytes_ = calls.gather.count * bytes_of(request.type);
    rest_from_ = part_bytes_ * static_cast<unsigned>(request.ranks);
    if (calls.rest.count != 0) rest_ = tiles.prepare(calls.rest, tuning_of_tiles(tuning), rank);
    scatter_ = tiles.prepare(calls.scatter, tuning_of_tiles(tuning), rank);
    gather_ = copy_ring_engine().prepare(calls.gather, tuning, rank);
  }

  void enqueue(const CallBuffers& buffers, Stream stream) override {
    const auto* const input = static_cast<const char*>(buffers.input);
    auto* const output = static_cast<char*>(buffers.output);
    char* const mine = output + static_cast<unsigned>(rank_.rank()) * part_bytes_;
    if (rest_) rest_->enqueue({input + rest_from_, output + rest_from_, buffers.scalars}, stream);
    scatter_->enqueue({input, mine, buffers.scalars}, stream);
    gather_->enqueue({mine, output, {}}, stream);
  }

 private:
  EngineRank& rank_;
  std::uint64_t part_bytes_ = 0, rest_from_ = 0;
  std::unique_ptr<PreparedCall> rest_, scatter_, gather_;
};

class ScatterRingEngine : public Engine {
 public:
  bool sums_in_trees(const Request&, const Group&) const override { return true; }  // by tiles
  const StrategyInfo& info() const override {
    static const StrategyInfo info{"scatter_ring",
                                   "tiles sum parts, then copy engines push the parts round a ring",
                                   "reduce-scatter and all-gather (Rabenseifner)",
                                   {Collective::all_reduce}};
    return info;
  }
  std::string why_not(const Request& request, const Tuning& tuning,
                      const Group& group) const override {
    if (request.ranks <= 2) return "more than two ranks wanted; copy_exchange serves two";
    if (request.count < static_cast<std::uint64_t>(request.ranks))
      return text("an element for each rank wanted, found {}", request.count);
    if (tuning.host_permille > 0 || tuning.host_cpu_permille > 0)
      return "no part of the call can go through host memory";
    const std::string why = tiled_engine().why_not(request, tuning_of_tiles(tuning), group);
    return why.empty() ? why_no_copies(group) : why;
  }
  /// The price of the plan is that of both halves (sim/kernel_price.hpp).
  Plan plan(const Topology& topology, const Request& request, const Tuning& tuning,
            const Group& group) const override {
    PlanBook book(topology, request, group);
    const PlannedEngine tiles(book, topology, tiled_engine());
    const auto prepare = [&](EngineRank& rank) {
      return std::make_unique<ScatterRingReady>(tiles, request, tuning, rank);
    };
    write_down(book, group, prepare, nullptr);
    Plan made = book.plan(info().name, cut_params(tuning));
    if (request.count == 0) return made;
    const ScatterRingCalls calls = calls_of(request);
    const Plan scatter =
        tiled_engine().plan(topology, calls.scatter, tuning_of_tiles(tuning), group);
    const RingCut cut = ring_cut(calls.gather, group, tuning);
    made.kernel = info().name;
    made.params.insert(scatter.params.begin(), scatter.params.end());
    made.params["piece_bytes"] = static_cast<std::int64_t>(cut.piece_bytes);
    made.params["ring_steps"] = cut.steps;
    return made;
  }
  const Resources& resources() const override { return copy_resources(); }
  std::unique_ptr<PreparedCall> prepare(const Request& request, const Tuning& tuning,
                                        EngineRank& rank) const override {
    return std::make_unique<ScatterRingReady>(tiled_engine(), request, tuning, rank);
  }
};

}  // namespace

const Engine& scatter_ring_engine() {
  static const ScatterRingEngine engine;
  return engine;
}

}  // namespace plait::cuda
