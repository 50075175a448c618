// Engine ll_chain: a broadcast or a reduce along a chain of all ranks in LL packets, by the kernels
// ll_chain and long_chain.
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

std::string why_no_chain(const Request& request, const Tuning& tuning) {
  if (request.ranks < 3 && tuning.tile_units == 0)
    return text(
        "a chain wants 3 ranks or more, or tile_units, found {} ranks; direct_ll serves two",
        request.ranks);
  if (!reduces(request.collective)) return "";
  if (request.ranks == 2) {  // the root has both inputs: no partial sum travels
    if (is_lean_chain(request)) return "";
    return text(
        "a chain of two ranks sums fp32, fp16 and bf16, found {} of {}; direct_ll and tiled "
        "are as fast for others",
        name_of(request.op), name_of(request.type));
  }
  if (is_widened(request.type) && !has_no_order(request.type, request.op))
    return text(
        "type {} is not supported: partial sums travel, so the type must accumulate in itself "
        "(integers, fp32, fp64)",
        name_of(request.type));
  if (request.root != 0 && request.root != request.ranks - 1)
    return text(
        "root must be the first or last rank, found {}: a root inside the chain would receive the "
        "message twice",
        request.root);
  return "";
}

/// Most blocks of calls that leave SMs to computing; a broadcast is still ahead of NCCL. Source:
/// bench/results/gpu_chains_h200x4.csv.
constexpr unsigned kBlocksOverlapCompute = 64;

/// Least bytes of each of many pieces, unless the caller sets a size: a broadcast of 1 GiB takes 3
/// % longer with 4 MiB than with 8, and 14 % longer with 2 MiB (E-0353). The small arena of four
/// ranks holds 3.
constexpr std::uint64_t kLeastPiece = 3ull << 20;
/// Most bytes of a piece, of several pieces that are summed: data in slots is then still cached
/// when taken. Moves gain nothing. Source: bench/results/gpu_long_chains_h200x8.csv.
constexpr std::uint64_t kSummedPiece = 16ull << 20;
/// Steps that the root forwards before it takes the first returned step. With several pieces the
/// kernel limits kPieceAhead to a whole piece (bench/results/gpu_long_chains_h200x8.csv).
constexpr int kAhead = 2, kPieceAhead = 1 << 20;

/// Launch of a call: one piece by the kernel ll_chain, several by long_chain.
struct ChainLaunch {
  KernelLaunchConfig config;
  LlStep step;  ///< used with several pieces
  LlCut cut;
  bool is_long() const { return cut.pieces > 1; }
  unsigned workers() const { return config.threads - kLongChainSignalThreads; }
};

/// Returns the units that a thread passes in a step.
int together(const Request& request) { return reduces(request.collective) ? 2 : 4; }

ChainLaunch launch_of(const Request& request, const Tuning& tuning, const Group& group) {
  const std::uint64_t half_bytes = bytes_of_call(group, kSentinelPackets);
  ChainLaunch made;
  if (tuning.tile_units != 0) made.step.most_units = static_cast<unsigned>(tuning.tile_units);
  made.cut = cut_chain(units_of(request), request.ranks, half_bytes, made.step);
  unsigned most_blocks = group.blocks(tuning);
  if (group.overlap_compute && tuning.blocks == 0)
    most_blocks = std::min(most_blocks, kBlocksOverlapCompute);
  if (made.is_long()) most_blocks = std::min(most_blocks, kLongChainBlocks);
  made.config =
      ll_launch_config(made.cut.units, is_lean_chain(request), most_blocks, tuning, group);
  if (!made.is_long()) return made;
  made.config.threads = std::max(made.config.threads, 2 * kLongChainSignalThreads);
  made.step.units =
      std::uint64_t{made.config.blocks} * made.workers() * static_cast<unsigned>(together(request));
  if (reduces(request.collective) && tuning.tile_units == 0)
    made.step.most_units = kSummedPiece / 16;
  made.cut = cut_chain(units_of(request), request.ranks, half_bytes, made.step);
  return made;
}

