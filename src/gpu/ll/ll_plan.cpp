// Writes plans of LL calls, with the cuts of the engines and the slots of the kernels.
#include "gpu/ll/ll_plan.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "gpu/ll/ll_cut.hpp"
#include "plait/error.hpp"
#include "plan/shots.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kUnit = 16;

/// Returns the pieces of a call. For two_shot with reused packets a piece is the contribution of
/// all ranks' shards to a step.
LlCut cut_of(const Request& request, LlKernel kernel, PacketFormat kind, std::uint64_t half_bytes,
             LlStep step) {
  const std::uint64_t units = units_of(request);
  const int ranks = request.ranks;
  const auto cut = [&]() -> LlCut {
    if (kernel == LlKernel::direct_ll) return cut_direct_ll(units, ranks, half_bytes);
    if (kernel == LlKernel::ll_chain) return cut_chain(units, ranks, half_bytes, step);
    if (holds_packets(packets_in_half(kind, half_bytes), units, ranks,
                      kernel == LlKernel::one_shot))
      return {1, units};
    if (kernel == LlKernel::one_shot || request.collective == Collective::reduce ||
        step.units > most_shot_units(half_bytes, bytes_of(kind), ranks, step.ahead))
      return {};
    const std::uint64_t each = step.units * static_cast<std::uint64_t>(ranks);
    return {(units + each - 1) / each, each};
  }();
  if (cut.units == 0)
    throw Error(ErrorCode::unsupported, text("packet buffer of {} bytes a call is too small: "
                                             "wanted a packet of each of {} ranks",
                                             half_bytes, request.ranks));
  return cut;
}

/// Returns the shards that two_shot cuts a piece into: equal numbers of units, the last shards
/// short or empty.
std::vector<Range> shards_of(Range piece, int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  const std::uint64_t shard = ((piece.bytes + kUnit - 1) / kUnit + n - 1) / n * kUnit;
  std::vector<Range> shards;
  for (std::uint64_t at = 0; shards.size() < n; at = std::min(at + shard, piece.bytes))
    shards.push_back({piece.offset + at, std::min(shard, piece.bytes - at)});
  return shards;
}

/// Writes the steps of long_two_shot, each with a part of every shard.
void write_steps(Builder& builder, std::uint64_t bytes, LlStep step) {
  const std::uint64_t step_bytes = step.units * kUnit;
  const int ring = shot_ring(step.ahead);
  const Shot shot{"two_shot", 0, static_cast<std::uint64_t>(ring) * step_bytes};
  const std::vector<Range> shards = shards_of({0, bytes}, builder.ranks());
  std::vector<std::vector<Range>> steps;
  for (std::uint64_t at = 0; at < shards[0].bytes; at += step_bytes) {
    std::vector<Range>& parts = steps.emplace_back();
    for (const Range& shard : shards) {
      const std::uint64_t from = std::min(at, shard.bytes);
      parts.push_back({shard.offset + from, std::min(step_bytes, shard.bytes - from)});
    }
  }
  write_long_two_shot(builder, shot, steps, {ring, step.ahead, step_bytes});
}

void write_piece(Builder& builder, LlKernel kernel, std::uint64_t half, Range piece) {
  const std::uint64_t packets = (piece.bytes + kUnit - 1) / kUnit;
  if (kernel == LlKernel::one_shot)
    return write_one_shot(builder, {"one_shot", half, packets * kUnit}, piece);
  if (kernel == LlKernel::direct_ll)  // a further packet per slot, to greet
    return write_one_shot(builder, {"direct_ll", half, (packets + 1) * kUnit}, piece);
  const std::vector<Range> shards = shards_of(piece, builder.ranks());
  const std::uint64_t shard = (packets + static_cast<std::uint64_t>(builder.ranks()) - 1) /
                              static_cast<std::uint64_t>(builder.ranks());
  const Shot shot{"two_shot", half, shard * kUnit};
  const bool to_root = builder.request().collective == Collective::reduce;
  const int root = builder.request().root;
  std::vector<Region> sums;
  for (int owner = 0; owner < builder.ranks(); ++owner) {
    const Range& part = shards[static_cast<std::size_t>(owner)];
    sums.push_back(to_root && owner != root
                       ? result_slot(shot, root, owner, builder.ranks(), part.bytes)
                       : builder.output(owner, part));
  }
  write_shards(builder, shot, shards, sums);
  if (to_root)
    write_results_at_root(builder, shot, shards);
  else
    write_results(builder, shot, shards);
}

}  // namespace

