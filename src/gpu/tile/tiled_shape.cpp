// Turns a one-hop shape into a two-hop shape, and cuts the shape into tiles.
#include "gpu/tile/tiled_shape.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "gpu/abi/tile_cut.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kUnit = 16;

/// Splits the message into equal parts, one per owner, at unit boundaries.
void share_out(TiledArgs& shape, std::uint64_t bytes, int owners) {
  const std::uint64_t units = (bytes + kUnit - 1) / kUnit;
  const auto n = static_cast<std::uint64_t>(owners);
  shape.part_bytes = std::max<std::uint64_t>(1, (units + n - 1) / n) * kUnit;
  shape.total_bytes = bytes;
}

/// Each block sends at its share of the GPU's rate. A rank that also hands out results, as many
/// bytes as parts, sends parts at half the rate.
void set_rate(TiledArgs& shape, std::uint64_t gb_per_s) {
  constexpr std::uint64_t kKibPs = 1024 * 1000;  // At 1 GB/s.
  const bool hands_out = shape.readers != 0 && (shape.owners >> shape.rank & 1) != 0;
  if (gb_per_s != 0)
    shape.ps_per_kib =
        static_cast<std::uint32_t>(kKibPs * shape.blocks * (hands_out ? 2 : 1) / gb_per_s);
}

constexpr std::uint64_t kUsualUnits = 4096;  ///< Most units of a tile.
constexpr std::uint64_t kBlocksInStep = 60;  ///< With fewer blocks latency dominates.
bool is_in_step(const TiledArgs& shape, std::uint64_t most_blocks) {
  return shape.ranks > 2 && most_blocks >= kBlocksInStep;
}
bool sums_travel(const TiledArgs& shape) {
  return shape.handling == kReduceParts && shape.readers != 0;
}

/// Slots per block and peer. If ranks receive from several peers, few slots keep the ranks in step,
/// so links are loaded evenly and slots stay in the cache: 2 % of an all_reduce of four ranks, 1 to
/// 8 % of one-hop calls. Sums of two ranks gain 2 to 9 % from two long tiles with many blocks, and
/// lose 6 to 27 % with 32 blocks.
std::uint32_t window_of(const TiledArgs& shape, std::uint64_t most_blocks, std::uint64_t of_block) {
  if (shape.ranks == 2 && shape.handling == kReduceParts && most_blocks >= kBlocksInStep) return 2;
  if (!is_in_step(shape, most_blocks)) return kTileSlots;
  if (sums_travel(shape)) return 2;
  const bool has_one_hop = shape.readers == 0 && ranks_in(shape.owners) == shape.ranks;
  if (!has_one_hop || shape.shift != 0) return kTileSlots;
  return of_block <= 4 * kUsualUnits ? 2 : 3;
}

/// Slots of 48 KiB of four ranks still fit in the cache, slots of 64 do not. A rank with a single
/// target has space for long tiles; a block has at least four.
std::uint64_t most_units_of(const TiledArgs& shape, std::uint64_t most_blocks,
                            std::uint64_t of_block) {
  if (!is_in_step(shape, most_blocks)) return kUsualUnits;
  if (shape.shift != 0) return std::clamp(of_block / 4, kUsualUnits, 3 * kUsualUnits);
  return sums_travel(shape) && shape.ranks <= 4 ? kUsualUnits * 3 / 4 : kUsualUnits;
}

/// Divides a block's slot memory among the rings of this call, alike on all ranks.
void lay_slots(TiledArgs& shape, const TileWish& wish) {
  std::uint32_t rings[2] = {0, 0};
  for (const int stage : {0, 1})
    for (int rank = 0; rank < shape.ranks; ++rank)
      rings[stage] = std::max(rings[stage],
                              static_cast<std::uint32_t>(ranks_in(in_slots(shape, rank, stage))));
  const std::uint32_t all = std::max(1u, rings[0] + rings[1]);
  const auto whole = [](std::uint64_t bytes) {
    return static_cast<std::uint32_t>(bytes / kSlotGrainBytes * kSlotGrainBytes);
  };
  shape.block_bytes = whole(wish.slot_memory_bytes / wish.slot_blocks);
  // With a window of 1 no tile would be in flight while the tile before is read.
  constexpr std::uint32_t kLeastWindow = 2;
  const auto most = static_cast<std::uint32_t>(shape.block_bytes / (all * kSlotGrainBytes));
  shape.window = std::clamp(shape.window, kLeastWindow, std::max(kLeastWindow, most));
  shape.part_rings = rings[0];
  shape.slot_bytes = whole(shape.block_bytes / (all * shape.window));
  if (shape.slot_bytes == 0)
    throw Error(ErrorCode::internal, text("wanted {} bytes a slot, found {} for {}",
                                          kSlotGrainBytes, shape.block_bytes, all * shape.window));
}

}  // namespace

