// Arena layouts: uses share a budget, all ranks get the same, a larger budget never gives less, and
// refusals have a reason.
#include <doctest/doctest.h>

#include <algorithm>

#include "base/env.hpp"
#include "base/text.hpp"
#include "gpu/arena/arena.hpp"
#include "gpu/chunk/chunk_memory.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/copy/ring_cut.hpp"
#include "gpu/lanes/plan_memory.hpp"
#include "gpu/ll/ll_cut.hpp"
#include "gpu/ll/ll_memory.hpp"
#include "gpu/select/all_resources.hpp"
#include "gpu/select/engines.hpp"
#include "gpu/select/usual_group.hpp"
#include "gpu/tile/tile_memory.hpp"
#include "gpu/tile/tile_plan.hpp"
#include "gpu/tile/tiled_shape.hpp"
#include "plait/error.hpp"

using namespace plait;
using namespace plait::cuda;

TEST_CASE("slots of copy engines that a caller asks for by size hold rotations too") {
  for (const int ranks : {3, 4}) {
    Group group = usual_group(ranks);
    CHECK(slot_bytes(group) == 0);  // rings alone
    group.sizes = {};
    group.sizes[kCopyMemory] = rotation_slots(ranks) << 20;
    lay_out_arena(group, {});
    CHECK(slot_bytes(group) == 1 << 20);
  }
}

