// How two ranks cut a message that they exchange whole by copy engines: pieces that are pushed over
// the link into the peer's memory, and behind them chunks that go through host memory. Which bytes,
// into which slot, and what must have been handled before a slot is used again. Pure arithmetic.
#pragma once
#include <cstdint>
#include <vector>

namespace plait::cuda {

/// Chunks of the host's share under way in each direction, in host memory and beside the inbox.
inline constexpr std::uint32_t kChunkSlots = 4;

/// The share that was fastest on HGX H200, 256 MiB to 1 GiB, with PCIe idle.
inline constexpr std::uint32_t kBestHostPermille = 90;
/// Of a part; a smaller one gains nothing by it.
inline constexpr std::uint64_t kLeastSharedBytes = 384ull << 20;
/// Of an inbox. Beside a share each piece costs 10 to 17 us instead of 4, and chunks take room from
/// pieces: 1 GiB with 128 MiB takes 2.65 ms instead of 2.84, with 40 MiB 3.29 instead of 2.89
/// (E-0211). In between nothing was measured.
inline constexpr std::uint64_t kLeastSharingInbox = 96ull << 20;

/// The part of a message that goes through host memory: its last, in whole chunks but for the end.
struct HostCut {
  std::uint64_t bytes = 0;      ///< of the message
  std::uint64_t host_from = 0;  ///< from here on to the end of the message, in chunks
  std::uint64_t chunk_bytes = 0;
  std::uint32_t chunks = 0;

  /// Where a chunk lies in the message, how long it is, and where its slot is in a ring.
  std::uint64_t chunk_from(std::uint32_t chunk) const { return host_from + chunk * chunk_bytes; }
  std::uint64_t length_of(std::uint32_t chunk) const {
    return chunk + 1 < chunks ? chunk_bytes : bytes - chunk_from(chunk);
  }
  std::uint64_t slot_at(std::uint32_t chunk) const { return chunk % kChunkSlots * chunk_bytes; }
};
/// permille: of the message, cut down to whole chunks. most_chunk_bytes: beside what a ring holds.
HostCut cut_host_part(std::uint64_t bytes, std::uint64_t ring_bytes, std::uint32_t permille,
                      std::uint64_t most_chunk_bytes);

/// What there is and what is wished for; the same on both ranks.
struct ExchangeSpace {
  std::uint64_t inbox_bytes = 0;
  std::uint64_t ring_bytes = 0;      ///< host memory of one rank; 0 = no share through the host
  std::uint64_t piece_bytes = 0;     ///< of the first pieces, at most; 0 = half of the inbox
  std::uint32_t host_permille = 0;   ///< of the message
  int cuts = -1;                     ///< of the last piece; -1 = chosen
  std::uint64_t borrowed_bytes = 0;  ///< beside the inbox, once the peer is in the call
};

struct ExchangePiece {
  std::uint64_t from, bytes;  ///< of the message
  std::uint64_t at;           ///< in the inbox, or where `borrowed` in what is borrowed
  std::uint32_t after;        ///< pieces from the first on that must have been handled before
  bool awaited;               ///< a later piece comes where this one was
  bool last;  ///< one of those into which the last piece was cut, or the last even one
  bool borrowed;
};

struct ExchangeCut : HostCut {
  std::vector<ExchangePiece> pieces;  ///< up to host_from
  std::uint64_t staging_at = 0;  ///< in the inbox, behind the pieces: room for kChunkSlots chunks
};

/// bytes: of the message, not 0.
ExchangeCut cut_exchange(std::uint64_t bytes, const ExchangeSpace& room);

}  // namespace plait::cuda
