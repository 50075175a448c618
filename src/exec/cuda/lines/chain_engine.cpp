// line_chain: a broadcast or a reduce that passes all ranks in a row, by lines.
#include <algorithm>

#include "base/text.hpp"
#include "exec/cuda/device/kernel_names.hpp"
#include "exec/cuda/engine.hpp"
#include "exec/cuda/lines/line_args.hpp"
#include "exec/cuda/lines/line_cut.hpp"
#include "exec/cuda/lines/line_plan.hpp"
#include "exec/cuda/lines/line_spread.hpp"

namespace plait::cuda {
namespace {

LineCut cut(const Request& request, const Group& group) {
  return cut_chain(units_of(request), request.ranks, group.sizes.bare_bytes);
}

std::string why_no_chain(const Request& request) {
  if (request.ranks < 3)
    return text("wanted 3 ranks or more, found ", request.ranks, ": a chain of two is a hop");
  if (!reduces(request.collective)) return "";
  if (is_widened(request.type) && !has_no_order(request.type, request.op))
    return text("wanted a type that holds its sums so far, found ", name_of(request.type));
  if (request.root != 0 && request.root != request.ranks - 1)
    return text("wanted the first or the last rank for the root, found ", request.root,
                ": one amid the chain would take the message twice");
  return "";
}

/// So many blocks leave SMs to computing beside, and a broadcast is still ahead of NCCL. Source:
/// bench/results/gpu_chains_h200x4.csv.
constexpr unsigned kBlocksBesideComputing = 64;

/// Bytes of one of many pieces, each of which costs a gap of some 3 us.
constexpr std::uint64_t kLeastPiece = 4ull << 20;

Spread spread_of(const Request& request, const Tuning& tuning, const Group& group) {
  unsigned most_blocks = group.blocks(tuning);
  if (group.beside_computing && tuning.blocks == 0)
    most_blocks = std::min(most_blocks, kBlocksBesideComputing);
  return line_spread(cut(request, group).units, is_lean_chain(request), most_blocks, tuning, group);
}

class ChainReady : public Ready {
 public:
  ChainReady(const Request& request, const Tuning& tuning, EngineRank& rank)
      : kernels_(rank.kernels()),
        kernel_(kernels_.find(chain_kernel(request))),
        spread_(spread_of(request, tuning, rank.group())),
        piece_bytes_(cut(request, rank.group()).units * 16),
        whole_(chain_shape(request)) {
    rank.fill_call(args_, request);
    for (int peer = 0; peer < request.ranks; ++peer)
      args_.inbox[peer] = rank.at(ArenaPart::bare, peer);
    args_.half_bytes = rank.group().sizes.bare_bytes;
    args_.ahead = tuning.ahead >= 0 ? tuning.ahead : 2;
  }

  void enqueue(const Buffers& buffers, Stream stream) override {
    ChainArgs args = args_;
    set_scalars(args, buffers.scalars);
    for (std::uint64_t at = 0; at < whole_.bytes; at += piece_bytes_) {
      args.input = static_cast<const char*>(buffers.input) + at;
      args.output = static_cast<char*>(buffers.output) + at;
      args.behind_bytes = args.shape.deferred != 0 ? piece_bytes_ : 0;
      args.shape = chain_piece(whole_, at, std::min(piece_bytes_, whole_.bytes - at));
      kernels_.launch(kernel_, spread_, stream, {&args});
    }
  }

 private:
  Kernels& kernels_;
  const Function kernel_;
  const Spread spread_;
  const std::uint64_t piece_bytes_;
  const ChainShape whole_;
  ChainArgs args_{};
};

class ChainEngine : public Engine {
 public:
  const StrategyInfo& info() const override {
    static const StrategyInfo info{
        "line_chain",
        "line by line from rank to rank, each keeping what passes or adding its own",
        "pipelined chains; lines as NCCL's LL protocol",
        {Collective::broadcast, Collective::reduce}};
    return info;
  }
  std::string why_not(const Request& request, const Tuning&, const Group& group) const override {
    if (!group.runs(Family::hop)) return group.lacks(Family::hop);
    if (const std::string why = why_no_chain(request); !why.empty()) return why;
    const LineCut lines = cut(request, group);
    const bool is_worth_it = lines.pieces <= kMostLinePieces || lines.units * 16 >= kLeastPiece;
    if (lines.pieces != 0 && (is_worth_it || group.has_lines_alone())) return "";
    return text("its lines go in ", lines.pieces, " short pieces through half an inbox of ",
                group.sizes.bare_bytes, " bytes (PLAIT_DEVICE_MEMORY)");
  }
  Plan plan(const Topology& topology, const Request& request, const Tuning& tuning,
            const Group& group) const override {
    Plan made = line_plan(topology, request, LineKernel::line_chain, LineKind::escaped,
                          group.sizes.bare_bytes);
    set_launch(made, spread_of(request, tuning, group), reduces(request.collective) ? 2 : 4,
               kBareLineBytes);
    return made;
  }
  std::unique_ptr<Ready> prepare(const Request& request, const Tuning& tuning,
                                 EngineRank& rank) const override {
    return std::make_unique<ChainReady>(request, tuning, rank);
  }
};

}  // namespace

const Engine& line_chain_engine() {
  static const ChainEngine engine;
  return engine;
}

}  // namespace plait::cuda
