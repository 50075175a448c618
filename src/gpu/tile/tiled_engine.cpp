// Engine tiled: any collective of any size by a single kernel whose blocks move tiles by bulk
// copies.
#include <algorithm>

#include "base/text.hpp"
#include "gpu/abi/tile_args.hpp"
#include "gpu/engine/engine.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "gpu/tile/tile_plan.hpp"
#include "gpu/tile/tiled_shape.hpp"

namespace plait::cuda {
namespace {

class TiledReady : public PreparedCall {
 public:
  TiledReady(const Request& request, const Tuning& tuning, EngineRank& rank)
      : kernels_(rank.kernels()),
        kernel_(kernels_.find(tiled_kernel(request))),
        args_(tiled_shape(request, rank.rank())) {
    rank.fill_call(args_, request);
    for (int peer = 0; peer < request.ranks; ++peer) {
      args_.flags[peer] = rank.flags(kTileFlags, peer);
      args_.slots[peer] = rank.at(kTileMemory, peer);
    }
    args_.poisoned = rank.poisoned(kTileMemory);
    config_.threads = kTileThreads;
    config_.shared_bytes = kTileSharedBytes;
    config_.blocks = spread_tiles(args_, tile_wish(tuning, rank.group()));
    config_.programmatic = true;
  }

  void enqueue(const CallBuffers& buffers, Stream stream) override {
    TiledArgs args = args_;
    args.input = buffers.input;
    args.output = buffers.output;
    set_scalars(args, buffers.scalars);
    kernels_.launch(kernel_, config_, stream, {&args});
  }

 private:
  Kernels& kernels_;
  const Function kernel_;
  TiledArgs args_;
  KernelLaunchConfig config_;
};

class TiledEngine : public Engine {
 public:
  bool sums_in_trees(const Request&, const Group&) const override { return true; }
  const StrategyInfo& info() const override {
    static const StrategyInfo info{
        "tiled", "blocks push tiles into slots of their owners, which reduce them and push results",
        "direct collectives; bulk copies of 9.0", all_collectives()};
    return info;
  }
  std::string why_not(const Request&, const Tuning&, const Group& group) const override {
    if (!group.runs(kTiledKernels)) return group.lacks(kTiledKernels);
    return group.why_no_part(kTileMemory);
  }
  Plan plan(const Topology& topology, const Request& request, const Tuning& tuning,
            const Group& group) const override {
    Plan made = tile_plan(topology, request, tile_wish(tuning, group));
    if (group.through_host) made.params["through_host"] = 1;
    return made;
  }
  const Resources& resources() const override { return tile_resources(); }
  std::unique_ptr<PreparedCall> prepare(const Request& request, const Tuning& tuning,
                                        EngineRank& rank) const override {
    return std::make_unique<TiledReady>(request, tuning, rank);
  }
};

}  // namespace

TileWish tile_wish(const Tuning& tuning, const Group& group) {
  TileWish wish;
  wish.most_blocks = group.blocks(tuning);
  if (tuning.blocks == 0)
    wish.most_blocks =
        std::min({wish.most_blocks, group.most_whole_sm_blocks, group.blocks_leaving_sms()});
  wish.tile_units = static_cast<std::uint32_t>(tuning.tile_units);
  wish.window = static_cast<std::uint32_t>(tuning.window);
  wish.slot_memory_bytes = group.sizes[kTileMemory];
  wish.order = static_cast<TargetOrder>(tuning.order);
  wish.turns = tuning.shift != 0;
  wish.piece_bytes = static_cast<std::uint32_t>(tuning.piece_kib) << 10;
  wish.send_gb_per_s = static_cast<std::uint32_t>(tuning.send_gb_per_s);
  wish.slot_blocks = group.sizes.divided(kTileMemory);
  return wish;
}

const Engine& tiled_engine() {
  static const TiledEngine engine;
  return engine;
}

}  // namespace plait::cuda
