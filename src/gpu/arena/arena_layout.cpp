// Shares out a budget of device memory. Each part has a minimum, a good and a best size. The budget
// first pays the pairs, then all minimums in order of importance. The rest raises all parts towards
// good, and then towards best, each by the same fraction.
#include "gpu/arena/arena_layout.hpp"

#include <algorithm>
#include <cstring>

#include "base/text.hpp"
#include "gpu/abi/call_args.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kMib = 1ull << 20;

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
  for (PartSize& size : sizes) give(size, left / size.part->halves);
}

std::string megabytes(std::uint64_t bytes) { return text("{} MB", (bytes + 500000) / 1000000); }

bool is_called(const char* name, const char* other) { return std::strcmp(name, other) == 0; }

}  // namespace

std::uint64_t PartSize::cost(std::uint64_t bytes) const {
  return rounded_to_page(bytes) * part->halves;
}

PartSize whole(const ArenaPart& part, std::uint64_t bytes) {
  return {.part = &part, .is_small_tier = true, .least = bytes, .good = bytes, .best = bytes};
}

HeaderLayout::HeaderLayout(const std::vector<const FlagsRow*>& rows, const DeviceArenaSizes& sizes)
    : bytes_(sizeof(DeviceState)) {
  for (const FlagsRow* const row : rows) {
    const std::uint64_t at = (bytes_ + row->alignment - 1) / row->alignment * row->alignment;
    places_.push_back({row, at});
    bytes_ = at + row->bytes * (row->each == nullptr ? 1 : sizes.divided(*row->each));
  }
  if (bytes_ > kMostHeaderBytes)
    throw Error(ErrorCode::internal, text("header of the arena: wanted {} bytes at most, found {}",
                                          kMostHeaderBytes, bytes_));
}

std::uint64_t HeaderLayout::at(const FlagsRow& row) const {
  for (const Place& place : places_)
    if (is_called(place.row->name, row.name)) return place.at;
  throw Error(ErrorCode::internal, text("the header of the arena has no flags of {}", row.name));
}

ArenaLayout::ArenaLayout(const DeviceArenaSizes& sizes, const std::vector<const ArenaPart*>& parts,
                         std::uint64_t header_bytes) {
  std::uint64_t end = rounded_to_page(header_bytes);
  for (const ArenaPart* const part : parts) {
    const std::uint64_t bytes = part->halves * rounded_to_page(sizes[*part]);
    places_.push_back({part, end, bytes});
    end += bytes;
  }
  total_ = (end + kArenaGrainBytes - 1) / kArenaGrainBytes * kArenaGrainBytes;
}

const ArenaLayout::Place& ArenaLayout::place(const ArenaPart& part) const {
  for (const Place& one : places_)
    if (is_called(one.part->name, part.name)) return one;
  throw Error(ErrorCode::internal, text("the arena has no part for {}", part.what));
}

std::uint64_t ArenaLayout::at(const ArenaPart& part) const { return place(part).at; }

std::uint64_t ArenaLayout::bytes_of(const ArenaPart& part) const { return place(part).bytes; }

namespace {

/// Shares out `bytes`, which exclude the pairs' bytes. sizes: in the order of importance.
ArenaTiers share_out(std::vector<PartSize> sizes, const ArenaBudget& budget, std::uint64_t bytes,
                     const std::string& name) {
  ArenaTiers tiers;
  tiers.budget = name;
  // Each tier ends at an allocation grain.
  const std::uint64_t apart =
      kMostHeaderBytes + bytes % kArenaGrainBytes + (budget.two_tiers ? kArenaGrainBytes : 0);
  std::uint64_t left = bytes > apart ? bytes - apart : 0;
  for (PartSize& size : sizes) {
    const std::uint64_t cost = size.is_beyond_budget ? 0 : size.cost(size.least);
    if (cost <= left) {
      size.got = size.least;
      left -= cost;
    } else {
      tiers.lacking.push_back({size.part, cost, left});
    }
    if (size.got == 0 && size.is_small_tier && size.needed_as != nullptr)
      throw Error(ErrorCode::invalid_argument,
                  text("{} leaves {} for {} of {} ranks, which want {} at least; raise it", name,
                       megabytes(left), size.needed_as, budget.ranks, megabytes(cost)));
  }
  // Small calls get a single piece if that leaves no part out.
  for (PartSize& size : sizes) {
    const std::uint64_t more = size.cost(size.good) - size.cost(size.got);
    if (!budget.two_tiers || !size.is_small_tier || size.needed_as == nullptr || more > left)
      continue;
    size.got = size.good;
    left -= more;
  }
  raise(sizes, &PartSize::good, left);
  raise(sizes, &PartSize::best, left);
  for (const PartSize& size : sizes) {
    (size.is_small_tier ? tiers.small : tiers.large)[*size.part] = size.got;
    for (DeviceArenaSizes* const tier : {&tiers.small, &tiers.large})
      tier->divide(*size.part, size.way);
  }
  return tiers;
}

}  // namespace

/// Every pair gets 2 MiB before other parts grow: the least that pairs need to work at all. Pairs
/// get more if that takes at most three eighths of the budget and leaves no part out. Useful sizes
/// are 4 MiB (all useful packets) and 32 MiB (copy engines too). Sizes between gain nothing.
ArenaTiers lay_out(std::vector<PartSize> sizes, const ArenaBudget& budget) {
  std::stable_sort(sizes.begin(), sizes.end(), [](const PartSize& one, const PartSize& other) {
    return one.turn < other.turn;
  });
  if (budget.ranks == 1)  // A single rank sends nothing.
    for (PartSize& size : sizes) size.good = size.best = size.least;
  const std::string name = text(
      "{}{}", budget.is_pair ? "a pair's part of PLAIT_DEVICE_MEMORY, " : "PLAIT_DEVICE_MEMORY=",
      byte_count_text(budget.bytes));
  const auto pairs = static_cast<std::uint64_t>(budget.pairs);
  const auto with = [&](std::uint64_t pair_bytes) {
    const std::uint64_t all = pairs * pair_bytes;
    ArenaTiers tiers = share_out(sizes, budget, budget.bytes - std::min(budget.bytes, all), name);
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
    if (pairs * bytes > budget.bytes / 8 * 3) continue;
    ArenaTiers tiers = with(bytes);
    if (tiers.lacking.size() == least.lacking.size()) return tiers;
  }
  return least;
}

std::string ArenaTiers::why_not(const ArenaPart& part, const std::string& who) const {
  for (const LackingPart& lack : lacking)
    if (is_called(lack.part->name, part.name) && small[part] == 0 && large[part] == 0)
      return text("{} wants {} of {}; {} leaves {}", who, megabytes(lack.wanted_bytes), part.what,
                  budget, megabytes(lack.left_bytes));
  return "";
}

std::string byte_count_text(std::uint64_t bytes) {
  const char* const units[] = {"", "K", "M", "G"};
  std::size_t unit = 0;
  while (unit < 3 && bytes != 0 && bytes % 1024 == 0) bytes /= 1024, ++unit;
  return text("{}{}", bytes, units[unit]);
}

}  // namespace plait::cuda