class ChainReady : public PreparedCall {
 public:
  ChainReady(const Request& request, const Tuning& tuning, EngineRank& rank)
      : kernels_(rank.kernels()),
        launch_(launch_of(request, tuning, rank.group())),
        kernel_(kernels_.find(chain_kernel(request, launch_.is_long()))) {
    rank.fill_call(args_, request);
    for (int peer = 0; peer < request.ranks; ++peer) {
      args_.inbox[peer] = rank.at(kSentinelPackets, peer);
      args_.flags[peer] = rank.flags(kChainFlags, peer);
    }
    args_.half_bytes = bytes_of_call(rank.group(), kSentinelPackets);
    args_.shape = chain_shape(request);
    args_.ahead = tuning.ahead >= 0 ? tuning.ahead : launch_.is_long() ? kPieceAhead : kAhead;
    args_.pieces = static_cast<std::uint32_t>(launch_.cut.pieces);
    const std::vector<Range> pieces = chain_pieces(args_.shape.bytes, launch_.cut);
    args_.first_bytes = pieces.empty() ? 0 : pieces[0].bytes;
    args_.piece_bytes = launch_.cut.units * 16;
    args_.workers = launch_.workers();
  }

  void enqueue(const CallBuffers& buffers, Stream stream) override {
    if (args_.shape.bytes == 0) return;
    LongChainArgs args = args_;
    set_scalars(args, buffers.scalars);
    args.input = buffers.input;
    args.output = buffers.output;
    if (launch_.is_long()) return kernels_.launch(kernel_, launch_.config, stream, {&args});
    ChainArgs& one = args;
    kernels_.launch(kernel_, launch_.config, stream, {&one});
  }

 private:
  Kernels& kernels_;
  const ChainLaunch launch_;
  const Function kernel_;
  LongChainArgs args_{};
};

class ChainEngine : public Engine {
 public:
  const StrategyInfo& info() const override {
    static const StrategyInfo info{
        "ll_chain",
        "packets go from rank to rank; each rank keeps the data or adds its own",
        "pipelined chains; packets as in NCCL's LL protocol",
        {Collective::broadcast, Collective::reduce}};
    return info;
  }
  std::string why_not(const Request& request, const Tuning& tuning,
                      const Group& group) const override {
    if (!group.runs(kDirectLlKernels)) return group.lacks(kDirectLlKernels);
    if (const std::string why = why_no_chain(request, tuning); !why.empty()) return why;
    const LlCut packets = launch_of(request, tuning, group).cut;
    const bool is_worth_it = packets.pieces <= kMostLlPieces || tuning.tile_units != 0 ||
                             packets.units * 16 >= kLeastPiece;
    if (packets.pieces != 0 && (is_worth_it || has_ll_only(group))) return "";
    return text(
        "packet buffer of {} bytes a call is too small: the message would go in {} short pieces "
        "(raise PLAIT_DEVICE_MEMORY)",
        bytes_of_call(group, kSentinelPackets), packets.pieces);
  }
  Plan plan(const Topology& topology, const Request& request, const Tuning& tuning,
            const Group& group) const override {
    ChainLaunch launch = launch_of(request, tuning, group);
    Plan made = ll_plan(topology, request, LlKernel::ll_chain, PacketFormat::escaped,
                        bytes_of_call(group, kSentinelPackets), launch.step);
    if (launch.is_long()) launch.config.threads = launch.workers();
    set_launch(made, launch.config, together(request), kSentinelPacketBytes, group.through_host);
    return made;
  }
  const Resources& resources() const override { return ll_resources(); }
  std::unique_ptr<PreparedCall> prepare(const Request& request, const Tuning& tuning,
                                        EngineRank& rank) const override {
    return std::make_unique<ChainReady>(request, tuning, rank);
  }
};

}  // namespace

const Engine& ll_chain_engine() {
  static const ChainEngine engine;
  return engine;
}

}  // namespace plait::cuda
