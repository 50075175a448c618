// Engine direct_chunks: any collective in a single hop by chunks with a flag each, between GPUs
// that do not address each other.
#include <algorithm>

#include "base/text.hpp"
#include "gpu/chunk/chunk_memory.hpp"
#include "gpu/chunk/chunk_plan.hpp"
#include "gpu/engine/engine.hpp"

namespace plait::cuda {
namespace {

/// Most pieces: each adds a launch and a round trip through host memory.
constexpr std::uint64_t kMostChunkPieces = 16;
ChunkWish wish_of(const Tuning& tuning, const Group& group) {
  ChunkWish wish;
  wish.most_blocks = std::min(group.blocks(tuning), kChunkBlocks);
  wish.fewer_if_long = tuning.blocks == 0;
  wish.chunk_units = static_cast<std::uint32_t>(tuning.chunk_units);
  wish.half_bytes = group.sizes[kChunkMemory];
  return wish;
}

class DirectChunksReady : public PreparedCall {
 public:
  DirectChunksReady(const Request& request, const Tuning& tuning, EngineRank& rank)
      : kernels_(rank.kernels()),
        kernel_(kernels_.find(chunk_kernel(request, rank.group().sum_order))),
        cut_(cut_chunks(request, wish_of(tuning, rank.group()))) {
    rank.fill_call(args_, request);
    for (int peer = 0; peer < request.ranks; ++peer) {
      args_.inbox[peer] = rank.at(kChunkMemory, peer);
      args_.flags[peer] = rank.flags(kChunkFlags, peer);
    }
    args_.half_bytes = rank.group().sizes[kChunkMemory];
    args_.chunk_units = cut_.chunk_units;
    args_.slot_units = static_cast<std::uint32_t>(cut_.units);
    args_.shape = direct_shape(request, rank.rank());
    config_.threads = kChunkThreads;
    config_.blocks = cut_.blocks;
    config_.programmatic = true;
  }

  void enqueue(const CallBuffers& buffers, Stream stream) override {
    launch_pieces(args_, cut_.units * 16, buffers, [&](DirectChunksArgs& args) {
      kernels_.launch(kernel_, config_, stream, {&args});
    });
  }

 private:
  Kernels& kernels_;
  const Function kernel_;
  const ChunkCut cut_;
  DirectChunksArgs args_{};
  KernelLaunchConfig config_;
};

class DirectChunksEngine : public Engine {
 public:
  bool sums_in_trees(const Request&, const Group& group) const override {
    return group.runs(kChunkTreeKernels);
  }
  const StrategyInfo& info() const override {
    static const StrategyInfo info{
        "direct_chunks", "every part goes straight to its owner in chunks with a flag each",
        "direct collectives; chunks as in NCCL's Simple protocol", all_collectives()};
    return info;
  }
  std::string why_not(const Request& request, const Tuning& tuning,
                      const Group& group) const override {
    if (!group.runs(kChunkKernels)) return group.lacks(kChunkKernels);
    if (!group.through_host) return "chunks are for GPUs that do not address each other";
    if (const std::string why = group.why_no_part(kChunkMemory); !why.empty()) return why;
    const ChunkCut cut = cut_chunks(request, wish_of(tuning, group));
    if (cut.pieces != 0 && cut.pieces <= kMostChunkPieces) return "";
    return too_small_inbox(group.sizes[kChunkMemory], kMostChunkPieces);
  }
  Plan plan(const Topology& topology, const Request& request, const Tuning& tuning,
            const Group& group) const override {
    Plan made = chunk_plan(topology, request, wish_of(tuning, group));
    made.params["through_host"] = 1;
    return made;
  }
  const Resources& resources() const override { return chunk_resources(); }
  std::unique_ptr<PreparedCall> prepare(const Request& request, const Tuning& tuning,
                                        EngineRank& rank) const override {
    return std::make_unique<DirectChunksReady>(request, tuning, rank);
  }
};

}  // namespace

const Engine& direct_chunks_engine() {
  static const DirectChunksEngine engine;
  return engine;
}

}  // namespace plait::cuda
