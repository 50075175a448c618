// Pieces fill two halves of the inbox in turn, since every copy costs some microseconds whatever
// its size; from the last one its last quarter is cut off, as nothing is copied while that is
// reduced. Source: bench/NOTES.md.
#include "exec/cuda/exchange_cut.hpp"

#include <algorithm>

namespace plait::cuda {
namespace {

constexpr std::uint64_t kGrain = 4096;
constexpr std::uint64_t kMostChunk = 4ull << 20;  // gaps between copies over PCIe are 10 us
constexpr std::uint64_t kLeastTail = 8ull << 20;  // is reduced as fast as it is announced

std::uint64_t down(std::uint64_t bytes) { return bytes / kGrain * kGrain; }
std::uint64_t up(std::uint64_t bytes) { return (bytes + kGrain - 1) / kGrain * kGrain; }

/// The share is cut to whole chunks: too little of it costs less than too much.
void cut_share(ExchangeCut& cut, std::uint64_t bytes, const ExchangeRoom& room,
               std::uint64_t most) {
  cut.host_from = bytes;
  cut.chunk_bytes = down(std::min({kMostChunk, room.ring_bytes / kChunkSlots, most / kChunkSlots}));
  if (cut.chunk_bytes == 0) return;
  const std::uint64_t share = bytes / 1000 * std::min<std::uint32_t>(room.host_permille, 1000);
  const std::uint64_t chunks = std::min(share, bytes - 1) / cut.chunk_bytes;
  const std::uint64_t from = up(bytes - chunks * cut.chunk_bytes);
  if (chunks == 0 || from >= bytes) return;
  cut.chunks = static_cast<std::uint32_t>((bytes - from + cut.chunk_bytes - 1) / cut.chunk_bytes);
  cut.host_from = from;
}

}  // namespace

ExchangeCut cut_exchange(std::uint64_t bytes, const ExchangeRoom& room) {
  ExchangeCut cut;
  cut.bytes = bytes;
  const std::uint64_t wish = room.piece_bytes == 0 ? room.inbox_bytes : room.piece_bytes;
  cut_share(cut, bytes, room, std::min(wish, room.inbox_bytes / 2));
  const std::uint64_t staging = cut.chunks == 0 ? 0 : kChunkSlots * cut.chunk_bytes;
  const std::uint64_t most =
      std::max(kGrain, down(std::min(wish, (room.inbox_bytes - staging) / 2)));
  cut.staging_at = 2 * most;
  const std::uint64_t link = cut.host_from, count = (link + most - 1) / most;
  const std::uint64_t whole = up((link + count - 1) / count);
  std::uint64_t from = 0;
  std::uint32_t ends[2] = {0, 0};  // pieces up to the last one of each half of the inbox
  for (std::uint64_t i = 0; from < link; ++i) {
    const std::uint64_t end = std::min(link, from + whole);
    const std::uint32_t after = ends[i % 2];
    if (after != 0) cut.pieces[after - 1].awaited = true;
    std::uint64_t at = i % 2 * most;
    int cuts = end < link ? 0 : room.cuts;
    while (from < end) {
      const std::uint64_t rest = end - from, quarter = rest / 4;
      const bool is_cut = cuts < 0 ? quarter >= kLeastTail : cuts-- > 0;
      const std::uint64_t take = is_cut ? std::min(rest, up(rest - quarter)) : rest;
      cut.pieces.push_back({from, take, at, after, false, end == link});
      from += take;
      at += take;
    }
    ends[i % 2] = static_cast<std::uint32_t>(cut.pieces.size());
  }
  return cut;
}

}  // namespace plait::cuda
