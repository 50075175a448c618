// Shares out a budget of device memory. Each part has a minimum, a good and a best size. The budget
// first pays the pairs, then all minimums in order of importance. The rest raises all parts towards
// good, and then towards best, each by the same fraction.
#include "gpu/arena/arena_layout.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "gpu/abi/tile_args.hpp"
#include "gpu/copy/engine_ring.hpp"
#include "gpu/copy/rotation.hpp"
#include "gpu/tile/tiled_shape.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kKib = 1ull << 10, kMib = 1ull << 20, kPage = 4096;
/// Upper bound of the header with padding (arena.hpp).
constexpr std::uint64_t kHeaderBytes = 320 * kKib;

std::uint64_t rounded(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

/// Sizes are of the part's field, that is, of a single half.
struct PartSize {
  ArenaPart part;
  bool is_small_tier;  ///< The part belongs to the small arena.
  std::uint64_t least, good, best, step;
  std::uint64_t got = 0;

  std::uint64_t cost(std::uint64_t bytes) const {
    return rounded(bytes) * arena_parts()[static_cast<std::size_t>(part)].halves;
  }
};

/// A part that gets the full size or nothing.
PartSize whole(ArenaPart part, std::uint64_t bytes) {
  return {part, true, bytes, bytes, bytes, kPage};
}

/// A 16-byte unit of `direct_ll` takes 24 bytes of a half per peer. Sizes hold the units of 1 MiB
/// and a greeting packet. In two pieces, 1 MiB takes four ranks as long as 2 MiB (E-0279).
constexpr std::uint64_t kSmallSentinel = 1600 * kKib, kSmallSentinelOfMore = 3584 * kKib,
                        kSmallSentinelOfFour = 4672 * kKib;

void add_shots(std::vector<PartSize>& sizes, const ArenaUse& use) {
  const std::uint64_t integers = use.floats_only ? 256 * kKib : 4 * kMib + kPage;
  sizes.push_back(
      {ArenaPart::flag, true, std::min(64 * kKib, integers), integers, integers, 64 * kKib});
  const std::uint64_t small = use.ranks == 2 ? kSmallSentinel : kSmallSentinelOfMore;
  const std::uint64_t first = use.ranks == 4 ? kSmallSentinelOfFour : small;
  if (use.two_tiers)
    sizes.push_back({ArenaPart::sentinel, true, 256 * kKib, first, first, 64 * kKib});
  // A two_shot that reuses packets has 24 MiB at most. More packets mean fewer pieces for chains
  // and for direct_ll of two ranks.
  const std::uint64_t best = use.ranks == 2 ? 64 * kMib : use.ranks <= 4 ? 96 * kMib : 40 * kMib;
  const std::uint64_t good = use.ranks == 2 ? 24 * kMib : use.ranks <= 4 ? 32 * kMib : 20 * kMib;
  const std::uint64_t least = !use.two_tiers ? small / 2 : use.ranks > 4 ? 20 * kMib : 2 * small;
  sizes.push_back(
      {ArenaPart::sentinel, !use.two_tiers, std::min(least, good), good, best, 256 * kKib});
}

/// With slots of 24 KiB four ranks take 4 to 5 % longer than with 48 KiB; with 64 KiB 1 to 2 %
/// longer than with 48, since fewer slots are cached (E-0269, E-0270). Two ranks have four times
/// the bytes that tiles take, since exchanges of two ranks borrow the slots.
void add_tiles(std::vector<PartSize>& sizes, const ArenaUse& use) {
  if (use.tiled_blocks == 0) return;
  const std::uint64_t slots = tile_slots(use.ranks, use.tiled_blocks) * (use.ranks == 2 ? 4 : 1);
  const std::uint64_t least = use.ranks <= 8 ? 16 : 8;
  const std::uint64_t best = use.ranks == 3 || use.ranks == 4 ? 48 : 64;
  const std::uint64_t good = use.ranks == 2 ? 32 : 48;
  sizes.push_back({ArenaPart::tiles, !use.two_tiers, slots * least * kKib, slots * good * kKib,
                   slots * best * kKib, slots * kKib});
}

void add_copies(std::vector<PartSize>& sizes, const ArenaUse& use) {
  const auto size = [&](std::uint64_t slots, std::uint64_t least, std::uint64_t good,
                        std::uint64_t best) {
    sizes.push_back({ArenaPart::copies, !use.two_tiers, slots * least, slots * good, slots * best,
                     slots * 64 * kKib});
  };
  const std::uint64_t slots = rotation_slots(use.ranks), best = rotation_slot_bytes(use.ranks);
  if (use.exchanges && use.ranks == 2)
    size(slots, 4 * kMib, 12 * kMib, best);
  else if (use.exchanges)
    size(slots, 2 * kMib, best / 4, best);
  else if (use.rings) {
    // With the tile slots, borrowed by rings, pieces are 24 to 32 MiB.
    const std::uint64_t more = use.ranks <= 4 ? 18 * kMib : 9 * kMib;
    size(kRingSlots, use.ranks <= 4 ? 4 * kMib : kMib, more, more);
  }
}

void add_plans(std::vector<PartSize>& sizes, const ArenaUse& use) {
  if (!use.plans) return;
  const std::uint64_t requested = use.plan_scratch;
  if (requested != 0)
    sizes.push_back({ArenaPart::scratch, !use.two_tiers, requested, requested, requested, kPage});
  else
    sizes.push_back({ArenaPart::scratch, !use.two_tiers, 4 * kMib, (use.ranks == 2 ? 16 : 4) * kMib,
                     64 * kMib, kMib});
  sizes.push_back({ArenaPart::inbox, !use.two_tiers, kMib, 2 * kMib, 16 * kMib, kMib});
}

/// In calls of two ranks that only move data, more packets gain nothing, and tiles are no faster
/// than packets. From 24 MiB on copy engines have all the slots they need
/// (docs/design/memory_tiers.md).
std::vector<PartSize> part_sizes_of_pair(const ArenaUse& use) {
  std::vector<PartSize> sizes = {
      whole(ArenaPart::flag, kPage),
      {ArenaPart::sentinel, true, 256 * kKib, kSmallSentinel, kSmallSentinel, 64 * kKib}};
  const bool is_small_tier = !use.two_tiers;
  const std::uint64_t slots = rotation_slots(2);
  if (use.exchanges)
    sizes.push_back({ArenaPart::copies, is_small_tier, slots * 4 * kMib, slots * 6 * kMib,
                     slots * rotation_slot_bytes(2), slots * 64 * kKib});
  if (!use.plans) return sizes;
  sizes.push_back({ArenaPart::scratch, is_small_tier, kMib, kMib, 16 * kMib, 64 * kKib});
  sizes.push_back({ArenaPart::inbox, is_small_tier, 256 * kKib, 256 * kKib, kMib, 64 * kKib});
  return sizes;
}

std::vector<PartSize> part_sizes_of(const ArenaUse& use) {
  if (use.moves_only) return part_sizes_of_pair(use);
  std::vector<PartSize> sizes;
  if (use.message_slot_bytes != 0) {
    sizes.push_back(whole(ArenaPart::message_slots, use.message_slot_bytes));
    sizes.push_back(whole(ArenaPart::message_packets, use.message_packet_bytes));
  }
  add_shots(sizes, use);
  add_plans(sizes, use);
  add_tiles(sizes, use);
  add_copies(sizes, use);
  if (use.ranks == 1)  // A single rank sends nothing.
    for (PartSize& size : sizes) size.good = size.best = size.least;
  return sizes;
}

/// Raises all sizes towards `aim`, each by the same fraction of the distance. Bytes left by
/// rounding go to the first part with room.
void raise(std::vector<PartSize>& sizes, std::uint64_t PartSize::* aim, std::uint64_t& left) {
  const auto want = [&](const PartSize& size) {
    return size.got == 0 || size.got >= size.*aim ? 0 : size.*aim - size.got;
  };
  std::uint64_t all = 0;
  for (const PartSize& size : sizes)
    if (want(size) != 0) all += size.cost(size.*aim) - size.cost(size.got);
  if (all == 0) return;
  const std::uint64_t share = std::min(all, left);
  const auto give = [&](PartSize& size, std::uint64_t most) {
    const std::uint64_t more = most >= want(size) ? want(size) : most / size.step * size.step;
    const std::uint64_t cost = size.cost(size.got + more) - size.cost(size.got);
    if (cost > left) return;
    size.got += more;
    left -= cost;
  };
  // Fractions of the distance, so that no product of two sizes overflows.
  constexpr std::uint64_t kParts = 1 << 20;
  const std::uint64_t parts =
      share == all
          ? kParts
          : static_cast<std::uint64_t>(static_cast<double>(share) / static_cast<double>(all) *
                                       static_cast<double>(kParts));
  for (PartSize& size : sizes)
    give(size, want(size) / kParts * parts + want(size) % kParts * parts / kParts);
  for (PartSize& size : sizes)
    give(size, left / arena_parts()[static_cast<std::size_t>(size.part)].halves);
}

std::string megabytes(std::uint64_t bytes) { return text((bytes + 500000) / 1000000, " MB"); }

}  // namespace

