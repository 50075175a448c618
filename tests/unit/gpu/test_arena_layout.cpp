// Arena layouts: uses share a budget, all ranks get the same, a larger budget never gives less, and
// refusals have a reason.
#include <doctest/doctest.h>

#include "base/env.hpp"
#include "base/text.hpp"
#include "gpu/arena/arena.hpp"
#include "gpu/copy/engine_ring.hpp"
#include "gpu/copy/rotation.hpp"
#include "gpu/engine/group.hpp"
#include "gpu/ll/ll_cut.hpp"
#include "gpu/p2p/messages.hpp"
#include "gpu/tile/tiled_shape.hpp"
#include "plait/error.hpp"

using namespace plait;
using namespace plait::cuda;

TEST_CASE("slots of copy engines that a caller asks for by size hold rotations too") {
  for (const int ranks : {3, 4}) {
    Group group = usual_group(ranks);
    CHECK(group.slot_bytes() == 0);  // rings alone
    group.sizes = {};
    group.sizes.copy_slots_bytes = rotation_slots(ranks) << 20;
    lay_out_arena(group, {});
    CHECK(group.slot_bytes() == 1 << 20);
  }
}

namespace {

constexpr std::uint64_t kMib = 1 << 20;
constexpr std::uint64_t kUsual = kUsualMemoryBytes;

ArenaUse library(int ranks) {
  return {.ranks = ranks,
          .two_tiers = true,
          .pairs = ranks - 1,
          .tiled_blocks = 100,
          .exchanges = ranks == 2,
          .rings = ranks > 2 && ranks <= 8,
          .plans = true};
}

ArenaUse drop_in(int ranks) {
  ArenaUse use{.ranks = ranks,
               .two_tiers = true,
               .floats_only = true,
               .tiled_blocks = 64,
               .exchanges = ranks == 2,
               .rings = ranks > 2 && ranks <= 8};
  if (ranks == 2) {
    const std::uint32_t channels = message_channels(ranks, 132);
    use.message_slot_bytes = message_slot_bytes(ranks, channels);
    use.message_packet_bytes = message_packet_bytes(ranks, channels);
  }
  return use;
}

ArenaUse pair() {
  ArenaUse use = library(2);
  use.moves_only = true;
  use.pairs = 0;
  return use;
}

std::uint64_t bytes_of(const DeviceArenaSizes& sizes, bool has_header) {
  return ArenaLayout(sizes, has_header ? sizeof(ArenaHeader) : 0).total_bytes();
}

std::uint64_t bytes_of(const ArenaTiers& tiers, const ArenaUse& use) {
  return bytes_of(tiers.small, true) + (use.two_tiers ? bytes_of(tiers.large, false) : 0) +
         static_cast<std::uint64_t>(use.pairs) * tiers.pair_bytes;
}

std::vector<ArenaPart> parts_of(const std::vector<LackingPart>& lacking) {
  std::vector<ArenaPart> parts;
  for (const LackingPart& lack : lacking) parts.push_back(lack.part);
  return parts;
}

/// Every use by 2, 3, 4, 8 and 16 ranks, at once and in two rooms.
std::vector<ArenaUse> uses() {
  std::vector<ArenaUse> all{pair(), pair()};
  all.back().two_tiers = false;
  for (const int ranks : {2, 3, 4, 8, 16})
    for (ArenaUse use : {library(ranks), drop_in(ranks)})
      for (const bool two_tiers : {true, false}) {
        use.two_tiers = two_tiers;
        all.push_back(use);
      }
  return all;
}

std::string text_of(const ArenaUse& use, std::uint64_t budget) {
  return text(use.ranks, " ranks, ", use.floats_only ? "drop-in" : "library",
              use.moves_only ? ", pair" : "", use.two_tiers ? ", grows" : "", ", ",
              byte_count_text(budget));
}

}  // namespace

TEST_CASE("both arenas and all pairs fit every budget, or the budget is refused as too small") {
  int refused = 0, taken = 0;
  for (const ArenaUse& use : uses())
    for (std::uint64_t budget = kMib; budget < 4096 * kMib; budget += budget / 7 + 12345) {
      CAPTURE(text_of(use, budget));
      try {
        const ArenaTiers tiers = lay_out(use, budget);
        CHECK(bytes_of(tiers, use) <= budget);
        CHECK(tiers.small.sentinel_bytes > 0);
        CHECK(tiers.small.flag_bytes > 0);
        ++taken;
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::invalid_argument);
        CHECK(std::string(error.what()).find("PLAIT_DEVICE_MEMORY") != std::string::npos);
        CHECK(budget < 30 * kMib);
        ++refused;
      }
    }
  CHECK(refused > 20);
  CHECK(taken > 500);
}

