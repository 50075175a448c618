// Cuts a message that two ranks exchange whole by copy engines: pieces that are pushed over the
// link into the peer's memory, and behind them chunks that go through host memory. A cut has the
// bytes and slot of each piece, and what must be handled before a slot is reused. Pure arithmetic.
#pragma once
#include <cstdint>
#include <vector>

namespace plait::cuda {

/// Chunks of the host's share in flight in each direction, in host memory and beside the inbox.
inline constexpr std::uint32_t kChunkSlots = 4;
/// Most bytes of a chunk: the gap between two copies over PCIe is 10 us.
inline constexpr std::uint64_t kMostChunkBytes = 4ull << 20;

/// Least bytes of an inbox for a share through host memory. Beside a share each piece costs 10 to
/// 17 us instead of 4, and chunks take memory from pieces: 1 GiB takes 2.65 ms instead of 2.84 with
/// 128 MiB, and 3.29 ms instead of 2.89 with 40 MiB (E-0211). Sizes in between were not measured.
inline constexpr std::uint64_t kLeastSharingInbox = 96ull << 20;

/// The part of a message that goes through host memory: the message's end, in whole chunks but for
/// the last.
struct HostCut {
  std::uint64_t bytes = 0;      ///< of the message
  std::uint64_t host_from = 0;  ///< from here to the end of the message, in chunks
  std::uint64_t chunk_bytes = 0;
  std::uint32_t chunks = 0;

  /// Returns a chunk's offset in the message, the chunk's length, and the offset of the slot in a
  /// ring.
  std::uint64_t chunk_from(std::uint32_t chunk) const { return host_from + chunk * chunk_bytes; }
  std::uint64_t length_of(std::uint32_t chunk) const {
    return chunk + 1 < chunks ? chunk_bytes : bytes - chunk_from(chunk);
  }
  std::uint64_t slot_at(std::uint32_t chunk) const { return chunk % kChunkSlots * chunk_bytes; }
};
/// permille: of the message, rounded down to whole chunks. most_chunk_bytes: a limit besides the
/// slot of a ring.
HostCut cut_host_part(std::uint64_t bytes, std::uint64_t ring_bytes, std::uint32_t permille,
                      std::uint64_t most_chunk_bytes);

/// Memory and wishes of an exchange; the same on both ranks.
struct ExchangeSpace {
  std::uint64_t inbox_bytes = 0;
  std::uint64_t ring_bytes = 0;      ///< host memory of a rank; 0 = no share through the host
  std::uint64_t piece_bytes = 0;     ///< most bytes of the first pieces; 0 = half of the inbox
  std::uint32_t host_permille = 0;   ///< of the message
  int cuts = -1;                     ///< cuts of the last piece; -1 = chosen
  std::uint64_t borrowed_bytes = 0;  ///< memory beside the inbox that may be used once the peer is
                                     ///< in the call
};

struct ExchangePiece {
  std::uint64_t from, bytes;  ///< of the message
  std::uint64_t at;           ///< in the inbox, or in the borrowed memory if `borrowed`
  std::uint32_t after;        ///< leading pieces that must have been handled before
  bool awaited;               ///< a later piece uses this slot
  bool last;                  ///< a piece cut from the last one, or the last of even pieces
  bool borrowed;
};

struct ExchangeCut : HostCut {
  bool is_long = false;               ///< the inbox is that of long exchanges
  std::vector<ExchangePiece> pieces;  ///< up to host_from
  std::uint64_t staging_at = 0;  ///< in the inbox, behind the pieces: space for kChunkSlots chunks
};

/// bytes: of the message, not 0.
ExchangeCut cut_exchange(std::uint64_t bytes, const ExchangeSpace& room);
/// The whole message in chunks through host memory, for ranks without a link. ring_bytes: host
/// memory of a rank, at least kChunkSlots grains of 4096 bytes. chunk_bytes: of a chunk, as far as
/// the memory has room.
HostCut cut_through_host(std::uint64_t bytes, std::uint64_t ring_bytes, std::uint64_t chunk_bytes);

}  // namespace plait::cuda