/// A one-hop call keeps its shape. In other collectives each owner handles a share, and the result
/// goes to the readers.
TiledArgs tiled_shape(const Request& request, int rank) {
  const DirectShape direct = direct_shape(request, rank);
  TiledArgs shape{};
  shape.rank = rank;
  shape.ranks = request.ranks;
  shape.op = static_cast<std::int32_t>(request.op);
  shape.handling = direct.handling;
  shape.senders = direct.senders;
  shape.owners = direct.owners;
  shape.keepers = direct.handling == kReduceParts || request.collective == Collective::broadcast
                      ? direct.owners
                      : 0;
  shape.shift = direct.shift;
  shape.part_stride = direct.part_stride;
  shape.place_stride = direct.place_stride;
  shape.own_from = direct.own_from;
  shape.own_to = direct.own_to;
  shape.own_bytes = direct.own_bytes;
  const int owners = __builtin_popcount(direct.owners);
  // Two ranks exchange the whole message of an all_reduce: as many bytes, one hop less.
  const bool is_shared_out = (request.collective == Collective::all_reduce && request.ranks != 2) ||
                             request.collective == Collective::reduce ||
                             request.collective == Collective::broadcast;
  if (!is_shared_out) {
    shape.part_bytes = direct.part_bytes;
    shape.total_bytes = direct.part_bytes * static_cast<std::uint64_t>(owners);
    return shape;
  }
  shape.readers = direct.owners;
  if (request.collective == Collective::broadcast) {
    shape.handling = kPassPart;
    share_out(shape, direct.part_bytes, std::max(1, owners));
  } else {
    shape.owners = shape.senders;
    share_out(shape, direct.part_bytes, request.ranks);
  }
  shape.part_stride = shape.result_stride = shape.part_bytes;
  return shape;
}

std::uint64_t tile_slots(int ranks, std::uint64_t blocks) {
  return blocks * static_cast<std::uint64_t>(std::max(1, ranks - 1)) * kTileSlots;
}

unsigned spread_tiles(TiledArgs& shape, const TileWish& wish) {
  constexpr std::uint64_t kLeastUnits = 256;  // Smallest tile worth a block.
  const std::uint64_t units = std::max<std::uint64_t>(1, (shape.part_bytes + kUnit - 1) / kUnit);
  const std::uint64_t most_blocks = std::min<std::uint64_t>(wish.most_blocks, wish.slot_blocks);
  shape.blocks = static_cast<unsigned>(
      std::min<std::uint64_t>(most_blocks, (units + kLeastUnits - 1) / kLeastUnits));
  const std::uint64_t of_block = (units + shape.blocks - 1) / shape.blocks;
  shape.window = wish.window != 0 ? wish.window : window_of(shape, most_blocks, of_block);
  lay_slots(shape, wish);
  const std::uint64_t most_units =
      wish.tile_units != 0 ? wish.tile_units : most_units_of(shape, most_blocks, of_block);
  shape.most_units = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      most_units, 1, std::max<std::uint64_t>(1, shape.slot_bytes / kUnit)));
  shape.target_order = wish.order;
  shape.turns = wish.turns ? 1 : 0;
  shape.piece_bytes = wish.piece_bytes != 0 ? wish.piece_bytes : kBulkBytes;
  shape.in_turn = wish.piece_bytes != 0 ? 1 : 0;
  set_rate(shape, wish.send_gb_per_s);
  return shape.blocks;
}

}  // namespace plait::cuda