const char* name_of(LlKernel kernel) {
  return kernel == LlKernel::one_shot    ? "one_shot"
         : kernel == LlKernel::direct_ll ? "direct_ll"
         : kernel == LlKernel::two_shot  ? "two_shot"
                                         : "ll_chain";
}

bool is_escaped(LlKernel kernel) {
  return kernel == LlKernel::direct_ll || kernel == LlKernel::ll_chain;
}

bool serves(LlKernel kernel, Collective collective) {
  if (kernel == LlKernel::direct_ll) return true;
  if (kernel == LlKernel::two_shot && collective == Collective::reduce) return true;
  if (kernel != LlKernel::ll_chain) return collective == Collective::all_reduce;
  return collective == Collective::broadcast || collective == Collective::reduce;
}

std::uint64_t bytes_of(PacketFormat kind) {
  return kind == PacketFormat::flag           ? kFlagPacketBytes
         : kind == PacketFormat::nan_sentinel ? kSentinelPacketBytes
                                              : kSentinelPacketBytes + kEscapeFlagBytes;
}

std::uint64_t packets_in_half(PacketFormat kind, std::uint64_t half_bytes) {
  return half_bytes / bytes_of(kind);
}

std::vector<Range> chain_pieces(std::uint64_t bytes, const LlCut& cut) {
  std::vector<Range> pieces;
  const std::uint64_t short_by = cut.pieces * cut.units - (bytes + 15) / 16;
  for (std::uint64_t i = 0, at = 0; i < cut.pieces && at < bytes; ++i) {
    const std::uint64_t units = cut.units - (i == 0 ? short_by : 0);
    pieces.push_back({at, std::min(units * 16, bytes - at)});
    at += units * 16;
  }
  return pieces;
}

Plan ll_plan(const Topology& topology, const Request& request, LlKernel kernel, PacketFormat kind,
             std::uint64_t half_bytes, LlStep step) {
  if (!serves(kernel, request.collective))
    throw Error(ErrorCode::unsupported,
                text("kernel {} does not serve {}", name_of(kernel), name_of(request.collective)));
  Builder builder(topology, request, name_of(kernel));
  builder.kernel(name_of(kernel));
  const std::uint64_t bytes = request.count * plait::bytes_of(request.type);
  if (bytes == 0) return builder.build();
  const LlCut cut = cut_of(request, kernel, kind, half_bytes, step);
  builder.param("bare", kind == PacketFormat::nan_sentinel ? 1 : 0);
  builder.param("piece_bytes", static_cast<std::int64_t>(cut.units * kUnit));
  const bool is_long_shot = kernel == LlKernel::two_shot && cut.pieces > 1;
  const std::uint64_t half = packets_in_half(kind, half_bytes) * kUnit;
  const bool takes_both = cut.pieces > 1 && !is_long_shot;
  for (int rank = 0; rank < request.ranks; ++rank)
    builder.alloc(Space::inbox, rank, takes_both ? 2 * half : half);
  if (is_long_shot) {
    builder.param("step_units", static_cast<std::int64_t>(step.units));
    write_steps(builder, bytes, step);
    return builder.build();
  }
  if (kernel == LlKernel::ll_chain) {
    std::vector<std::pair<Shot, Range>> pieces;  // pieces, each with its slots
    for (const Range& piece : chain_pieces(bytes, cut))
      pieces.push_back({{"ll_chain", pieces.size() % 2 * half}, piece});
    write_chain(builder, pieces);
    return builder.build();
  }
  std::uint64_t turn = 0;
  for (std::uint64_t at = 0; at < bytes; at += cut.units * kUnit, ++turn)
    write_piece(builder, kernel, turn % 2 * half, {at, std::min(cut.units * kUnit, bytes - at)});
  return builder.build();
}

void set_launch(Plan& plan, const KernelLaunchConfig& config, int together,
                std::uint64_t packet_bytes, bool through_host) {
  plan.params["blocks"] = config.blocks;
  plan.params["threads"] = config.threads;
  plan.params["together"] = together;
  plan.params["line_bytes"] = static_cast<std::int64_t>(packet_bytes);
  if (through_host) plan.params["through_host"] = 1;
}

}  // namespace plait::cuda
