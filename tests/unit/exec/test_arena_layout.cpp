// One budget, shared out by name: within it, the same for everybody, never less for more, and with
// words for what is left out.
#include <doctest/doctest.h>

#include "base/env.hpp"
#include "base/text.hpp"
#include "exec/cuda/copies/engine_ring.hpp"
#include "exec/cuda/copies/rotation.hpp"
#include "exec/cuda/device/arena.hpp"
#include "exec/cuda/group.hpp"
#include "exec/cuda/lines/line_cut.hpp"
#include "exec/cuda/messages/messages.hpp"
#include "exec/cuda/traffic/tiled_shape.hpp"
#include "plait/error.hpp"

using namespace plait;
using namespace plait::cuda;

TEST_CASE("slots of copy engines that a caller asks for by size hold rotations too") {
  for (const int ranks : {3, 4}) {
    Group group = usual_group(ranks);
    CHECK(group.slot_bytes() == 0);  // rings alone
    group.sizes = {};
    group.sizes.copy_slots_bytes = rotation_slots(ranks) << 20;
    make_room(group, {});
    CHECK(group.slot_bytes() == 1 << 20);
  }
}

namespace {

constexpr std::uint64_t kMib = 1 << 20;
constexpr std::uint64_t kUsual = kUsualMemoryBytes;

ArenaUse library(int ranks) {
  return {.ranks = ranks,
          .grows = true,
          .pairs = ranks - 1,
          .tiled_blocks = 100,
          .exchanges = ranks == 2,
          .rings = ranks > 2 && ranks <= 8,
          .plans = true};
}

ArenaUse drop_in(int ranks) {
  ArenaUse use{.ranks = ranks,
               .grows = true,
               .floats_only = true,
               .tiled_blocks = 64,
               .exchanges = ranks == 2,
               .rings = ranks > 2 && ranks <= 8};
  if (ranks == 2) {
    const std::uint32_t channels = message_channels(ranks, 132);
    use.message_slot_bytes = message_slot_bytes(ranks, channels);
    use.message_line_bytes = message_line_bytes(ranks, channels);
  }
  return use;
}

ArenaUse pair() {
  ArenaUse use = library(2);
  use.moves_only = true;
  use.pairs = 0;
  return use;
}

std::uint64_t bytes_of(const DeviceArenaSizes& sizes, bool has_words) {
  return ArenaLayout(sizes, has_words ? sizeof(ArenaWords) : 0).total_bytes();
}

std::uint64_t bytes_of(const ArenaRooms& rooms, const ArenaUse& use) {
  return bytes_of(rooms.first, true) + (use.grows ? bytes_of(rooms.later, false) : 0) +
         static_cast<std::uint64_t>(use.pairs) * rooms.pair_bytes;
}

std::vector<ArenaPart> parts_of(const std::vector<LackingPart>& lacking) {
  std::vector<ArenaPart> parts;
  for (const LackingPart& lack : lacking) parts.push_back(lack.part);
  return parts;
}

/// Every use by 2, 3, 4, 8 and 16 ranks, at once and in two rooms.
std::vector<ArenaUse> uses() {
  std::vector<ArenaUse> all{pair(), pair()};
  all.back().grows = false;
  for (const int ranks : {2, 3, 4, 8, 16})
    for (ArenaUse use : {library(ranks), drop_in(ranks)})
      for (const bool grows : {true, false}) {
        use.grows = grows;
        all.push_back(use);
      }
  return all;
}

std::string text_of(const ArenaUse& use, std::uint64_t budget) {
  return text(use.ranks, " ranks, ", use.floats_only ? "drop-in" : "library",
              use.moves_only ? ", pair" : "", use.grows ? ", grows" : "", ", ",
              byte_count_text(budget));
}

}  // namespace

