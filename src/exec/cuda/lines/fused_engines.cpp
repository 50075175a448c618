// one_shot and two_shot: an all_reduce by lines, in one kernel, or in pieces where its lines do not
// fit into half an inbox at once; two_shot also a reduce, in one.
#include <algorithm>

#include "base/text.hpp"
#include "exec/cuda/device/kernel_names.hpp"
#include "exec/cuda/engine.hpp"
#include "exec/cuda/lines/line_args.hpp"
#include "exec/cuda/lines/line_cut.hpp"
#include "exec/cuda/lines/line_plan.hpp"

namespace plait::cuda {
namespace {

bool is_bare(const Request& request, const Tuning& tuning) {
  return is_float(request.type) && tuning.bare != 0;
}

/// Empty, or why two_shot does not take a reduce that is cut so.
std::string why_no_reduce(const Request& request, const LineCut& cut, bool bare) {
  if (!has_two_shot_to_root(request) || !bare)
    return "of reduces it takes sums of fp32, bf16 and fp16 over 4 and 8 ranks, by bare lines";
  if (cut.pieces != 1) return "it takes a reduce in one piece";
  const std::uint64_t units = units_of(request), ranks = static_cast<unsigned>(request.ranks);
  const std::uint64_t shard = (units + ranks - 1) / ranks;
  return shard * (ranks - 1) < units ? "" : text("a rank would have no share of ", units, " units");
}

/// How far pushes run ahead of reductions. Source: bench/results/gpu_two_shot_*.csv.
int steps_ahead(const Request& request, bool is_lean) {
  const std::uint64_t mib = (request.count * bytes_of(request.type)) >> 20;
  if (request.ranks == 2) return mib >= 16 ? 2 : 1;
  if (is_lean) return mib >= 48 ? 3 : mib >= 12 ? 2 : 1;
  return mib > 16 ? 4 : 1;
}

class FusedReady : public Ready {
 public:
  struct Piece {
    std::uint64_t from;  ///< bytes of the message
    std::uint64_t count;
    Spread spread;
    int ahead;
  };
  FusedReady(EngineRank& rank, Function kernel, const FusedArgs& args)
      : rank_(rank), kernel_(kernel), args_(args) {}
  std::vector<Piece> pieces;

  void enqueue(const Buffers& buffers, Stream stream) override {
    FusedArgs args = args_;
    set_scalars(args, buffers.scalars);
    for (const Piece& piece : pieces) {
      args.input = static_cast<const char*>(buffers.input) + piece.from;
      args.output = static_cast<char*>(buffers.output) + piece.from;
      args.count = piece.count;
      args.ahead = piece.ahead;
      rank_.kernels().launch(kernel_, piece.spread, stream, {&args});
    }
  }

 private:
  EngineRank& rank_;
  const Function kernel_;
  const FusedArgs args_;
};

class FusedEngine : public Engine {
 public:
  FusedEngine(StrategyInfo info, bool is_one_shot)
      : info_(std::move(info)), is_one_shot_(is_one_shot) {}
  const StrategyInfo& info() const override { return info_; }

  std::string why_not(const Request& request, const Tuning& tuning,
                      const Group& group) const override {
    if (!group.runs(Family::lines)) return group.lacks(Family::lines);
    const bool bare = is_bare(request, tuning);
    const LineCut made = cut(request, bare, group);
    if (request.collective == Collective::reduce) return why_no_reduce(request, made, bare);
    const std::uint64_t most = is_one_shot_ ? 1 : kMostLinePieces;
    const bool takes_any = group.has_lines_alone() && !is_one_shot_;
    if (made.pieces != 0 && (made.pieces <= most || takes_any)) return "";
    return text("its lines do not fit into ", most, " times half an inbox of ",
                half_bytes(bare, group), " bytes (PLAIT_DEVICE_MEMORY)");
  }

  Plan plan(const Topology& topology, const Request& request, const Tuning& tuning,
            const Group& group) const override {
    const bool bare = is_bare(request, tuning);
    Plan made =
        line_plan(topology, request, is_one_shot_ ? LineKernel::one_shot : LineKernel::two_shot,
                  bare ? LineKind::bare : LineKind::flagged, half_bytes(bare, group));
    set_launch(made, spread_of(request, tuning, group), request.ranks == 2 ? 2 : 1,
               bare ? kBareLineBytes : kFlaggedLineBytes);
    return made;
  }

