// Units, ranks and room -> pieces of a call by lines: what each piece needs is there.
#include <doctest/doctest.h>

#include <vector>

#include "exec/cuda/lines/line_cut.hpp"
#include "exec/cuda/lines/line_spread.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

void check_cut(std::uint64_t units, int ranks, bool is_one_shot, std::uint64_t room) {
  CAPTURE(units);
  CAPTURE(ranks);
  CAPTURE(is_one_shot);
  CAPTURE(room);
  const LineCut cut = cut_lines(units, ranks, is_one_shot, room);
  REQUIRE(cut.pieces != 0);
  CHECK(cut.units % (is_one_shot ? 1 : static_cast<std::uint64_t>(ranks)) == 0);
  CHECK(cut.units * cut.pieces >= units);
  CHECK(lines_for(std::min(units, cut.units), ranks, is_one_shot) <= room);
  // No piece too many, and none without a unit.
  if (cut.pieces == 1) return;
  CHECK(cut.units * (cut.pieces - 1) < units);
  CHECK(lines_for(units, ranks, is_one_shot) > room);
}

}  // namespace

TEST_CASE("every piece's lines fit into half an inbox, at every boundary") {
  constexpr std::uint64_t kRooms[] = {(4ull << 20) / kFlaggedLineBytes,
                                      (64ull << 20) / kBareLineBytes,
                                      (96ull << 20) / kBareLineBytes, 1000, 97};
  for (int ranks = 2; ranks <= 16; ++ranks)
    for (const bool is_one_shot : {false, true})
      for (const std::uint64_t room : kRooms)
        for (std::uint64_t pieces = 1; pieces <= 4; ++pieces) {
          // About the most that goes in so many pieces.
          const auto n = static_cast<std::uint64_t>(ranks);
          const std::uint64_t most = pieces * room / (n - 1) * (is_one_shot ? 2 : n) / 2;
          const std::uint64_t around = 3 * n * pieces;
          for (std::uint64_t units = most > around ? most - around : 1; units <= most + around;
               ++units)
            check_cut(units, ranks, is_one_shot, room);
        }
}

TEST_CASE("lines of four ranks: 4 MiB of integers take four pieces, 64 MiB of floats one") {
  const std::uint64_t flagged = (4ull << 20) / kFlaggedLineBytes;
  const std::uint64_t bare = (96ull << 20) / kBareLineBytes;
  CHECK(cut_lines((4ull << 20) / 16, 4, false, flagged).pieces == 4);
  CHECK(cut_lines((64ull << 20) / 16, 4, false, bare).pieces == 1);
  CHECK(cut_lines((64ull << 20) / 16 + 1, 4, false, bare).pieces == 2);
}

TEST_CASE("one rank needs no lines; an inbox smaller than a line holds no piece") {
  CHECK(cut_lines(1 << 30, 1, false, 0).pieces == 1);
  CHECK(cut_lines(1, 2, false, 1).pieces == 0);
  CHECK(cut_lines(1, 3, true, 1).pieces == 0);
}

