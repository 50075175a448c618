// How each fused kernel is enqueued.
#include <algorithm>

#include "base/text.hpp"
#include "exec/cuda/copies/engine_ring.hpp"
#include "exec/cuda/copies/pair_exchange.hpp"
#include "exec/cuda/cuda_rank.hpp"
#include "exec/cuda/device/call_buffers.hpp"
#include "exec/cuda/device/kernel_names.hpp"
#include "exec/cuda/lines/line_args.hpp"
#include "exec/cuda/traffic/tiled_shape.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

/// Blocks of a hop between two ranks that leaves SMs to computing and is still ahead of NCCL, which
/// takes few as well. Source: bench/NOTES.md.
constexpr struct {
  unsigned moves = 32, sums = 48;
} kHopBlocksBesideComputing;

/// 16-byte units of what the request counts, the last one begun.
std::uint64_t units_of(const Request& request) {
  return (request.count * bytes_of(request.type) + 15) / 16;
}

/// How far pushes run ahead of reductions. Source: bench/results/gpu_two_shot_*.csv.
int steps_ahead(const Request& request, bool is_lean) {
  const std::uint64_t mib = (request.count * bytes_of(request.type)) >> 20;
  if (request.ranks == 2) return mib > 16 ? 2 : 1;
  if (is_lean) return mib >= 48 ? 3 : mib >= 12 ? 2 : 1;
  return mib > 16 ? 4 : 1;
}

}  // namespace

void CudaRank::run_fused(const std::string& kernel, const Request& request, const void* input,
                         void* output, Stream stream, const std::vector<double>& scalars,
                         const FusedTuning& tuning) {
  if (!has_fused(kernel, request, tuning))
    throw Error(ErrorCode::unsupported,
                text("no fused kernel ", kernel, " for ", request.count, " ", name_of(request.type),
                     " over ", request.ranks, " ranks", because(kernel)));
  check_alignment(request, options_.rank, input, output);
  if (request.count == 0) return;  // on all ranks alike
  const Current current(context_);
  in_order(stream,
           [&] { run_beside_host(kernel, request, input, output, stream, scalars, tuning); });
}

void CudaRank::run_kernel(const std::string& kernel, const Request& request, const void* input,
                          void* output, Stream stream, const std::vector<double>& scalars,
                          const FusedTuning& tuning) {
  if (kernel == "hop") return run_hop(request, input, output, stream, scalars, tuning);
  if (kernel == "rotation") return run_rotation(request, input, output, stream, scalars, tuning);
  if (kernel == "tiled") return run_tiled(request, input, output, stream, scalars, tuning);
  // Beyond its inbox a message goes in pieces.
  const std::uint64_t element = bytes_of(request.type);
  const bool bare = chooses_bare(request, tuning);
  const std::uint64_t step = line_cut(kernel, request, bare).units * 16 / element;
  Request piece = request;
  for (std::uint64_t at = 0; at < request.count; at += step) {
    piece.count = std::min(step, request.count - at);
    run_lines(kernel, piece, static_cast<const char*>(input) + at * element,
              static_cast<char*>(output) + at * element, stream, scalars, tuning);
  }
}

void CudaRank::fill_call(CallArgs& args, const Request& request, const void* input, void* output,
                         const std::vector<double>& scalars) const {
  args.input = input;
  args.output = output;
  tell_of_waits(args);
  for (std::size_t i = 0; i < kMaxCudaRanks; ++i)
    args.scalars[i] = i < scalars.size() ? scalars[i] : 1.0;
  args.rank = options_.rank;
  args.ranks = options_.ranks;
  args.op = static_cast<std::int32_t>(request.op);
}

LineCut CudaRank::line_cut(const std::string& kernel, const Request& request, bool bare) const {
  const std::uint64_t units = units_of(request);
  const std::uint64_t room = bare ? options_.sizes.bare_bytes / kBareLineBytes
                                  : options_.sizes.flagged_bytes / kFlaggedLineBytes;
  return cut_lines(units, request.ranks, kernel == "one_shot", room);
}

