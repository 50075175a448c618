// How two ranks cut a message: every byte once, no slot used before it is free, and no enqueued
// step waits for a later step.
#include <doctest/doctest.h>

#include "base/text.hpp"
#include "gpu/copy/exchange_cut.hpp"

namespace plait::cuda {
namespace {

constexpr unsigned long long kMiB = 1ull << 20;

void check_pieces(const ExchangeCut& cut, const ExchangeSpace& room) {
  std::uint64_t covered = 0, too_early = 0;
  std::vector<bool> awaited(cut.pieces.size(), false);
  for (std::size_t i = 0; i < cut.pieces.size(); ++i) {
    const ExchangePiece& piece = cut.pieces[i];
    CHECK(piece.from == covered);
    CHECK(piece.from % 16 == 0);
    CHECK(piece.at % 16 == 0);
    CHECK(piece.bytes > 0);
    CHECK(piece.at + piece.bytes <= (piece.borrowed    ? room.borrowed_bytes
                                     : cut.chunks == 0 ? room.inbox_bytes
                                                       : cut.staging_at));
    CHECK((!piece.borrowed || piece.after > 0));       // the peer is in the call
    CHECK(piece.after < std::max<std::size_t>(i, 1));  // an earlier piece
    covered += piece.bytes;
    if (piece.after != 0) awaited[piece.after - 1] = true;
    for (std::size_t before = 0; before < i; ++before) {
      const ExchangePiece& other = cut.pieces[before];
      if (other.borrowed == piece.borrowed && other.at + other.bytes > piece.at &&
          piece.at + piece.bytes > other.at)
        too_early += before >= piece.after ? 1 : 0;
    }
  }
  CHECK(covered == cut.host_from);
  CHECK(too_early == 0);
  for (std::size_t i = 0; i < cut.pieces.size(); ++i) CHECK(cut.pieces[i].awaited == awaited[i]);
}

void check_chunks(const ExchangeCut& cut, const ExchangeSpace& room, std::uint64_t bytes) {
  CHECK(cut.bytes == bytes);
  CHECK(cut.host_from % 16 == (cut.chunks == 0 ? bytes % 16 : 0));
  CHECK((cut.chunks == 0) == (cut.host_from == bytes));
  if (cut.chunks == 0) return;
  CHECK(cut.host_from + cut.chunks * cut.chunk_bytes >= bytes);
  CHECK(cut.host_from + (cut.chunks - 1) * cut.chunk_bytes < bytes);
  CHECK(bytes - cut.host_from <= bytes / 1000 * room.host_permille);
  CHECK(kChunkSlots * cut.chunk_bytes <= room.ring_bytes);
  CHECK(cut.staging_at + kChunkSlots * cut.chunk_bytes <= room.inbox_bytes);
  CHECK(cut.staging_at % 16 == 0);
}

TEST_CASE("an exchange covers its message once, and no slot is used before it is free") {
  for (const std::uint64_t bytes : {1ull, 16ull, 4096ull, 4097ull, 100000ull, 8 * kMiB + 3,
                                    256 * kMiB, 1024 * kMiB, 1ull << 33})
    for (const std::uint64_t inbox : {16384ull, 4 * kMiB, 128 * kMiB, 144 * kMiB})
      for (const std::uint64_t piece : {0ull, 65536ull, 32 * kMiB})
        for (const std::uint64_t ring : {0ull, 16384ull, 8 * kMiB, 16 * kMiB})
          for (const std::uint32_t permille : {0u, 1u, 90u, 400u, 1000u})
            for (const int cuts : {-1, 0, 1, 30})
              for (const std::uint64_t borrowed : {0ull, 100000ull, 3 * kMiB, 132 * kMiB}) {
                if (bytes / std::min<std::uint64_t>(inbox, std::max<std::uint64_t>(piece, 65536)) >
                    200)
                  continue;
                CAPTURE(
                    text("{} bytes, inbox {}, pieces {}, ring {}, host {}, cuts {}, borrowed {}",
                         bytes, inbox, piece, ring, permille, cuts, borrowed));
                const ExchangeSpace room{inbox, ring, piece, permille, cuts, borrowed};
                const ExchangeCut cut = cut_exchange(bytes, room);
                check_pieces(cut, room);
                check_chunks(cut, room, bytes);
                if (permille == 0 || ring == 0) CHECK(cut.chunks == 0);
              }
}

TEST_CASE("a gigabyte goes in few large pieces, and ends in small ones") {
  const ExchangeCut cut = cut_exchange(1024 * kMiB, {128 * kMiB, 16 * kMiB, 0, 0, -1});
  REQUIRE(cut.pieces.size() == 17);
  CHECK(cut.pieces[0].bytes == 64 * kMiB);
  CHECK(cut.pieces.back().bytes == 16 * kMiB);
  const ExchangeCut shared = cut_exchange(1024 * kMiB, {128 * kMiB, 16 * kMiB, 0, 90, -1});
  CHECK(shared.chunks == 23);
  CHECK(shared.chunk_bytes == 4 * kMiB);
  CHECK(shared.staging_at == 112 * kMiB);
  const ExchangeCut borrowed =
      cut_exchange(1024 * kMiB, {128 * kMiB, 16 * kMiB, 0, 0, -1, 132 * kMiB});
  CHECK(borrowed.pieces.size() == 11);
  CHECK(borrowed.pieces[2].borrowed);
  CHECK(borrowed.pieces[2].bytes > 100 * kMiB);
  CHECK(borrowed.pieces.back().bytes == 16 * kMiB);
}

TEST_CASE("messages up to half an inbox go in equal pieces") {
  const std::vector<std::pair<std::uint64_t, std::size_t>> cases{{1, 1},  {16, 1}, {23, 1},
                                                                 {25, 2}, {32, 2}, {64, 4}};
  for (const auto& [mib, pieces] : cases) {
    CAPTURE(mib);
    const ExchangeCut cut = cut_exchange(mib * kMiB, {128 * kMiB, 16 * kMiB, 0, 0, -1, 132 * kMiB});
    REQUIRE(cut.pieces.size() == pieces);
    for (const ExchangePiece& piece : cut.pieces) {
      CHECK(piece.bytes >= mib * kMiB / pieces - 8192);
      CHECK(piece.bytes <= mib * kMiB / pieces + 8192);
      CHECK(piece.after == 0);  // none waits for room
      CHECK(piece.last == (&piece == &cut.pieces.back()));
    }
  }
}

}  // namespace
}  // namespace plait::cuda