TEST_CASE("a larger budget makes no part smaller, except by a step or for a further part") {
  for (const ArenaUse& use : uses()) {
    ArenaTiers before = lay_out(use, 32 * kMib);
    for (std::uint64_t budget = 48 * kMib; budget <= 2048 * kMib; budget += budget / 2) {
      const ArenaTiers tiers = lay_out(use, budget);
      CAPTURE(text_of(use, budget));
      CHECK(tiers.lacking.size() <= before.lacking.size());
      const bool is_alike = parts_of(tiers.lacking) == parts_of(before.lacking) &&
                            tiers.pair_bytes == before.pair_bytes;
      CHECK(tiers.pair_bytes >= before.pair_bytes);
      for (const ArenaPartInfo& info : arena_parts()) {
        CAPTURE(info.name);
        const std::uint64_t had = before.small.of(info.part) + before.large.of(info.part);
        const std::uint64_t has = tiers.small.of(info.part) + tiers.large.of(info.part);
        // A further use takes memory from earlier uses; the rest after steps goes to the first use.
        CHECK((has + 16 * kMib >= had || !is_alike));
      }
      before = tiers;
    }
  }
}

TEST_CASE(
    "unless another one is asked for: 192 MB for 2 ranks, of which they take 24 at first, and 256 "
    "for 4 and 8") {
  for (const int ranks : {2, 4, 8})
    for (const ArenaUse& use : {library(ranks), drop_in(ranks)}) {
      const ArenaTiers tiers = lay_out(use, usual_memory_bytes(ranks));
      CAPTURE(text_of(use, usual_memory_bytes(ranks)));
      CHECK(bytes_of(tiers, use) <= (ranks == 2 ? 192000000 : 256000000));
      CHECK(tiers.lacking.empty());
      CHECK(bytes_of(tiers.small, true) <= (ranks == 2 ? 24000000 : 32000000));
      const std::uint64_t slot = tiers.large.tile_bytes / tile_slots(ranks, use.tiled_blocks);
      CHECK(slot >= (ranks == 8 ? 28 : 40) * 1024);
    }
  const ArenaTiers two = lay_out(drop_in(2), kUsual);
  CHECK(10 * bytes_of(two.small, true) <= 300000000);  // ten communicators of small messages
  // An exchange borrows tiles' slots if these are larger than half of the exchange's slots.
  CHECK(two.large.tile_bytes > two.large.copy_slots_bytes / 2);
}

TEST_CASE(
    "pairs serve under every budget that is enough for calls, and no budget leaves out a part") {
  for (const int ranks : {2, 3, 4, 8, 16}) {
    ArenaUse use = library(ranks);
    for (std::uint64_t budget = 48 * kMib; budget <= 2048 * kMib; budget += 5 * kMib) {
      const ArenaTiers tiers = lay_out(use, budget);
      CAPTURE(text_of(use, budget));
      REQUIRE(tiers.pair_bytes >= kArenaGrainBytes);
      ArenaUse two = pair();
      two.two_tiers = tiers.pair_bytes > kSmallPairBytes;
      two.plans = two.two_tiers;
      const ArenaTiers of_pair = lay_out(two, tiers.pair_bytes);
      CHECK(bytes_of(of_pair, two) <= tiers.pair_bytes);
      const std::uint64_t half_bytes = of_pair.small.sentinel_bytes,
                          slots = of_pair.large.copy_slots_bytes;
      CHECK(half_bytes >= 700 * 1024);
      if (tiers.pair_bytes >= kSmallPairBytes) CHECK(half_bytes == 1600 * 1024);
      CHECK((slots >= 24 * kMib) == (tiers.pair_bytes > kSmallPairBytes));
      CHECK(of_pair.lacking.size() == (two.two_tiers ? 0 : 1));
    }
    use.pairs = 0;
    CHECK(lay_out(use, kUsual).lacking.size() == lay_out(library(ranks), kUsual).lacking.size());
  }
  CHECK(lay_out(library(2), kUsual).pair_bytes == 32 * kMib);
  CHECK(lay_out(library(4), kUsual).pair_bytes == 4 * kMib);
  CHECK(lay_out(library(8), kUsual).pair_bytes == 4 * kMib);
  CHECK(lay_out(library(8), 640 * kMib).pair_bytes == 32 * kMib);
  // Without memory left, pairs have none, and small calls still work.
  CHECK(lay_out(library(8), 8 * kMib).pair_bytes == 0);
  CHECK(lay_out(pair(), 4 * kMib).why_not(ArenaPart::copies, "it") ==
        "it wants 17 MB of slots of copy engines; a pair's part of PLAIT_DEVICE_MEMORY, 4M leaves "
        "1 MB");
}

TEST_CASE("the environment's default is the usual budget") {
  CHECK(Env{}.device_memory == kUsual);
  CHECK(kUsual <= 192000000);
}