TEST_CASE("both rooms and all pairs keep within every budget, or it is refused as too small") {
  int refused = 0, taken = 0;
  for (const ArenaUse& use : uses())
    for (std::uint64_t budget = kMib; budget < 4096 * kMib; budget += budget / 7 + 12345) {
      CAPTURE(text_of(use, budget));
      try {
        const ArenaRooms rooms = lay_out(use, budget);
        CHECK(bytes_of(rooms, use) <= budget);
        CHECK(rooms.first.bare_bytes > 0);
        CHECK(rooms.first.flagged_bytes > 0);
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

TEST_CASE("a larger budget makes no part smaller, but by a step or for one more") {
  for (const ArenaUse& use : uses()) {
    ArenaRooms before = lay_out(use, 32 * kMib);
    for (std::uint64_t budget = 48 * kMib; budget <= 2048 * kMib; budget += budget / 2) {
      const ArenaRooms rooms = lay_out(use, budget);
      CAPTURE(text_of(use, budget));
      CHECK(rooms.lacking.size() <= before.lacking.size());
      const bool is_alike = parts_of(rooms.lacking) == parts_of(before.lacking) &&
                            rooms.pair_bytes == before.pair_bytes;
      CHECK(rooms.pair_bytes >= before.pair_bytes);
      for (const ArenaPartInfo& info : arena_parts()) {
        CAPTURE(info.name);
        const std::uint64_t had = before.first.of(info.part) + before.later.of(info.part);
        const std::uint64_t has = rooms.first.of(info.part) + rooms.later.of(info.part);
        // What comes in takes of the others, and what steps leave over goes to the first.
        CHECK((has + 16 * kMib >= had || !is_alike));
      }
      before = rooms;
    }
  }
}

TEST_CASE(
    "unless another one is asked for: 192 MB for 2 ranks, of which they take 24 at first, and 256 "
    "for 4 and 8") {
  for (const int ranks : {2, 4, 8})
    for (const ArenaUse& use : {library(ranks), drop_in(ranks)}) {
      const ArenaRooms rooms = lay_out(use, usual_memory_bytes(ranks));
      CAPTURE(text_of(use, usual_memory_bytes(ranks)));
      CHECK(bytes_of(rooms, use) <= (ranks == 2 ? 192000000 : 256000000));
      CHECK(rooms.lacking.empty());
      CHECK(bytes_of(rooms.first, true) <= (ranks == 2 ? 24000000 : 32000000));
      const std::uint64_t slot = rooms.later.tile_bytes / tile_slots(ranks, use.tiled_blocks);
      CHECK(slot >= (ranks == 8 ? 28 : 40) * 1024);
    }
  const ArenaRooms two = lay_out(drop_in(2), kUsual);
  CHECK(10 * bytes_of(two.first, true) <= 300000000);  // ten communicators of small messages
  // An exchange borrows tiles' slots where they are larger than half of its own.
  CHECK(two.later.tile_bytes > two.later.copy_slots_bytes / 2);
}

TEST_CASE("pairs serve under every budget that reaches for calls, and none leaves out a part") {
  for (const int ranks : {2, 3, 4, 8, 16}) {
    ArenaUse use = library(ranks);
    for (std::uint64_t budget = 48 * kMib; budget <= 2048 * kMib; budget += 5 * kMib) {
      const ArenaRooms rooms = lay_out(use, budget);
      CAPTURE(text_of(use, budget));
      REQUIRE(rooms.pair_bytes >= kArenaGrainBytes);
      ArenaUse two = pair();
      two.grows = rooms.pair_bytes > kSmallPairBytes;
      two.plans = two.grows;
      const ArenaRooms of_pair = lay_out(two, rooms.pair_bytes);
      CHECK(bytes_of(of_pair, two) <= rooms.pair_bytes);
      const std::uint64_t bare = of_pair.first.bare_bytes, slots = of_pair.later.copy_slots_bytes;
      CHECK(bare >= 700 * 1024);
      if (rooms.pair_bytes >= kSmallPairBytes) CHECK(bare == 1600 * 1024);
      CHECK((slots >= 24 * kMib) == (rooms.pair_bytes > kSmallPairBytes));
      CHECK(of_pair.lacking.size() == (two.grows ? 0 : 1));
    }
    use.pairs = 0;
    CHECK(lay_out(use, kUsual).lacking.size() == lay_out(library(ranks), kUsual).lacking.size());
  }
  CHECK(lay_out(library(2), kUsual).pair_bytes == 32 * kMib);
  CHECK(lay_out(library(4), kUsual).pair_bytes == 4 * kMib);
  CHECK(lay_out(library(8), kUsual).pair_bytes == 4 * kMib);
  CHECK(lay_out(library(8), 640 * kMib).pair_bytes == 32 * kMib);
  // Where nothing is left they have none, and small calls go on.
  CHECK(lay_out(library(8), 8 * kMib).pair_bytes == 0);
  CHECK(lay_out(pair(), 4 * kMib).why_not(ArenaPart::copies, "it") ==
        "it wants 17 MB of slots of copy engines; a pair's part of PLAIT_DEVICE_MEMORY, 4M leaves "
        "1 MB");
}

TEST_CASE("the environment's fallback is what is usual") {
  CHECK(Env{}.device_memory == kUsual);
  CHECK(kUsual <= 192000000);
}

TEST_CASE("what is small needs no later room: all_reduces by lines want three times it at most") {
  for (const int ranks : {2, 3, 4, 8}) {
    const ArenaRooms rooms = lay_out(drop_in(ranks), kUsual);
    const std::uint64_t units = small_request_bytes(ranks, true) / 16,
                        bare = rooms.first.bare_bytes;
    CAPTURE(ranks);
    CHECK(holds_lines(3 * bare / kBareLineBytes, units, ranks, false));
    CHECK(cut_hop(units / static_cast<unsigned>(ranks), ranks, bare).pieces <= 3);
    CHECK(rooms.later.bare_bytes > bare);
  }
  for (const int ranks : {2, 3, 4, 8})
    for (const ArenaUse& use : {drop_in(ranks), library(ranks)}) {
      const std::uint64_t bare = lay_out(use, kUsual).first.bare_bytes;
      CHECK(cut_hop(small_request_bytes(ranks, false) / 16, ranks, bare).pieces == 1);
    }
  const std::uint64_t bare = lay_out(drop_in(2), kUsual).first.bare_bytes;
  CHECK(holds_lines(bare / kBareLineBytes, small_request_bytes(2, true) / 16, 2, true));
}

TEST_CASE("where memory is plenty each part is as large as it is of use") {
  for (const int ranks : {2, 3, 4, 8, 16}) {
    const ArenaRooms rooms = lay_out(library(ranks), 64 * 1024 * kMib);
    CAPTURE(ranks);
    CHECK(rooms.later.bare_bytes == (ranks == 2 ? 64 : ranks <= 4 ? 96 : 40) * kMib);
    CHECK(rooms.later.tile_bytes == tile_slots(ranks, 100) * (ranks == 2   ? 4 * 64
                                                              : ranks <= 4 ? 48
                                                                           : 64)
                                        << 10);
    CHECK(rooms.later.scratch_bytes == 64 * kMib);
    CHECK(rooms.later.inbox_bytes == 16 * kMib);
    if (ranks == 2) CHECK(rooms.later.copy_slots_bytes == 128 * kMib);
    if (ranks == 4) CHECK(rooms.later.copy_slots_bytes == kRingSlots * 18 * kMib);
    if (ranks == 8) CHECK(rooms.later.copy_slots_bytes == kRingSlots * 9 * kMib);
    if (ranks == 4 || ranks == 8)
      CHECK(rooms.later.copy_slots_bytes + rooms.later.tile_bytes >= kRingSlots * kRingPieceBytes);
    if (ranks == 16) CHECK(rooms.later.copy_slots_bytes == 0);
  }
}

TEST_CASE("what is left out says what it would want and what is left") {
  const ArenaRooms rooms = lay_out(drop_in(4), 24 * kMib);
  CHECK(rooms.later.tile_bytes == 0);
  const std::string why = rooms.why_not(ArenaPart::tiles, "tiled");
  CAPTURE(why);
  CHECK(why.starts_with("tiled wants 13 MB of slots of tiles; PLAIT_DEVICE_MEMORY=24M leaves "));
  CHECK(rooms.why_not(ArenaPart::bare, "hop").empty());
  CHECK(lay_out(drop_in(4), kUsual).why_not(ArenaPart::tiles, "tiled").empty());
  CHECK_THROWS_WITH_AS(lay_out(drop_in(4), 2 * kMib),
                       doctest::Contains("for bare lines of 4 ranks"), Error);
  CHECK(byte_count_text(64 * kMib) == "64M");
  CHECK(byte_count_text(1536 * 1024) == "1536K");
  CHECK(byte_count_text(192000000) == "187500K");
}

TEST_CASE("scratch that is asked for by name is given in full, before parts of large calls") {
  ArenaUse use = library(2);
  use.plan_scratch = 100 * kMib;
  CHECK(lay_out(use, kUsual).later.scratch_bytes == 100 * kMib);
  CHECK(lay_out(use, 64 * kMib).later.scratch_bytes == 0);
  CHECK(lay_out(use, 64 * kMib).why_not(ArenaPart::scratch, "a plan").find("105 MB") !=
        std::string::npos);
}

TEST_CASE("parts follow each other in their order, on pages, and none overlaps") {
  for (const ArenaUse& use : uses()) {
    const ArenaRooms rooms = lay_out(use, 2 * kUsual);
    for (const DeviceArenaSizes& sizes : {rooms.first, rooms.later}) {
      const ArenaLayout layout(sizes, sizeof(ArenaWords));
      std::uint64_t end = sizeof(ArenaWords);
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
