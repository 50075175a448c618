// How much of a GPU calls take, and how much memory their engines have.
#include "exec/cuda/group.hpp"

#include <algorithm>

#include "exec/cuda/copies/engine_ring.hpp"
#include "exec/cuda/copies/rotation.hpp"
#include "exec/cuda/messages/messages.hpp"
#include "exec/cuda/traffic/tiled_shape.hpp"

namespace plait::cuda {
namespace {

/// Few enough to leave memory's bandwidth to engines, enough to reduce a piece while the next
/// comes.
constexpr unsigned kBlocksBesideCopies = 48;

}  // namespace

bool Group::has_copy_engines() const {
  constexpr unsigned kEnoughQueues = 8;
  return hardware_queues >= kEnoughQueues && runs(Family::engines);
}

unsigned Group::blocks(const Tuning& tuning) const {
  if (tuning.blocks != 0) return std::min(static_cast<unsigned>(tuning.blocks), multiprocessors);
  return most_blocks != 0 ? std::min(most_blocks, multiprocessors) : multiprocessors;
}

unsigned Group::blocks_with_room() const {
  constexpr unsigned kRoom = 16;
  return multiprocessors > kRoom ? multiprocessors - kRoom : 1;
}

unsigned Group::blocks_beside_copies(const Tuning& tuning) const {
  return std::min(blocks(),
                  tuning.blocks != 0 ? static_cast<unsigned>(tuning.blocks) : kBlocksBesideCopies);
}

unsigned Group::most_threads(bool is_lean) const {
  const bool half_the_gpu = most_blocks != 0 && 2 * most_blocks <= multiprocessors;
  return is_lean || half_the_gpu ? 512 : 256;
}

std::uint64_t Group::inbox_bytes() const { return has_copy_engines() ? sizes.rotation_bytes : 0; }

std::uint64_t Group::slot_bytes() const {
  return has_rings_alone ? 0 : inbox_bytes() / rotation_slots(ranks) / 4096 * 4096;
}

std::uint64_t Group::lent_bytes() const {
  return ranks == 2 && slot_bytes() != 0 ? sizes.tile_bytes : 0;
}

void make_room(Group& group) {
  DeviceArenaSizes& sizes = group.sizes;
  if (sizes.flagged_bytes == 0) sizes.flagged_bytes = (4ull << 20) + 4096;
  // For 64 MiB by two_shot in one piece, up to four ranks.
  if (sizes.bare_bytes == 0)
    sizes.bare_bytes = (group.ranks == 3 || group.ranks == 4 ? 96ull : 64ull) << 20;
  // Half as large tiles beyond 4 ranks: memory grows with ranks.
  const std::uint64_t tile_kib = group.ranks <= 4 ? 64 : 32;
  if (sizes.tile_bytes == 0) sizes.tile_bytes = tile_slots(group.ranks) * tile_kib << 10;
  // Two ranks' engines borrow the slots of tiled kernels.
  if (group.ranks > 2 && !group.runs(Family::tiled)) sizes.tile_bytes = 0;
  // Only where choices.def would use it. Two ranks use all slots as one inbox, and borrow more.
  if (sizes.rotation_bytes == 0 && group.ranks > 1 &&
      (group.ranks <= 4 || group.most_blocks != 0)) {
    // Of more than two ranks, rotations are chosen under a budget alone.
    group.has_rings_alone = group.ranks > 2 && group.most_blocks == 0;
    sizes.rotation_bytes = group.has_rings_alone
                               ? kRingSlots * kRingPieceBytes
                               : rotation_slots(group.ranks) * rotation_slot_bytes(group.ranks);
  }
  if (group.most_message_blocks != 0 && group.ranks > 1) {
    const std::uint32_t channels = message_channels(group.ranks, group.most_message_blocks);
    sizes.message_slot_bytes = message_slot_bytes(group.ranks, channels);
    sizes.message_line_bytes = message_line_bytes(group.ranks, channels);
  }
}

Group usual_group(int ranks, bool beside_computing) {
  Group group;
  group.ranks = ranks;
  group.beside_computing = beside_computing;
  if (beside_computing) group.most_tiled_blocks = kTiledBlocksBesideComputing;
  group.host_bytes = kPlanRingBytes + kExchangeRingBytes;
  group.has_host_reducer = true;
  make_room(group);
  return group;
}

}  // namespace plait::cuda