namespace {

constexpr std::uint64_t kMib = 1 << 20;
constexpr std::uint64_t kUsual = kUsualMemoryBytes;

/// Use of the arenas of a communicator.
struct ArenaUse {
  int ranks = 2;
  bool two_tiers = false, floats_only = false, moves_only = false;
  int pairs = 0;
  unsigned tiled_blocks = 100;
  bool messages = false;
  bool plans = false;
  std::uint64_t plan_scratch = 0;
};

ArenaTiers lay_out(const ArenaUse& use, std::uint64_t budget) {
  Group group;
  group.ranks = use.ranks;
  group.most_whole_sm_blocks = use.tiled_blocks;
  if (use.messages) group.most_message_blocks = 132;
  lay_out_arena(group, {.budget_bytes = budget,
                        .two_tiers = use.two_tiers,
                        .floats_only = use.floats_only,
                        .moves_only = use.moves_only,
                        .pairs = use.pairs != 0,
                        .plans = use.plans,
                        .plan_scratch = use.plan_scratch});
  return group.tiers;
}

ArenaUse library(int ranks) {
  return {.ranks = ranks, .two_tiers = true, .pairs = ranks - 1, .plans = true};
}

ArenaUse drop_in(int ranks) {
  return {.ranks = ranks,
          .two_tiers = true,
          .floats_only = true,
          .tiled_blocks = 64,
          .messages = ranks == 2};
}

ArenaUse pair() {
  ArenaUse use = library(2);
  use.moves_only = true;
  use.pairs = 0;
  return use;
}

std::uint64_t header_bytes(const DeviceArenaSizes& sizes) {
  return HeaderLayout(arena_contents().flags, sizes).bytes();
}

std::uint64_t bytes_of(const DeviceArenaSizes& sizes, bool has_header) {
  return ArenaLayout(sizes, arena_contents().parts, has_header ? header_bytes(sizes) : 0)
      .total_bytes();
}

std::uint64_t bytes_of(const ArenaTiers& tiers, const ArenaUse& use) {
  return bytes_of(tiers.small, true) + (use.two_tiers ? bytes_of(tiers.large, false) : 0) +
         static_cast<std::uint64_t>(use.pairs) * tiers.pair_bytes;
}

std::vector<const ArenaPart*> parts_of(const std::vector<LackingPart>& lacking) {
  std::vector<const ArenaPart*> parts;
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
  return text("{} ranks, {}{}{}, {}", use.ranks, use.floats_only ? "drop-in" : "library",
              use.moves_only ? ", pair" : "", use.two_tiers ? ", grows" : "",
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
        CHECK(tiers.small[kSentinelPackets] > 0);
        CHECK(tiers.small[kFlagPackets] > 0);
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
      for (const ArenaPart* const part : arena_contents().parts) {
        CAPTURE(part->name);
        const std::uint64_t had = before.small[*part] + before.large[*part];
        const std::uint64_t has = tiers.small[*part] + tiers.large[*part];
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
      const std::uint64_t slot = tiers.large[kTileMemory] / tile_slots(ranks, use.tiled_blocks);
      CHECK(slot >= (ranks == 8 ? 28 : 40) * 1024);
    }
  const ArenaTiers two = lay_out(drop_in(2), kUsual);
  CHECK(10 * bytes_of(two.small, true) <= 300000000);  // ten communicators of small messages
  // An exchange borrows tiles' slots if these are larger than half of the exchange's slots.
  CHECK(two.large[kTileMemory] > two.large[kCopyMemory] / 2);
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
      const std::uint64_t half_bytes = of_pair.small[kSentinelPackets],
                          slots = of_pair.large[kCopyMemory];
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
  CHECK(lay_out(pair(), 4 * kMib).why_not(kCopyMemory, "it") ==
        "it wants 17 MB of slots of copy engines; a pair's part of PLAIT_DEVICE_MEMORY, 4M leaves "
        "1 MB");
}

TEST_CASE("without links the usual memory has chunks for up to 16 ranks, and packets beside") {
  for (const bool overlap_compute : {false, true})
    for (const int ranks : {2, 3, 4, 5, 6, 7, 8, 9, 12, 16}) {
      const std::vector<std::string> models(static_cast<std::size_t>(ranks), "NVIDIA L40S");
      const Group group = usual_group(ranks, overlap_compute, 0, 0, models, true);
      CAPTURE(ranks);
      CAPTURE(overlap_compute);
      CHECK(group.why_no_part(kChunkMemory) == "");
      // A call has half of the chunks, a part for each peer.
      CHECK(group.sizes[kChunkMemory] / static_cast<unsigned>(ranks - 1) >=
            (ranks <= 8 ? kMib : kMib / 4));
      CHECK(group.sizes[kSentinelPackets] >= 4 * kMib);
      Request request;
      request.collective = Collective::all_gather;
      request.ranks = ranks;
      request.count = 1 << 20;
      CHECK(direct_chunks_engine().why_not(request, {}, group) == "");
      std::uint64_t bytes = 0;
      for (const ArenaPart* const part : arena_contents().parts)
        if (!part->is_own)
          bytes += part->halves * (group.tiers.small[*part] + group.tiers.large[*part]);
      CHECK(bytes <= usual_host_bytes(ranks));
    }
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
                        half_bytes = tiers.small[kSentinelPackets];
    CAPTURE(ranks);
    CHECK(holds_packets(3 * half_bytes / kSentinelPacketBytes, units, ranks, false));
    CHECK(cut_direct_ll(units / static_cast<unsigned>(ranks), ranks, half_bytes).pieces <= 3);
    CHECK(tiers.large[kSentinelPackets] > half_bytes);
  }
  for (const int ranks : {2, 3, 4, 8})
    for (const ArenaUse& use : {drop_in(ranks), library(ranks)}) {
      const std::uint64_t half_bytes = lay_out(use, kUsual).small[kSentinelPackets];
      CHECK(cut_direct_ll(small_request_bytes(ranks, false) / 16, ranks, half_bytes).pieces == 1);
    }
  const std::uint64_t half_bytes = lay_out(drop_in(2), kUsual).small[kSentinelPackets];
  CHECK(
      holds_packets(half_bytes / kSentinelPacketBytes, small_request_bytes(2, true) / 16, 2, true));
}

TEST_CASE("with enough memory each part has its useful size") {
  for (const int ranks : {2, 3, 4, 8, 16}) {
    const ArenaTiers tiers = lay_out(library(ranks), 64 * 1024 * kMib);
    CAPTURE(ranks);
    CHECK(tiers.large[kSentinelPackets] == (ranks == 2 ? 64 : ranks <= 4 ? 96 : 40) * kMib);
    CHECK(tiers.large[kTileMemory] == tile_slots(ranks, 100) * (ranks == 2   ? 4 * 64
                                                                : ranks <= 4 ? 48
                                                                             : 64)
                                          << 10);
    CHECK(tiers.large[kPlanScratch] == 64 * kMib);
    CHECK(tiers.large[kPlanInbox] == 16 * kMib);
    if (ranks == 2) CHECK(tiers.large[kCopyMemory] == 128 * kMib);
    if (ranks == 4) CHECK(tiers.large[kCopyMemory] == kRingSlots * 18 * kMib);
    if (ranks == 8) CHECK(tiers.large[kCopyMemory] == kRingSlots * 9 * kMib);
    if (ranks == 4 || ranks == 8)
      CHECK(tiers.large[kCopyMemory] + tiers.large[kTileMemory] >= kRingSlots * kRingPieceBytes);
    if (ranks == 16) CHECK(tiers.large[kCopyMemory] == 0);
  }
}

TEST_CASE("a refused part names its need and the memory left") {
  const ArenaTiers tiers = lay_out(drop_in(4), 24 * kMib);
  CHECK(tiers.large[kTileMemory] == 0);
  const std::string why = tiers.why_not(kTileMemory, "tiled");
  CAPTURE(why);
  CHECK(why.starts_with("tiled wants 13 MB of slots of tiles; PLAIT_DEVICE_MEMORY=24M leaves "));
  CHECK(tiers.why_not(kSentinelPackets, "direct_ll").empty());
  CHECK(lay_out(drop_in(4), kUsual).why_not(kTileMemory, "tiled").empty());
  CHECK_THROWS_WITH_AS(lay_out(drop_in(4), 2 * kMib),
                       doctest::Contains("for LL packets of 4 ranks"), Error);
  CHECK(byte_count_text(64 * kMib) == "64M");
  CHECK(byte_count_text(1536 * 1024) == "1536K");
  CHECK(byte_count_text(192000000) == "187500K");
}

TEST_CASE("scratch requested by name comes in full, before parts of large calls") {
  ArenaUse use = library(2);
  use.plan_scratch = 100 * kMib;
  CHECK(lay_out(use, kUsual).large[kPlanScratch] == 100 * kMib);
  CHECK(lay_out(use, 64 * kMib).large[kPlanScratch] == 0);
  CHECK(lay_out(use, 64 * kMib).why_not(kPlanScratch, "a plan").find("105 MB") !=
        std::string::npos);
}

TEST_CASE("parts lie in order on page boundaries without overlap") {
  for (const ArenaUse& use : uses()) {
    const ArenaTiers tiers = lay_out(use, 2 * kUsual);
    for (const DeviceArenaSizes& sizes : {tiers.small, tiers.large}) {
      const ArenaLayout layout(sizes, arena_contents().parts, header_bytes(sizes));
      std::uint64_t end = header_bytes(sizes);
      for (const ArenaPart* const part : arena_contents().parts) {
        CHECK(layout.at(*part) >= end);
        CHECK(layout.at(*part) % 4096 == 0);
        CHECK(layout.bytes_of(*part) >= part->halves * sizes[*part]);
        end = layout.at(*part) + part->halves * sizes[*part];
      }
      CHECK(layout.total_bytes() >= end);
      CHECK(layout.total_bytes() % kArenaGrainBytes == 0);
    }
  }
}

TEST_CASE("tiled calls have as many blocks, with slots and flags, as the GPUs have SMs for") {
  const auto blocks = [](const std::string& model, bool overlap_compute, unsigned budget = 0) {
    const std::vector<std::string> models{model, model};
    const Group group = usual_group(2, overlap_compute, 0, budget, models);
    CHECK(group.tiers.small.divided(kTileMemory) == group.sizes.divided(kTileMemory));
    return group.sizes.divided(kTileMemory);
  };
  for (const char* model : {"NVIDIA H200", "NVIDIA H100 80GB HBM3"}) {
    CHECK(blocks(model, false) == 100);
    CHECK(blocks(model, true) == 64);
    CHECK(blocks(model, false, 16) == 16);
  }
  CHECK(blocks("NVIDIA B200", false) == 116);  // of 148 SMs; 32 are left, as on an H200
  CHECK(blocks("NVIDIA B200", true) == 72);
  CHECK(blocks("NVIDIA B200", false, 148) == 116);
  CHECK(blocks("NVIDIA H20", false) == 78);
  CHECK(blocks("NVIDIA A100-SXM4-80GB", false) == 0);  // runs no tiles
  Request request;
  request.ranks = 2;
  request.count = 1 << 28;
  const Group group = usual_group(2, false, 0, 0, {"NVIDIA B200", "NVIDIA B200"});
  TiledArgs shape = tiled_shape(request, 0);
  CHECK(spread_tiles(shape, tile_wish({}, group)) == 116);
  Tuning all;
  all.blocks = 148;
  CHECK(spread_tiles(shape, tile_wish(all, group)) == 116);
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
  wish.most_blocks = 100;
  wish.slot_blocks = 64;
  wish.slot_memory_bytes = tile_slots(2, 64) * 32 << 10;
  CHECK(spread_tiles(shape, wish) == 64);
  CHECK(shape.slot_bytes == 64 << 10);  // two of them
}

TEST_CASE("slots of copy engines lie right behind the slots of tiles, which they borrow") {
  const std::vector<const ArenaPart*>& parts = arena_contents().parts;
  const auto tiles = std::find(parts.begin(), parts.end(), &kTileMemory);
  REQUIRE(tiles + 1 < parts.end());
  CHECK(tiles[1] == &kCopyMemory);
}

TEST_CASE("flags of all rooms lie in the header, aligned and apart, and other flags do not") {
  DeviceArenaSizes sizes;
  sizes.divide(kTileMemory, 148);
  const HeaderLayout layout(arena_contents().flags, sizes);
  std::uint64_t end = sizeof(DeviceState);
  for (const FlagsRow* const row : arena_contents().flags) {
    CAPTURE(row->name);
    CHECK(layout.at(*row) >= end);
    CHECK(layout.at(*row) % row->alignment == 0);
    end = layout.at(*row) + row->bytes * (row->each == nullptr ? 1 : sizes.divided(*row->each));
  }
  CHECK(layout.bytes() == end);
  const ArenaFlags<DeviceState> unknown{"nobody"};
  CHECK_THROWS_AS((void)layout.at(unknown), Error);
}

TEST_CASE("plans of rooms number their flags apart") {
  std::vector<PlanFlagRange> ranges;
  for (const Resources* const room : all_resources())
    ranges.insert(ranges.end(), room->plan_flags.begin(), room->plan_flags.end());
  CHECK(ranges.size() > 3);
  for (const PlanFlagRange& one : ranges) {
    CHECK(one.first < one.end);
    for (const PlanFlagRange& other : ranges)
      CHECK((&one == &other || one.end <= other.first || other.end <= one.first));
  }
}