void CudaRank::run_lines(const std::string& kernel, const Request& request, const void* input,
                         void* output, Stream stream, const std::vector<double>& scalars,
                         const FusedTuning& tuning) {
  const bool bare = chooses_bare(request, tuning);
  FusedArgs args{};
  fill_call(args, request, input, output, scalars);
  for (int rank = 0; rank < options_.ranks; ++rank)
    args.inbox[rank] = bare ? arena_->bare(rank) : arena_->flagged(rank);
  args.half_bytes = bare ? options_.sizes.bare_bytes : options_.sizes.flagged_bytes;
  args.count = request.count;
  const std::uint64_t units = units_of(request);
  const std::uint64_t work = kernel == "one_shot"
                                 ? units
                                 : (units + static_cast<std::uint64_t>(options_.ranks) - 1) /
                                       static_cast<std::uint64_t>(options_.ranks);
  Spread spread;
  const bool long_run = kernel == "two_shot" && units > 1u << 20;  // more than 16 MiB
  // Where there is much to do, of two blocks of 256 one loads while the other waits.
  const bool is_lean =
      is_common_sum(request) &&
      (kernel == "two_shot" ? is_lean_two_shot(request.ranks) : is_lean_one_shot(request.ranks));
  const bool two_an_sm = is_lean && work >= 65536 && (options_.ranks == 2 || long_run) &&
                         tuning.blocks == 0 && tuning.threads == 0 && options_.most_blocks == 0;
  spread.threads = tuning.threads != 0 ? tuning.threads
                   : work < 8192       ? 128
                   : work < 65536 || two_an_sm || (long_run && options_.ranks > 2 && !is_lean)
                       ? 256
                       : most_threads(is_lean);
  const std::uint64_t useful =
      std::max<std::uint64_t>(1, (work + spread.threads - 1) / spread.threads);
  spread.blocks = static_cast<unsigned>(
      std::min<std::uint64_t>(useful, blocks_for(tuning) * (two_an_sm ? 2 : 1)));
  spread.programmatic = tuning.programmatic;
  args.ahead = tuning.ahead >= 0 ? tuning.ahead : steps_ahead(request, is_lean);
  kernels_->launch(kernels_->find(lines_kernel(kernel, request, bare)), spread, stream, {&args});
}

LineCut CudaRank::hop_cut(const Request& request) const {
  const std::uint64_t units = units_of(request);
  return cut_hop(units, request.ranks, options_.sizes.bare_bytes);
}

void CudaRank::run_hop(const Request& request, const void* input, void* output, Stream stream,
                       const std::vector<double>& scalars, const FusedTuning& tuning) {
  HopArgs args{};
  fill_call(args, request, input, output, scalars);
  for (int rank = 0; rank < options_.ranks; ++rank) args.inbox[rank] = arena_->bare(rank);
  args.half_bytes = options_.sizes.bare_bytes;
  const bool sums = reduces(request.collective);
  args.ahead = tuning.ahead >= 0 ? tuning.ahead : sums ? 2 : 1;
  const HopShape whole = hop_shape(request, options_.rank);
  const std::uint64_t units = hop_cut(request).units;
  Spread spread;
  spread.threads = tuning.threads != 0 ? tuning.threads
                   : units < 8192      ? 128
                   : units < 65536     ? 256
                                       : most_threads(!sums || sums_common_floats(request));
  unsigned most_blocks = blocks_for(tuning);
  if (options_.beside_computing && request.ranks == 2 && tuning.blocks == 0)
    most_blocks = std::min(most_blocks,
                           sums ? kHopBlocksBesideComputing.sums : kHopBlocksBesideComputing.moves);
  spread.blocks = static_cast<unsigned>(
      std::min<std::uint64_t>((units + spread.threads - 1) / spread.threads, most_blocks));
  spread.programmatic = tuning.programmatic;
  const Function kernel = kernels_->find(hop_kernel(request));
  for (std::uint64_t at = 0; at < whole.part_bytes; at += units * 16) {
    args.input = static_cast<const char*>(input) + at;
    args.output = static_cast<char*>(output) + at;
    args.shape = whole;
    args.shape.part_bytes = std::min(units * 16, whole.part_bytes - at);
    if (whole.own_bytes != 0) args.shape.own_bytes = args.shape.part_bytes;
    kernels_->launch(kernel, spread, stream, {&args});
  }
}

/// Blocks and tiles must be the same on all ranks, so they follow from size and options alone.
void CudaRank::run_tiled(const Request& request, const void* input, void* output, Stream stream,
                         const std::vector<double>& scalars, const FusedTuning& tuning) {
  TiledArgs args = tiled_shape(request, options_.rank);
  fill_call(args, request, input, output, scalars);
  for (int rank = 0; rank < options_.ranks; ++rank) {
    args.flags[rank] = arena_->tile_flags(rank);
    args.slots[rank] = arena_->tiles(rank);
  }
  TileWish wish;
  wish.most_blocks = std::min<unsigned>(blocks_for(tuning), kTileBlocks);
  if (tuning.blocks == 0)
    wish.most_blocks = std::min({wish.most_blocks, options_.most_tiled_blocks, blocks_with_room()});
  if (engine_path_.lent_bytes != 0) args.poisoned = &arena_->engine_flags(options_.rank)->poisoned;
  wish.tile_units = tuning.tile_units;
  wish.slot_memory_bytes = options_.sizes.tile_bytes;
  Spread spread;
  spread.threads = kTileThreads;
  spread.shared_bytes = kTileSharedBytes;
  spread.blocks = spread_tiles(args, wish);
  spread.programmatic = tuning.programmatic;
  kernels_->launch(kernels_->find(tiled_kernel(request)), spread, stream, {&args});
}