TEST_CASE(
    "small messages need no large arena: LL all_reduces take three times the message at most") {
  for (const int ranks : {2, 3, 4, 8}) {
    const ArenaTiers tiers = lay_out(drop_in(ranks), kUsual);
    const std::uint64_t units = small_request_bytes(ranks, true) / 16,
                        half_bytes = tiers.small.sentinel_bytes;
    CAPTURE(ranks);
    CHECK(holds_packets(3 * half_bytes / kSentinelPacketBytes, units, ranks, false));
    CHECK(cut_direct_ll(units / static_cast<unsigned>(ranks), ranks, half_bytes).pieces <= 3);
    CHECK(tiers.large.sentinel_bytes > half_bytes);
  }
  for (const int ranks : {2, 3, 4, 8})
    for (const ArenaUse& use : {drop_in(ranks), library(ranks)}) {
      const std::uint64_t half_bytes = lay_out(use, kUsual).small.sentinel_bytes;
      CHECK(cut_direct_ll(small_request_bytes(ranks, false) / 16, ranks, half_bytes).pieces == 1);
    }
  const std::uint64_t half_bytes = lay_out(drop_in(2), kUsual).small.sentinel_bytes;
  CHECK(
      holds_packets(half_bytes / kSentinelPacketBytes, small_request_bytes(2, true) / 16, 2, true));
}

TEST_CASE("with enough memory each part has its useful size") {
  for (const int ranks : {2, 3, 4, 8, 16}) {
    const ArenaTiers tiers = lay_out(library(ranks), 64 * 1024 * kMib);
    CAPTURE(ranks);
    CHECK(tiers.large.sentinel_bytes == (ranks == 2 ? 64 : ranks <= 4 ? 96 : 40) * kMib);
    CHECK(tiers.large.tile_bytes == tile_slots(ranks, 100) * (ranks == 2   ? 4 * 64
                                                              : ranks <= 4 ? 48
                                                                           : 64)
                                        << 10);
    CHECK(tiers.large.scratch_bytes == 64 * kMib);
    CHECK(tiers.large.inbox_bytes == 16 * kMib);
    if (ranks == 2) CHECK(tiers.large.copy_slots_bytes == 128 * kMib);
    if (ranks == 4) CHECK(tiers.large.copy_slots_bytes == kRingSlots * 18 * kMib);
    if (ranks == 8) CHECK(tiers.large.copy_slots_bytes == kRingSlots * 9 * kMib);
    if (ranks == 4 || ranks == 8)
      CHECK(tiers.large.copy_slots_bytes + tiers.large.tile_bytes >= kRingSlots * kRingPieceBytes);
    if (ranks == 16) CHECK(tiers.large.copy_slots_bytes == 0);
  }
}

TEST_CASE("a refused part names its need and the memory left") {
  const ArenaTiers tiers = lay_out(drop_in(4), 24 * kMib);
  CHECK(tiers.large.tile_bytes == 0);
  const std::string why = tiers.why_not(ArenaPart::tiles, "tiled");
  CAPTURE(why);
  CHECK(why.starts_with("tiled wants 13 MB of slots of tiles; PLAIT_DEVICE_MEMORY=24M leaves "));
  CHECK(tiers.why_not(ArenaPart::sentinel, "direct_ll").empty());
  CHECK(lay_out(drop_in(4), kUsual).why_not(ArenaPart::tiles, "tiled").empty());
  CHECK_THROWS_WITH_AS(lay_out(drop_in(4), 2 * kMib),
                       doctest::Contains("for LL packets of 4 ranks"), Error);
  CHECK(byte_count_text(64 * kMib) == "64M");
  CHECK(byte_count_text(1536 * 1024) == "1536K");
  CHECK(byte_count_text(192000000) == "187500K");
}

TEST_CASE("scratch requested by name comes in full, before parts of large calls") {
  ArenaUse use = library(2);
  use.plan_scratch = 100 * kMib;
  CHECK(lay_out(use, kUsual).large.scratch_bytes == 100 * kMib);
  CHECK(lay_out(use, 64 * kMib).large.scratch_bytes == 0);
  CHECK(lay_out(use, 64 * kMib).why_not(ArenaPart::scratch, "a plan").find("105 MB") !=
        std::string::npos);
}

TEST_CASE("parts lie in order on page boundaries without overlap") {
  for (const ArenaUse& use : uses()) {
    const ArenaTiers tiers = lay_out(use, 2 * kUsual);
    for (const DeviceArenaSizes& sizes : {tiers.small, tiers.large}) {
      const ArenaLayout layout(sizes, sizeof(ArenaHeader));
      std::uint64_t end = sizeof(ArenaHeader);
      for (const ArenaPartInfo& info : arena_parts()) {
        CHECK(layout.at(info.part) >= end);
        CHECK(layout.at(info.part) % 4096 == 0);
        CHECK(layout.bytes_of(info.part) >= info.halves * sizes.of(info.part));
        end = layout.at(info.part) + info.halves * sizes.of(info.part);
      }
      CHECK(layout.total_bytes() >= end);
      CHECK(layout.total_bytes() % kArenaGrainBytes == 0);
    }
  }
}

TEST_CASE("tiled calls keep to the blocks that have slots") {
  Request request;
  request.collective = Collective::all_reduce;
  request.type = DataType::fp32;
  request.count = 64 * kMib / 4;
  request.ranks = 2;
  TiledArgs shape = tiled_shape(request, 0);
  shape.ranks = 2;
  TileWish wish;
  wish.slot_blocks = 64;
  wish.slot_memory_bytes = tile_slots(2, 64) * 32 << 10;
  CHECK(spread_tiles(shape, wish) == 64);
  CHECK(shape.slot_bytes == 64 << 10);  // two of them
}