std::uint64_t& DeviceArenaSizes::of(ArenaPart part) {
  switch (part) {
#define PLAIT_ARENA_PART(name, field, halves, byte, what) \
  case ArenaPart::name: return field;
#include "gpu/arena/arena_parts.def"
#undef PLAIT_ARENA_PART
  }
  throw Error(ErrorCode::internal, "unknown arena part");
}

std::uint64_t DeviceArenaSizes::of(ArenaPart part) const {
  return const_cast<DeviceArenaSizes*>(this)->of(part);
}

const std::vector<ArenaPartInfo>& arena_parts() {
  static const std::vector<ArenaPartInfo> parts = {
#define PLAIT_ARENA_PART(name, field, halves, byte, what) \
  {ArenaPart::name, #name, halves, byte, what},
#include "gpu/arena/arena_parts.def"
#undef PLAIT_ARENA_PART
  };
  return parts;
}

ArenaLayout::ArenaLayout(const DeviceArenaSizes& sizes, std::uint64_t header_bytes) {
  std::uint64_t end = rounded(header_bytes);
  for (const ArenaPartInfo& info : arena_parts()) {
    at_.push_back(end);
    end += info.halves * rounded(sizes.of(info.part));
  }
  at_.push_back(end);
  total_ = (end + kArenaGrainBytes - 1) / kArenaGrainBytes * kArenaGrainBytes;
}

std::uint64_t ArenaLayout::bytes_of(ArenaPart part) const {
  return at_[static_cast<std::size_t>(part) + 1] - at(part);
}

namespace {

/// Shares out `bytes`, which exclude the pairs' bytes.
ArenaTiers share_out(const ArenaUse& use, std::uint64_t bytes, const std::string& budget) {
  std::vector<PartSize> sizes = part_sizes_of(use);
  ArenaTiers tiers;
  tiers.budget = budget;
  // Each tier ends at an allocation grain.
  const std::uint64_t apart =
      kHeaderBytes + bytes % kArenaGrainBytes + (use.two_tiers ? kArenaGrainBytes : 0);
  std::uint64_t left = bytes > apart ? bytes - apart : 0;
  for (PartSize& size : sizes) {
    const std::uint64_t cost = size.cost(size.least);
    if (cost <= left) {
      size.got = size.least;
      left -= cost;
    } else {
      tiers.lacking.push_back({size.part, cost, left});
    }
    if (size.got == 0 && size.is_small_tier && size.part == ArenaPart::sentinel)
      throw Error(ErrorCode::invalid_argument,
                  text(budget, " leaves ", megabytes(left), " for LL packets of ", use.ranks,
                       " ranks, which want ", megabytes(cost), " at least; raise it"));
  }
  // Small calls get a single piece if that leaves no part out.
  for (PartSize& size : sizes) {
    const std::uint64_t more = size.cost(size.good) - size.cost(size.got);
    if (!use.two_tiers || !size.is_small_tier || size.part != ArenaPart::sentinel || more > left)
      continue;
    size.got = size.good;
    left -= more;
  }
  raise(sizes, &PartSize::good, left);
  raise(sizes, &PartSize::best, left);
  for (const PartSize& size : sizes)
    (size.is_small_tier ? tiers.small : tiers.large).of(size.part) = size.got;
  tiers.small.tile_blocks = tiers.large.tile_blocks = use.tiled_blocks;
  return tiers;
}

}  // namespace

/// Every pair gets 2 MiB before other parts grow: the least that pairs need to work at all. Pairs
/// get more if that takes at most three eighths of the budget and leaves no part out. Useful sizes
/// are 4 MiB (all useful packets) and 32 MiB (copy engines too). Sizes between gain nothing.
ArenaTiers lay_out(const ArenaUse& use, std::uint64_t budget_bytes) {
  const std::string budget =
      text(use.moves_only ? "a pair's part of PLAIT_DEVICE_MEMORY, " : "PLAIT_DEVICE_MEMORY=",
           byte_count_text(budget_bytes));
  const auto pairs = static_cast<std::uint64_t>(use.pairs);
  const auto with = [&](std::uint64_t pair_bytes) {
    const std::uint64_t all = pairs * pair_bytes;
    ArenaTiers tiers = share_out(use, budget_bytes - std::min(budget_bytes, all), budget);
    tiers.pair_bytes = pair_bytes;
    return tiers;
  };
  if (pairs == 0) return with(0);
  ArenaTiers least;
  try {
    least = with(kArenaGrainBytes);
  } catch (const Error&) {
    return with(0);
  }
  for (const std::uint64_t bytes : {32 * kMib, kSmallPairBytes}) {
    if (pairs * bytes > budget_bytes / 8 * 3) continue;
    ArenaTiers tiers = with(bytes);
    if (tiers.lacking.size() == least.lacking.size()) return tiers;
  }
  return least;
}

std::string ArenaTiers::why_not(ArenaPart part, const std::string& who) const {
  for (const LackingPart& lack : lacking)
    if (lack.part == part && small.of(part) == 0 && large.of(part) == 0)
      return text(who, " wants ", megabytes(lack.wanted_bytes), " of ",
                  arena_parts()[static_cast<std::size_t>(part)].what, "; ", budget, " leaves ",
                  megabytes(lack.left_bytes));
  return "";
}

std::string byte_count_text(std::uint64_t bytes) {
  const char* const units[] = {"", "K", "M", "G"};
  std::size_t unit = 0;
  while (unit < 3 && bytes != 0 && bytes % 1024 == 0) bytes /= 1024, ++unit;
  return text(bytes, units[unit]);
}

}  // namespace plait::cuda