void CudaRank::messages(const std::vector<Message>& messages, Stream stream,
                        const MessageTuning& tuning) {
  if (!takes_messages())
    throw Error(
        ErrorCode::unsupported,
        text("wanted messages, but no room was made for them",
             families_->runs(Family::messages) ? ""
                                               : text(": ", families_->why_not(Family::messages))));
  const MessageSpread spread{message_channels(options_.ranks, most_message_blocks()), tuning};
  const std::vector<MessageArgs> launches =
      plan_messages(messages, options_.rank, options_.ranks, spread);
  const Current current(context_);
  in_order(stream, [&] {
    for (const MessageArgs& args : launches) launch_messages(args, stream);
  });
}

void CudaRank::launch_messages(MessageArgs args, Stream stream) {
  tell_of_waits(args);
  args.rank = options_.rank;
  args.ranks = options_.ranks;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    args.flags[rank] = arena_->message_flags(rank);
    args.slots[rank] = arena_->message_slots(rank);
    args.lines[rank] = arena_->message_lines(rank);
  }
  Spread wide;
  wide.threads = 2 * kMessageTeamThreads;
  wide.blocks = args.channels * args.peers;
  if (!families_->runs(Family::bulk_messages)) args.bulk = 0;
  wide.shared_bytes = args.bulk != 0 ? 2 * kMessageTeamBytes : 0;
  wide.programmatic = true;
  kernels_->launch(kernels_->find("plait_messages"), wide, stream, {&args});
}

/// Pieces must be the same on all ranks, so they follow from size and options alone.
void CudaRank::run_rotation(const Request& request, const void* input, void* output, Stream stream,
                            const std::vector<double>& scalars, const FusedTuning& tuning) {
  constexpr std::uint64_t kLeastPiece = 64 << 10;  // every piece costs dozens of the driver's calls
  const std::uint64_t wish =
      tuning.tile_units == 0 ? 0 : std::max(kLeastPiece, std::uint64_t{tuning.tile_units} * 16);
  if (request.ranks == 2)
    return run_exchange(request, input, output, stream, scalars, tuning, wish);
  if (is_engine_ring(request)) return run_engine_ring(request, input, output, stream, wish);
  TiledArgs shape = tiled_shape(request, options_.rank);
  fill_call(shape, request, input, output, scalars);
  const std::uint64_t most =
      wish == 0 ? engine_path_.slot_bytes : std::min(engine_path_.slot_bytes, wish);
  Rotation rotation(*queue_, engine_path_, cut_rotation(shape.part_bytes, most), shape,
                    moved_type(request), blocks_beside_copies(tuning));
  rotation.enqueue(fork_, stream);
}

void CudaRank::run_engine_ring(const Request& request, const void* input, void* output,
                               Stream stream, std::uint64_t piece_bytes) {
  CallArgs call{};
  fill_call(call, request, input, output, {});
  const std::uint64_t wish = piece_bytes == 0 ? kRingPieceBytes : piece_bytes;
  const RingCut cut = cut_ring(request.ranks, request.count * bytes_of(request.type),
                               std::min(wish, engine_path_.inbox_bytes / kRingSlots));
  EngineRing(*queue_, engine_path_, cut, call).enqueue(fork_, stream);
}

/// Two ranks use all slots as one inbox each.
void CudaRank::run_exchange(const Request& request, const void* input, void* output, Stream stream,
                            const std::vector<double>& scalars, const FusedTuning& tuning,
                            std::uint64_t piece_bytes) {
  const HopShape shape = hop_shape(request, options_.rank);
  CallArgs call{};
  fill_call(call, request, input, output, scalars);
  engine_path_.blocks = blocks_for({});
  const unsigned blocks = blocks_beside_copies(tuning);
  ExchangeRoom room;
  room.inbox_bytes = engine_path_.inbox_bytes;
  room.ring_bytes = engine_path_.ring_bytes;
  room.piece_bytes = piece_bytes;
  room.cuts = tuning.ahead;
  room.lent_bytes = engine_path_.lent_bytes;
  // Who takes sees both paths to their ends.
  const std::uint32_t takers =
      (sends(shape, 2, 1, 0) ? 1u : 0u) | (sends(shape, 2, 0, 1) ? 2u : 0u);
  const bool corrected = tuning.host_permille < 0 && !marker_.capturing(stream);
  if (tuning.host_permille >= 0)
    room.host_permille = static_cast<std::uint32_t>(tuning.host_permille);
  else if (corrected)
    room.host_permille =
        agreed_share_.next(shape.part_bytes, room.ring_bytes / kChunkSlots, takers);
  const ExchangeCut cut = cut_exchange(shape.part_bytes, room);
  PairExchange(*queue_, engine_path_, cut, shape, call, moved_type(request), blocks,
               corrected ? agreed_share_.timed(cut.bytes, cut.bytes - cut.host_from) : nullptr)
      .enqueue(fork_, stream);
}

}  // namespace plait::cuda
