// Limits the sizes that a tuning asks for to the memory of the group.
#include "gpu/copy/copy_tuning.hpp"

#include <algorithm>

#include "gpu/copy/copy_memory.hpp"

namespace plait::cuda {
namespace {

std::uint64_t at_most(std::uint64_t wish, std::uint64_t most) {
  return wish == 0 ? most : std::min(wish, most);
}

}  // namespace

std::uint64_t wished_piece_bytes(const Tuning& tuning) {
  constexpr std::uint64_t kLeastPiece = 64 << 10;  // every piece costs dozens of driver calls
  if (tuning.tile_units == 0) return 0;
  return std::max(kLeastPiece, static_cast<std::uint64_t>(tuning.tile_units) * 16);
}

bool may_share(const Group& group, bool is_long) {
  static_assert(kLongInboxBytes >= kLeastSharingInbox);
  return !group.through_host && group.host_bytes != 0 &&
         (is_long || inbox_bytes(group) >= kLeastSharingInbox);
}

ExchangeCut exchange_cut(std::uint64_t part_bytes, const Group& group, const Tuning& tuning,
                         bool is_long) {
  ExchangeSpace wished;
  wished.inbox_bytes = is_long ? group.sizes[kLongInbox] : inbox_bytes(group);
  wished.ring_bytes = group.host_bytes;
  wished.piece_bytes = wished_piece_bytes(tuning);
  wished.host_permille = static_cast<std::uint32_t>(std::max(0, tuning.host_permille));
  wished.cuts = tuning.cuts;
  wished.borrowed_bytes = borrowed_bytes(group);
  ExchangeCut cut = cut_exchange(part_bytes, wished);
  cut.is_long = is_long;
  return cut;
}

/// A chunk is an eighth of the message, 2 to 4 MiB, since nothing comes up while the first chunk
/// goes down. Shorter chunks cost more driver calls than the earlier start gains. An all_reduce up
/// to kLongSum bytes takes 2 MiB, since sums wait for whole chunks. Source: E-0464, rows of two
/// GPUs.
HostCut host_exchange_cut(const Request& request, std::uint64_t part_bytes, const Group& group,
                          const Tuning& tuning) {
  constexpr std::uint64_t kShortChunk = 2 << 20, kLongSum = 128 << 20, kEighths = 8;
  const bool is_short_sum = request.collective == Collective::all_reduce && part_bytes <= kLongSum;
  std::uint64_t chunk_bytes = wished_piece_bytes(tuning);
  if (chunk_bytes == 0)
    chunk_bytes = is_short_sum ? kShortChunk : std::max(kShortChunk, part_bytes / kEighths);
  return cut_through_host(part_bytes, group.host_bytes, chunk_bytes);
}

HostCut host_cores_cut(std::uint64_t bytes, const Group& group, const Tuning& tuning) {
  constexpr std::uint64_t kLeastChunk = 512 << 10, kEighths = 8;
  const std::uint64_t wish = wished_piece_bytes(tuning);
  return cut_through_host(bytes, group.host_bytes,
                          wish != 0 ? wish : std::max(kLeastChunk, bytes / kEighths));
}

RotationCut rotation_cut(std::uint64_t part_bytes, const Group& group, const Tuning& tuning) {
  return cut_rotation(part_bytes, at_most(wished_piece_bytes(tuning), slot_bytes(group)));
}

RingCut ring_cut(const Request& request, const Group& group, const Tuning& tuning) {
  const std::uint64_t room = ring_bytes(group) / kRingSlots, wish = wished_piece_bytes(tuning);
  if (request.collective == Collective::broadcast) return cut_chain(request, room, wish);
  return cut_ring(request, std::min(at_most(wish, kRingPieceBytes), room));
}

HostCut cores_cut(std::uint64_t bytes, const Group& group, const Tuning& tuning) {
  constexpr std::uint64_t kChunks = 8, kLeastChunk = 64 << 10;  // few chunks are no reason for a
                                                                // single one
  const auto permille = static_cast<std::uint32_t>(tuning.host_cpu_permille);
  return cut_host_part(bytes, group.host_bytes, permille,
                       std::max(kLeastChunk, bytes / 1000 * permille / kChunks));
}

}  // namespace plait::cuda