  std::unique_ptr<Ready> prepare(const Request& request, const Tuning& tuning,
                                 EngineRank& rank) const override {
    const Group& group = rank.group();
    const bool bare = is_bare(request, tuning);
    FusedArgs args{};
    rank.fill_call(args, request);
    for (int peer = 0; peer < group.ranks; ++peer)
      args.inbox[peer] = rank.at(bare ? ArenaPart::bare : ArenaPart::flagged, peer);
    args.half_bytes = half_bytes(bare, group);
    args.root = request.root;
    auto ready = std::make_unique<FusedReady>(
        rank, rank.kernels().find(lines_kernel(info_.name, request, bare)), args);
    const std::uint64_t element = bytes_of(request.type);
    const std::uint64_t step = cut(request, bare, group).units * 16 / element;
    Request piece = request;
    for (std::uint64_t at = 0; at < request.count; at += step) {
      piece.count = std::min(step, request.count - at);
      ready->pieces.push_back(
          {at * element, piece.count, spread_of(piece, tuning, group),
           tuning.ahead >= 0 ? tuning.ahead : steps_ahead(piece, is_lean(piece))});
    }
    return ready;
  }

 private:
  static std::uint64_t half_bytes(bool bare, const Group& group) {
    return bare ? group.sizes.bare_bytes : group.sizes.flagged_bytes;
  }
  LineCut cut(const Request& request, bool bare, const Group& group) const {
    const std::uint64_t line_bytes = bare ? kBareLineBytes : kFlaggedLineBytes;
    return cut_lines(units_of(request), request.ranks, is_one_shot_,
                     half_bytes(bare, group) / line_bytes);
  }
  bool is_lean(const Request& request) const {
    return is_common_sum(request) &&
           (is_one_shot_ ? is_lean_one_shot(request.ranks) : is_lean_two_shot(request.ranks));
  }
  Spread spread_of(const Request& request, const Tuning& tuning, const Group& group) const {
    const auto ranks = static_cast<std::uint64_t>(request.ranks);
    const std::uint64_t units = units_of(request);
    const std::uint64_t work = is_one_shot_ ? units : (units + ranks - 1) / ranks;
    const bool is_long = !is_one_shot_ && units > 1u << 20;  // more than 16 MiB
    const bool lean = is_lean(request);
    // Where there is much to do, of two blocks of 256 one loads while the other waits.
    const bool two_an_sm = lean && work >= 65536 && (ranks == 2 || is_long) && tuning.blocks == 0 &&
                           tuning.threads == 0 && group.most_blocks == 0;
    const bool is_wide = work < 65536 || two_an_sm || (is_long && ranks > 2 && !lean);
    Spread spread;
    spread.threads = tuning.threads != 0 ? static_cast<unsigned>(tuning.threads)
                     : work < 8192       ? 128
                     : is_wide           ? 256
                                         : group.most_threads(lean);
    const std::uint64_t useful =
        std::max<std::uint64_t>(1, (work + spread.threads - 1) / spread.threads);
    spread.blocks = static_cast<unsigned>(
        std::min<std::uint64_t>(useful, group.blocks(tuning) * (two_an_sm ? 2 : 1)));
    spread.programmatic = true;
    return spread;
  }

  const StrategyInfo info_;
  const bool is_one_shot_;
};

}  // namespace

const Engine& one_shot_engine() {
  static const FusedEngine engine(
      {"one_shot",
       "every rank pushes its message to all and reduces what comes, line by line",
       "one-shot all-reduce; lines as NCCL's LL protocol",
       {Collective::all_reduce}},
      true);
  return engine;
}

const Engine& two_shot_engine() {
  static const FusedEngine engine(
      {"two_shot",
       "every rank reduces a share of the message and pushes the result to all, or to the root",
       "two-shot all-reduce; lines as NCCL's LL protocol",
       {Collective::all_reduce, Collective::reduce}},
      false);
  return engine;
}

}  // namespace plait::cuda
