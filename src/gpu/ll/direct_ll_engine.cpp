// Engine direct_ll: any collective in a single hop by LL packets, in several pieces if the packets
// do not fit into half an inbox.
#include <algorithm>

#include "base/text.hpp"
#include "gpu/abi/ll_args.hpp"
#include "gpu/engine/engine.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/ll/ll_cut.hpp"
#include "gpu/ll/ll_launch_config.hpp"
#include "gpu/ll/ll_memory.hpp"
#include "gpu/ll/ll_plan.hpp"

namespace plait::cuda {
namespace {

/// Most blocks of two ranks' calls that leave SMs to computing. With few blocks, as NCCL takes, the
/// calls are still ahead of NCCL. Source: E-0170.
constexpr struct {
  unsigned moves = 32, sums = 48;
} kBlocksOverlapCompute;

LlCut cut(const Request& request, const Group& group) {
  return cut_direct_ll(units_of(request), request.ranks, bytes_of_call(group, kSentinelPackets));
}

KernelLaunchConfig launch_config_of(const Request& request, const Tuning& tuning,
                                    const Group& group) {
  const bool sums = reduces(request.collective);
  unsigned most_blocks = group.blocks(tuning);
  if (group.overlap_compute && request.ranks == 2 && tuning.blocks == 0)
    most_blocks =
        std::min(most_blocks, sums ? kBlocksOverlapCompute.sums : kBlocksOverlapCompute.moves);
  const bool is_lean =
      !sums || (sums_common_floats(request) && !is_in_tree(request, group.sum_order));
  return ll_launch_config(cut(request, group).units, is_lean, most_blocks, tuning, group);
}

class DirectLlReady : public PreparedCall {
 public:
  DirectLlReady(const Request& request, const Tuning& tuning, EngineRank& rank)
      : kernels_(rank.kernels()),
        config_(launch_config_of(request, tuning, rank.group())),
        cut_(cut(request, rank.group())),
        is_short_(is_short_direct_ll(request, cut_, config_, rank.group().sum_order)),
        kernel_(kernels_.find(direct_ll_kernel(request, is_short_, rank.group().sum_order))) {
    rank.fill_call(args_, request);
    for (int peer = 0; peer < request.ranks; ++peer)
      args_.inbox[peer] = rank.at(kSentinelPackets, peer);
    args_.half_bytes = bytes_of_call(rank.group(), kSentinelPackets);
    args_.ahead = tuning.ahead >= 0 ? tuning.ahead : reduces(request.collective) ? 2 : 1;
    args_.shape = direct_shape(request, rank.rank());
    if (is_short_) args_ = short_direct_ll_args(args_);  // each call sets the buffers
  }

  void enqueue(const CallBuffers& buffers, Stream stream) override {
    if (is_short_) {
      ShortDirectLlArgs args = args_;
      set_scalars(args, buffers.scalars);
      set_buffers(args, buffers.input, buffers.output);
      return kernels_.launch(kernel_, config_, stream, {&args});
    }
    launch_pieces<DirectLlArgs>(args_, cut_.units * 16, buffers, [&](DirectLlArgs& args) {
      kernels_.launch(kernel_, config_, stream, {&args});
    });
  }

 private:
  Kernels& kernels_;
  const KernelLaunchConfig config_;
  const LlCut cut_;
  const bool is_short_;
  const Function kernel_;
  ShortDirectLlArgs args_{};
};

class DirectLlEngine : public Engine {
 public:
  const StrategyInfo& info() const override {
    static const StrategyInfo info{
        "direct_ll", "every part goes straight to its owner in packets that hold any bits",
        "direct collectives; packets as in NCCL's LL protocol", all_collectives()};
    return info;
  }
  bool sums_in_trees(const Request&, const Group& group) const override {
    return group.runs(kDirectLlTreeKernels);
  }
  std::string why_not(const Request& request, const Tuning&, const Group& group) const override {
    if (!group.runs(kDirectLlKernels)) return group.lacks(kDirectLlKernels);
    const std::uint64_t pieces = cut(request, group).pieces;
    if (pieces != 0 && (pieces <= kMostLlPieces || has_ll_only(group))) return "";
    return too_small_inbox(bytes_of_call(group, kSentinelPackets), kMostLlPieces);
  }
  Plan plan(const Topology& topology, const Request& request, const Tuning& tuning,
            const Group& group) const override {
    Plan made = ll_plan(topology, request, LlKernel::direct_ll, PacketFormat::escaped,
                        bytes_of_call(group, kSentinelPackets));
    const KernelLaunchConfig config = launch_config_of(request, tuning, group);
    set_launch(made, config, reduces(request.collective) ? 2 : 4, kSentinelPacketBytes,
               group.through_host);
    if (is_short_direct_ll(request, cut(request, group), config, group.sum_order))
      made.params["short"] = 1;
    return made;
  }
  const Resources& resources() const override { return ll_resources(); }
  std::unique_ptr<PreparedCall> prepare(const Request& request, const Tuning& tuning,
                                        EngineRank& rank) const override {
    return std::make_unique<DirectLlReady>(request, tuning, rank);
  }
};

}  // namespace

const Engine& direct_ll_engine() {
  static const DirectLlEngine engine;
  return engine;
}

}  // namespace plait::cuda
