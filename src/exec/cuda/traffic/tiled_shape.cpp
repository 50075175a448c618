// One function a family of collectives, and the cut into tiles.
#include "exec/cuda/traffic/tiled_shape.hpp"

#include <algorithm>

namespace plait::cuda {
namespace {

constexpr std::uint64_t kUnit = 16;

std::uint32_t only(int rank) { return 1u << rank; }

/// The message in equal parts, one an owner, cut between units.
void share_out(TiledArgs& shape, std::uint64_t bytes, int owners) {
  const std::uint64_t units = (bytes + kUnit - 1) / kUnit;
  const auto n = static_cast<std::uint64_t>(owners);
  shape.part_bytes = std::max<std::uint64_t>(1, (units + n - 1) / n) * kUnit;
  shape.total_bytes = bytes;
}

/// Parts as the request counts them.
void keep_parts(TiledArgs& shape, std::uint64_t bytes, int owners) {
  shape.part_bytes = bytes;
  shape.total_bytes = bytes * static_cast<std::uint64_t>(owners);
}

void stay(TiledArgs& shape, std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
  shape.own_from = from;
  shape.own_to = to;
  shape.own_bytes = bytes;
}

void shape_reduction(TiledArgs& shape, const Request& request, std::uint32_t all,
                     std::uint64_t bytes) {
  shape.handling = kReduceParts;
  shape.senders = shape.owners = shape.keepers = all;
  const bool scatters = request.collective == Collective::reduce_scatter;
  if (scatters || (request.collective == Collective::all_reduce && request.ranks == 2)) {
    // What two ranks all-reduce they exchange whole: as many bytes, one hop less.
    keep_parts(shape, bytes, request.ranks);
    shape.part_stride = scatters ? bytes : 0;
    return;
  }
  share_out(shape, bytes, request.ranks);
  shape.part_stride = shape.result_stride = shape.part_bytes;
  shape.readers = all;
  if (request.collective == Collective::reduce) shape.readers = shape.keepers = only(request.root);
}

void shape_broadcast(TiledArgs& shape, const Request& request, std::uint32_t all,
                     std::uint64_t bytes) {
  shape.handling = kPassPart;
  shape.senders = only(request.root);
  shape.owners = shape.readers = shape.keepers = all & ~only(request.root);
  share_out(shape, bytes, std::max(1, request.ranks - 1));
  shape.part_stride = shape.result_stride = shape.part_bytes;
  if (shape.rank == request.root) stay(shape, 0, 0, bytes);
}

/// What every owner only places: all_gather, all_to_all, gather, scatter, send_recv, copy.
void shape_placement(TiledArgs& shape, const Request& request, std::uint32_t all,
                     std::uint64_t bytes) {
  const bool is_root = shape.rank == request.root;
  const std::uint64_t mine = bytes * static_cast<std::uint64_t>(shape.rank);
  shape.handling = kPlaceParts;
  shape.senders = shape.owners = all;
  switch (request.collective) {
    case Collective::all_gather:
      shape.place_stride = bytes;
      stay(shape, 0, mine, bytes);
      break;
    case Collective::all_to_all:
      shape.part_stride = shape.place_stride = bytes;
      stay(shape, mine, mine, bytes);
      break;
    case Collective::gather:
      shape.owners = only(request.root);
      shape.place_stride = bytes;
      if (is_root) stay(shape, 0, mine, bytes);
      break;
    case Collective::scatter:
      shape.senders = only(request.root);
      shape.part_stride = bytes;
      if (is_root) stay(shape, mine, 0, bytes);
      break;
    case Collective::send_recv:
      shape.shift = 1;
      if (request.ranks == 1) stay(shape, 0, 0, bytes);
      break;
    default:  // copy
      shape.senders = only(request.root);
      shape.owners = only(request.peer);
      if (request.root == request.peer && is_root) stay(shape, 0, 0, bytes);
  }
  keep_parts(shape, bytes, __builtin_popcount(shape.owners));
}

}  // namespace

TiledArgs tiled_shape(const Request& request, int rank) {
  TiledArgs shape{};
  shape.rank = rank;
  shape.ranks = request.ranks;
  shape.op = static_cast<std::int32_t>(request.op);
  const auto all = static_cast<std::uint32_t>((1ull << request.ranks) - 1);
  const std::uint64_t bytes = request.count * bytes_of(request.type);
  if (reduces(request.collective))
    shape_reduction(shape, request, all, bytes);
  else if (request.collective == Collective::broadcast)
    shape_broadcast(shape, request, all, bytes);
  else
    shape_placement(shape, request, all, bytes);
  return shape;
}

/// Placements are one hop already; the others become one by every owner getting all it needs.
HopShape hop_shape(const Request& request, int rank) {
  const TiledArgs tiled = tiled_shape(request, rank);
  const std::uint64_t bytes = request.count * bytes_of(request.type);
  HopShape shape{};
  shape.senders = tiled.senders;
  shape.owners = tiled.owners;
  shape.shift = tiled.shift;
  shape.handling = tiled.handling == kReduceParts ? kReduceParts : kPlaceParts;
  shape.part_bytes = bytes;
  shape.part_stride = tiled.part_stride;
  shape.place_stride = tiled.place_stride;
  shape.own_from = tiled.own_from;
  shape.own_to = tiled.own_to;
  shape.own_bytes = tiled.own_bytes;
  switch (request.collective) {
    case Collective::all_reduce:
    case Collective::reduce:
      shape.owners = tiled.keepers;
      shape.part_stride = 0;
      break;
    case Collective::broadcast: shape.part_stride = 0; break;
    default: break;
  }
  return shape;
}

DataType moved_type(const Request& request) {
  if (reduces(request.collective)) return request.type;
  switch (bytes_of(request.type)) {
    case 1: return DataType::uint8;
    case 2: return DataType::uint16;
    case 4: return DataType::uint32;
    default: return DataType::uint64;
  }
}

std::uint64_t tile_slots(int ranks) {
  return std::uint64_t{kTileBlocks} * 2 * static_cast<std::uint64_t>(ranks) * kTileSlots;
}

unsigned spread_tiles(TiledArgs& shape, const TileWish& wish) {
  constexpr std::uint64_t kLeastUnits = 256;  // a tile that is worth a block
  const std::uint64_t units = std::max<std::uint64_t>(1, (shape.part_bytes + kUnit - 1) / kUnit);
  // Slots' places must not depend on the call, or a late reader could be overwritten.
  shape.slot_bytes = static_cast<std::uint32_t>(wish.slot_memory_bytes / tile_slots(shape.ranks) /
                                                kSlotGrainBytes * kSlotGrainBytes);
  const bool sums = shape.handling == kReduceParts;
  // Where results travel too, ranks that keep in step load all links alike: 2 % of an all_reduce
  // of four. Slots are taken in turn all the same. With fewer blocks latencies count more.
  constexpr std::uint64_t kBlocksInStep = 60;
  const bool in_step = sums && shape.ranks > 2 && shape.readers != 0;
  shape.window = in_step && wish.most_blocks >= kBlocksInStep ? 2 : kTileSlots;
  // Reductions read what they sent once more: with many blocks, only small tiles are still cached.
  constexpr std::uint64_t kManyBlocks = 80;
  const bool small = sums && shape.window == kTileSlots && wish.most_blocks > kManyBlocks;
  const std::uint32_t most_units = small ? 2048 : 4096;
  const std::uint32_t room = shape.slot_bytes / static_cast<std::uint32_t>(kUnit);
  shape.most_units = std::max<std::uint32_t>(
      1, std::min(wish.tile_units != 0 ? wish.tile_units : most_units, room));
  shape.blocks = static_cast<unsigned>(
      std::min<std::uint64_t>(wish.most_blocks, (units + kLeastUnits - 1) / kLeastUnits));
  return shape.blocks;
}

}  // namespace plait::cuda
