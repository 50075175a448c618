// Cuts large pieces, since every copy costs some microseconds whatever the size; a piece is copied
// while the piece before is handled. The last data is at most half an inbox, and its last quarter
// is cut off, because nothing is copied while that is reduced. A message that fits there as a whole
// goes in even pieces. Source: E-0035, E-0038.
#include "gpu/copy/exchange_cut.hpp"

#include <algorithm>

namespace plait::cuda {
namespace {

constexpr std::uint64_t kGrain = 4096;
constexpr std::uint64_t kLeastTail = 8ull << 20;  // is reduced as fast as it is announced
constexpr std::uint64_t kEvenPiece = 16ull << 20;

std::uint64_t down(std::uint64_t bytes) { return bytes / kGrain * kGrain; }
std::uint64_t up(std::uint64_t bytes) { return (bytes + kGrain - 1) / kGrain * kGrain; }

struct InboxSlot {
  std::uint64_t at, bytes;
  bool borrowed;
};

/// The sequence of slots: both halves of the inbox, then the borrowed memory and the whole inbox
/// alternately. If little is borrowed, the halves alternate.
class InboxSlots {
 public:
  InboxSlots(std::uint64_t half, std::uint64_t borrowed)
      : half_(half), borrowed_(borrowed > half ? borrowed : 0) {}
  InboxSlot at(std::uint32_t i) const {
    if (borrowed_ == 0 || i < 2) return {i % 2 * half_, half_, false};
    if (i % 2 == 0) return {0, borrowed_, true};
    return {0, 2 * half_, false};
  }
  /// Returns the leading slots whose pieces must have been handled before slot i is filled.
  /// Borrowed memory is free once the peer has handled any piece, since the peer is then in this
  /// call.
  std::uint32_t before(std::uint32_t i) const { return i < 2 ? 0 : i - 1; }

 private:
  const std::uint64_t half_, borrowed_;
};

/// whole * part / all in whole grains, without overflow.
std::uint64_t share_of(std::uint64_t whole, std::uint64_t part, std::uint64_t all) {
  return up(static_cast<std::uint64_t>(static_cast<double>(whole) * static_cast<double>(part) /
                                       static_cast<double>(all)) +
            1);
}

/// Returns the bytes of the next even piece.
std::uint64_t even_piece(std::uint64_t rest) {
  const std::uint64_t pieces = std::max<std::uint64_t>(1, (rest + kEvenPiece / 2) / kEvenPiece);
  return std::min(rest, up(rest / pieces));
}

}  // namespace

HostCut cut_host_part(std::uint64_t bytes, std::uint64_t ring_bytes, std::uint32_t permille,
                      std::uint64_t most_chunk_bytes) {
  HostCut cut{bytes, bytes, 0, 0};
  cut.chunk_bytes = down(std::min({kMostChunkBytes, ring_bytes / kChunkSlots, most_chunk_bytes}));
  if (cut.chunk_bytes == 0) return cut;
  const std::uint64_t share = bytes / 1000 * std::min<std::uint32_t>(permille, 1000);
  // A share that is too small costs less than one that is too large.
  const std::uint64_t chunks = std::min(share, bytes - 1) / cut.chunk_bytes;
  const std::uint64_t from = up(bytes - chunks * cut.chunk_bytes);
  if (chunks == 0 || from >= bytes) return cut;
  cut.chunks = static_cast<std::uint32_t>((bytes - from + cut.chunk_bytes - 1) / cut.chunk_bytes);
  cut.host_from = from;
  return cut;
}

ExchangeCut cut_exchange(std::uint64_t bytes, const ExchangeSpace& room) {
  ExchangeCut cut;
  const std::uint64_t wish = room.piece_bytes == 0 ? room.inbox_bytes : room.piece_bytes;
  static_cast<HostCut&>(cut) = cut_host_part(bytes, room.ring_bytes, room.host_permille,
                                             std::min(wish, room.inbox_bytes / 2) / kChunkSlots);
  const std::uint64_t staging = cut.chunks == 0 ? 0 : kChunkSlots * cut.chunk_bytes;
  const std::uint64_t half =
      std::max(kGrain, down(std::min(wish, (room.inbox_bytes - staging) / 2)));
  cut.staging_at = 2 * half;
  const InboxSlots slots(half, down(std::min(room.borrowed_bytes, 2 * half)));
  const std::uint64_t link = cut.host_from;
  std::uint64_t room_for = 0;  // bytes that `count` slots hold
  std::uint32_t count = 0;
  while (room_for < link) room_for += slots.at(count++).bytes;
  const bool in_even_pieces = room.cuts < 0 && count == 1;
  std::vector<std::uint32_t> ends;  // by slot: pieces up to its last one
  std::uint64_t from = 0;
  for (std::uint32_t i = 0; from < link; ++i) {
    const InboxSlot slot = slots.at(i);
    // Fills all slots equally: a very small piece would cost a separate step.
    const std::uint64_t whole = std::min(slot.bytes, share_of(slot.bytes, link, room_for));
    const std::uint64_t end = i + 1 < count ? std::min(link, from + whole) : link;
    const std::uint32_t before = slots.before(i);
    const std::uint32_t after = before == 0 ? 0 : ends[before - 1];
    if (after != 0) cut.pieces[after - 1].awaited = true;
    std::uint64_t at = slot.at;
    int cuts = end < link ? 0 : room.cuts;
    while (from < end) {
      const std::uint64_t rest = end - from, cut_off = rest / (cuts < 0 && rest > half ? 2 : 4);
      const bool is_cut = cuts < 0 ? cut_off >= kLeastTail : cuts-- > 0;
      const std::uint64_t take = in_even_pieces ? even_piece(rest)
                                 : is_cut       ? std::min(rest, up(rest - cut_off))
                                                : rest;
      const bool is_last = end == link && (!in_even_pieces || take == rest);
      cut.pieces.push_back({from, take, at, after, false, is_last, slot.borrowed});
      from += take;
      at += take;
    }
    ends.push_back(static_cast<std::uint32_t>(cut.pieces.size()));
  }
  return cut;
}

HostCut cut_through_host(std::uint64_t bytes, std::uint64_t ring_bytes, std::uint64_t chunk_bytes) {
  HostCut cut;
  cut.bytes = bytes;
  const std::uint64_t most = std::min(kMostChunkBytes, down(ring_bytes / kChunkSlots));
  cut.chunk_bytes = std::clamp(down(chunk_bytes), kGrain, std::max(kGrain, most));
  cut.chunks = static_cast<std::uint32_t>((bytes + cut.chunk_bytes - 1) / cut.chunk_bytes);
  return cut;
}

}  // namespace plait::cuda
