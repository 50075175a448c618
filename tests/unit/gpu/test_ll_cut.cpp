// LL packets and pieces of calls, by units, ranks and memory: each piece has enough memory.
#include <doctest/doctest.h>

#include <vector>

#include "gpu/ll/ll_cut.hpp"
#include "gpu/ll/ll_launch_config.hpp"

using namespace plait;
using namespace plait::cuda;

TEST_CASE("half an inbox holds a message whose LL packets fit, at every boundary") {
  constexpr std::uint64_t kRooms[] = {(4ull << 20) / kFlagPacketBytes,
                                      (64ull << 20) / kSentinelPacketBytes,
                                      (96ull << 20) / kSentinelPacketBytes, 1000, 97};
  for (int ranks = 2; ranks <= 16; ++ranks)
    for (const bool is_one_shot : {false, true})
      for (const std::uint64_t room : kRooms) {
        const auto n = static_cast<std::uint64_t>(ranks);
        // Packets of all peers: whole messages in one_shot; a shard and results in two_shot.
        const std::uint64_t most =
            is_one_shot ? room / (n - 1) : room / (n - 1) / 2 * n;  // whole packets of all ranks
        CAPTURE(ranks);
        CAPTURE(room);
        CHECK(holds_packets(room, most, ranks, is_one_shot));
        CHECK_FALSE(holds_packets(room, most + 1, ranks, is_one_shot));
      }
  CHECK(holds_packets((96ull << 20) / kSentinelPacketBytes, (64ull << 20) / 16, 4, false));
  CHECK(holds_packets(0, 1 << 30, 1, false));  // a single rank needs no packets
  CHECK_FALSE(holds_packets(1, 1, 2, false));
  CHECK_FALSE(holds_packets(1ull << 50, kMostPackets + 1, 1, false));
}