TEST_CASE("a hop's lines, the words beside them and its greetings fit into half an inbox") {
  for (const int ranks : {2, 3, 8, 16})
    for (const std::uint64_t half : {4096ull, 100'001ull, 24ull << 20, 64ull << 20})
      for (std::uint64_t units = 1; units <= 1 << 23; units = units * 3 / 2 + 1) {
        const LineCut cut = cut_hop(units, ranks, half);
        CAPTURE(ranks);
        CAPTURE(half);
        CAPTURE(units);
        REQUIRE(cut.pieces != 0);
        CHECK(cut.units * cut.pieces >= units);
        CHECK((cut.pieces == 1 || cut.units * (cut.pieces - 1) < units));
        const std::uint64_t lines = static_cast<std::uint64_t>(ranks - 1) * (cut.units + 1);
        CHECK(lines * (kBareLineBytes + kBesideLineBytes) <= half);
      }
  CHECK(cut_hop(16, 2, 47).pieces == 0);  // a greeting alone
  CHECK(cut_hop(16, 1, 0).pieces == 1);
}

TEST_CASE("no piece has more lines than kernels count") {
  constexpr std::uint64_t kHuge = 1ull << 50;
  for (int ranks = 1; ranks <= 16; ++ranks)
    for (const std::uint64_t units : {1ull, (1ull << 31) - 1, 1ull << 31, (1ull << 33) + 5}) {
      CAPTURE(ranks);
      CAPTURE(units);
      for (const bool is_one_shot : {false, true}) {
        const LineCut cut = cut_lines(units, ranks, is_one_shot, kHuge);
        CHECK(cut.units * cut.pieces >= units);
        CHECK(cut.units <= kMostLines);
        CHECK(lines_for(cut.units, ranks, is_one_shot) <= kMostLines);
      }
      const LineCut hop = cut_hop(units, ranks, kHuge);
      CHECK(hop.units * hop.pieces >= units);
      CHECK(static_cast<std::uint64_t>(std::max(1, ranks - 1)) * (hop.units + 1) <= kMostLines);
    }
}

TEST_CASE("short hops are those with a thread for each unit, of ranks that there is a kernel for") {
  Request request;
  request.collective = Collective::all_gather;
  request.ranks = 8;
  CHECK(is_short_hop(request, {1, 1024}, {.blocks = 8, .threads = 128}));
  CHECK_FALSE(is_short_hop(request, {1, 1025}, {.blocks = 8, .threads = 128}));
  CHECK_FALSE(is_short_hop(request, {2, 1024}, {.blocks = 8, .threads = 128}));
  CHECK_FALSE(is_short_hop(request, {1, 1024}, {.blocks = 2, .threads = 512}));
  request.ranks = 9;
  CHECK_FALSE(is_short_hop(request, {1, 1024}, {.blocks = 8, .threads = 128}));
  for (const ShortHopUnits& most : kShortHopUnits) {
    request.ranks = most.ranks;
    request.type = DataType::bf16;
    for (const Collective collective : {Collective::all_gather, Collective::reduce_scatter}) {
      request.collective = collective;
      const std::uint64_t units = reduces(collective) ? most.sums : most.moves;
      CHECK(is_short_hop(request, {1, units}, {.blocks = 129, .threads = 256}));
      CHECK_FALSE(is_short_hop(request, {1, units + 1}, {.blocks = 129, .threads = 256}));
    }
  }
  request.ranks = 3;  // as four
  CHECK(is_short_hop(request, {1, 32768}, {.blocks = 128, .threads = 256}));
  request.ranks = 8;
  request.type = DataType::int32;
  CHECK_FALSE(is_short_hop(request, {1, 1024}, {.blocks = 8, .threads = 128}));
  request.ranks = 4;
  CHECK(is_short_hop(request, {1, 1024}, {.blocks = 8, .threads = 128}));
}

TEST_CASE("a short hop in place stores nothing where a part stays") {
  Request request;
  request.collective = Collective::broadcast;
  request.ranks = 3;
  request.root = 1;
  request.count = 64;
  char buffer[2][256] = {};
  HopArgs call{};
  call.rank = request.root;
  call.ranks = request.ranks;
  call.shape = hop_shape(request, call.rank);
  call.input = buffer[0];
  call.output = buffer[1];
  CHECK(short_hop_args(call).gives_to == 0b111);
  call.output = buffer[0];
  CHECK(short_hop_args(call).gives_to == 0b011);
}

TEST_CASE("a short hop is made ready without buffers, and goes by those of each call") {
  constexpr int kRanks = 4;
  const std::uint64_t bytes = 256;
  std::vector<char> memory(4 * kRanks * bytes);
  char* const input = memory.data();
  char* const output = input + 2 * kRanks * bytes;
  for (const Collective collective :
       {Collective::all_gather, Collective::all_to_all, Collective::broadcast})
    for (int rank = 0; rank < kRanks; ++rank) {
      CAPTURE(name_of(collective));
      CAPTURE(rank);
      Request request;
      request.collective = collective;
      request.ranks = kRanks;
      request.type = DataType::uint8;
      request.count = bytes;
      HopArgs call{};
      call.rank = rank;
      call.ranks = kRanks;
      call.shape = hop_shape(request, rank);
      ShortHopArgs ready = short_hop_args(call);  // as an engine makes it, before any call
      const std::uint32_t own = call.shape.own_bytes != 0 ? 1u << (kRanks - 1) : 0;
      for (const bool stays : {false, true, false}) {
        char* const from = output + call.shape.own_to - call.shape.own_from;
        set_buffers(ready, stays ? from : input, output);
        CHECK((ready.gives_to & 1u << (kRanks - 1)) == (stays ? 0 : own));
      }
    }
}
