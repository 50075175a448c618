// Wishes cut down to the room there is.
#include "exec/cuda/copies/copy_tuning.hpp"

#include <algorithm>

namespace plait::cuda {
namespace {

std::uint64_t at_most(std::uint64_t wish, std::uint64_t most) {
  return wish == 0 ? most : std::min(wish, most);
}

}  // namespace

CopyRoom copy_room(const Group& group) {
  CopyRoom room;
  room.tile_bytes = group.sizes.tile_bytes;
  room.inbox_bytes = group.inbox_bytes();
  room.slot_bytes = group.slot_bytes();
  room.lent_bytes = group.lent_bytes();
  room.ring_bytes = group.host_bytes;
  return room;
}

CopyTuning copy_tuning(const Tuning& tuning, bool exchanges) {
  constexpr std::uint64_t kLeastPiece = 64 << 10;  // every piece costs dozens of the driver's calls
  CopyTuning made;
  if (tuning.tile_units != 0)
    made.piece_bytes = std::max(kLeastPiece, static_cast<std::uint64_t>(tuning.tile_units) * 16);
  made.cuts = tuning.cuts;
  (exchanges ? made.host_permille : made.gather_permille) =
      static_cast<std::uint32_t>(std::max(0, tuning.host_permille));
  made.host_cpu_permille = static_cast<std::uint32_t>(tuning.host_cpu_permille);
  return made;
}

ExchangeCut exchange_cut(std::uint64_t part_bytes, const CopyRoom& room, const CopyTuning& tuning) {
  ExchangeRoom wished;
  wished.inbox_bytes = room.inbox_bytes;
  wished.ring_bytes = room.ring_bytes;
  wished.piece_bytes = tuning.piece_bytes;
  wished.host_permille = tuning.host_permille;
  wished.cuts = tuning.cuts;
  wished.lent_bytes = room.lent_bytes;
  return cut_exchange(part_bytes, wished);
}

RotationCut rotation_cut(std::uint64_t part_bytes, const CopyRoom& room, const CopyTuning& tuning) {
  return cut_rotation(part_bytes, at_most(tuning.piece_bytes, room.slot_bytes));
}

RingCut ring_cut(const Request& request, const CopyRoom& room, const CopyTuning& tuning) {
  return cut_ring(
      request.ranks, request.count * bytes_of(request.type),
      std::min(at_most(tuning.piece_bytes, kRingPieceBytes), room.inbox_bytes / kRingSlots));
}

HostCut cores_cut(std::uint64_t bytes, const CopyRoom& room, const CopyTuning& tuning) {
  constexpr std::uint64_t kChunks = 8;
  const std::uint64_t share = bytes / 1000 * tuning.host_cpu_permille;
  return cut_host_part(bytes, room.ring_bytes, tuning.host_cpu_permille,
                       std::max(tuning.least_chunk_bytes, share / kChunks));
}

}  // namespace plait::cuda
