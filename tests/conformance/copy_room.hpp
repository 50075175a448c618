// Small rooms for copy engines, so that small messages take many pieces and use each slot again.
#pragma once
#include "exec/cuda/copies/copy_plans.hpp"
#include "exec/cuda/copies/rotation.hpp"

namespace plait_test {

inline constexpr std::uint64_t kSlotBytes = 8192, kRingBytes = 4 * 8192, kTileBytes = 1 << 18;

inline plait::cuda::CopyRoom room_of(int ranks) {
  plait::cuda::CopyRoom room;
  room.tile_bytes = kTileBytes;
  room.slot_bytes = kSlotBytes;
  room.inbox_bytes = plait::cuda::rotation_slots(ranks) * kSlotBytes;
  room.lent_bytes = ranks == 2 ? kTileBytes : 0;
  room.ring_bytes = kRingBytes;
  return room;
}

}  // namespace plait_test