TEST_CASE("slots of a two_shot that reuses packets hold the steps in flight") {
  for (int ranks = 2; ranks <= 16; ++ranks)
    for (int ahead = 0; ahead <= kMostShotAhead; ++ahead)
      for (const std::uint64_t packet : {kSentinelPacketBytes, kFlagPacketBytes})
        for (const std::uint64_t room : {4096ull, 100'001ull, 16ull << 20, 1ull << 40}) {
          const std::uint64_t units = most_shot_units(room, packet, ranks, ahead);
          const auto packets = [&](std::uint64_t of_step) {
            return 2 * static_cast<std::uint64_t>(ranks - 1) * of_step *
                   static_cast<std::uint64_t>(shot_ring(ahead)) * packet;
          };
          CHECK(packets(units) <= std::min(room, kCachedPacketBytes));
          CHECK(packets(units + 1) > std::min(room, kCachedPacketBytes));
        }
}

TEST_CASE("direct_ll: packets, escape words and greetings fit into half an inbox") {
  for (const int ranks : {2, 3, 8, 16})
    for (const std::uint64_t half : {4096ull, 100'001ull, 24ull << 20, 64ull << 20})
      for (std::uint64_t units = 1; units <= 1 << 23; units = units * 3 / 2 + 1) {
        const LlCut cut = cut_direct_ll(units, ranks, half);
        CAPTURE(ranks);
        CAPTURE(half);
        CAPTURE(units);
        REQUIRE(cut.pieces != 0);
        CHECK(cut.units * cut.pieces >= units);
        CHECK((cut.pieces == 1 || cut.units * (cut.pieces - 1) < units));
        const std::uint64_t packets = static_cast<std::uint64_t>(ranks - 1) * (cut.units + 1);
        CHECK(packets * (kSentinelPacketBytes + kEscapeFlagBytes) <= half);
      }
  CHECK(cut_direct_ll(16, 2, 47).pieces == 0);  // only a greeting
  CHECK(cut_direct_ll(16, 1, 0).pieces == 1);
}

TEST_CASE("no piece has more lines than kernels count") {
  constexpr std::uint64_t kHuge = 1ull << 50;
  for (int ranks = 1; ranks <= 16; ++ranks)
    for (const std::uint64_t units : {1ull, (1ull << 31) - 1, 1ull << 31, (1ull << 33) + 5}) {
      CAPTURE(ranks);
      CAPTURE(units);
      const LlCut direct_ll = cut_direct_ll(units, ranks, kHuge);
      CHECK(direct_ll.units * direct_ll.pieces >= units);
      CHECK(static_cast<std::uint64_t>(std::max(1, ranks - 1)) * (direct_ll.units + 1) <=
            kMostPackets);
    }
}

TEST_CASE(
    "short direct_ll calls have a thread for each unit, and a kernel for the number of ranks") {
  Request request;
  request.collective = Collective::all_gather;
  request.ranks = 8;
  CHECK(is_short_direct_ll(request, {1, 1024}, {.blocks = 8, .threads = 128}));
  CHECK_FALSE(is_short_direct_ll(request, {1, 1025}, {.blocks = 8, .threads = 128}));
  CHECK_FALSE(is_short_direct_ll(request, {2, 1024}, {.blocks = 8, .threads = 128}));
  CHECK_FALSE(is_short_direct_ll(request, {1, 1024}, {.blocks = 2, .threads = 512}));
  request.ranks = 9;
  CHECK_FALSE(is_short_direct_ll(request, {1, 1024}, {.blocks = 8, .threads = 128}));
  for (const ShortDirectLlUnits& most : kShortDirectLlUnits) {
    request.ranks = most.ranks;
    request.type = DataType::bf16;
    for (const Collective collective : {Collective::all_gather, Collective::reduce_scatter}) {
      request.collective = collective;
      const std::uint64_t units = reduces(collective) ? most.sums : most.moves;
      CHECK(is_short_direct_ll(request, {1, units}, {.blocks = 129, .threads = 256}));
      CHECK_FALSE(is_short_direct_ll(request, {1, units + 1}, {.blocks = 129, .threads = 256}));
    }
  }
  request.ranks = 3;  // as four
  CHECK(is_short_direct_ll(request, {1, 32768}, {.blocks = 128, .threads = 256}));
  request.ranks = 8;
  request.type = DataType::int32;
  CHECK_FALSE(is_short_direct_ll(request, {1, 1024}, {.blocks = 8, .threads = 128}));
  request.ranks = 4;
  CHECK(is_short_direct_ll(request, {1, 1024}, {.blocks = 8, .threads = 128}));
}

TEST_CASE("a short direct_ll call in place does not store a part that stays") {
  Request request;
  request.collective = Collective::broadcast;
  request.ranks = 3;
  request.root = 1;
  request.count = 64;
  char buffer[2][256] = {};
  DirectLlArgs call{};
  call.rank = request.root;
  call.ranks = request.ranks;
  call.shape = direct_shape(request, call.rank);
  call.input = buffer[0];
  call.output = buffer[1];
  CHECK(short_direct_ll_args(call).gives_to == 0b111);
  call.output = buffer[0];
  CHECK(short_direct_ll_args(call).gives_to == 0b011);
}

TEST_CASE("a short direct_ll call is prepared without buffers, and uses the buffers of each call") {
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
      DirectLlArgs call{};
      call.rank = rank;
      call.ranks = kRanks;
      call.shape = direct_shape(request, rank);
      ShortDirectLlArgs ready = short_direct_ll_args(call);  // in an engine's form, before any call
      const std::uint32_t own = call.shape.own_bytes != 0 ? 1u << (kRanks - 1) : 0;
      for (const bool stays : {false, true, false}) {
        char* const from = output + call.shape.own_to - call.shape.own_from;
        set_buffers(ready, stays ? from : input, output);
        CHECK((ready.gives_to & 1u << (kRanks - 1)) == (stays ? 0 : own));
      }
    }
}
