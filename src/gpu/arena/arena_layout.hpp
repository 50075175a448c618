// Shares out a budget of device memory among the parts of a rank's arena, and gives parts and flags
// their places. All ranks compute the same layout from agreed values. Pure arithmetic: tests need
// no GPU.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/abi/arena_flags.hpp"
#include "gpu/arena/arena_part.hpp"

namespace plait::cuda {

/// What a rank's arena holds: flags in the header, parts behind it, in memory order.
struct ArenaContents {
  std::vector<const FlagsRow*> flags;
  std::vector<const ArenaPart*> parts;
};

/// Returns the bytes that a half of this size takes in an arena.
constexpr std::uint64_t rounded_to_page(std::uint64_t bytes) {
  return (bytes + 4095) / 4096 * 4096;
}

/// Granularity of the driver's allocations.
inline constexpr std::uint64_t kArenaGrainBytes = 2ull << 20;

/// Places of the flags in the header, behind the rank's state.
class HeaderLayout {
 public:
  HeaderLayout(const std::vector<const FlagsRow*>& rows, const DeviceArenaSizes& sizes);
  /// Error(internal) for a row that is not in the header.
  std::uint64_t at(const FlagsRow& row) const;
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Place {
    const FlagsRow* row;
    std::uint64_t at;
  };
  std::vector<Place> places_;
  std::uint64_t bytes_ = 0;
};

/// Offset of each part in an arena, and the size of the arena.
class ArenaLayout {
 public:
  /// header_bytes: size of the header in front of all parts.
  ArenaLayout(const DeviceArenaSizes& sizes, const std::vector<const ArenaPart*>& parts,
              std::uint64_t header_bytes);
  /// Error(internal) for a part that the arena does not hold.
  std::uint64_t at(const ArenaPart& part) const;
  /// Bytes of the whole part, of both halves if it has two.
  std::uint64_t bytes_of(const ArenaPart& part) const;
  std::uint64_t total_bytes() const { return total_; }

 private:
  struct Place {
    const ArenaPart* part;
    std::uint64_t at, bytes;
  };
  const Place& place(const ArenaPart& part) const;
  std::vector<Place> places_;
  std::uint64_t total_ = 0;
};

/// Wish of a room for a part, in bytes of the part's field, that is, of a single half.
struct PartSize {
  const ArenaPart* part;
  bool is_small_tier = false;  ///< The part belongs to the small arena.
  std::uint64_t least = 0, good = 0, best = 0, step = 4096;
  /// The budget pays the least sizes of lower turns first.
  int turn = 0;
  /// Not null: what small calls lack without the part. Small calls then get the good size, if that
  /// leaves no part out.
  const char* needed_as = nullptr;
  std::uint64_t way = 0;  ///< DeviceArenaSizes::divided() of the part.
  bool is_beyond_budget = false;  ///< The part gets its least size, and the budget pays nothing.
  std::uint64_t got = 0;

  std::uint64_t cost(std::uint64_t bytes) const;
};
/// A part that gets the full size or nothing.
PartSize whole(const ArenaPart& part, std::uint64_t bytes);

/// Budget of a communicator on each GPU; the same on all ranks.
struct ArenaBudget {
  std::uint64_t bytes = 0;
  int ranks = 2;
  bool two_tiers = false;  ///< Small arena at once, large arena with the first large call.
  bool is_pair = false;    ///< Of a pair of ranks of a larger communicator.
  int pairs = 0;           ///< Pairs a rank may join later, each with separate memory.
};

/// A part left out, because less than the part's minimum was left.
struct LackingPart {
  const ArenaPart* part;
  std::uint64_t wanted_bytes;  ///< Minimum, of both halves.
  std::uint64_t left_bytes;
};

/// `small` is allocated with the communicator. With two tiers, `large` holds the parts of large
/// calls, in separate memory; a part missing in `large` is taken from `small`.
struct ArenaTiers {
  DeviceArenaSizes small;
  DeviceArenaSizes large;
  std::vector<LackingPart> lacking;
  std::uint64_t pair_bytes = 0;  ///< Budget of each pair, a part of the whole; 0 = none left.
  std::string budget;            ///< For messages: "PLAIT_DEVICE_MEMORY=64M".

  /// Returns "" if the part exists; otherwise the reason, worded like an engine's why_not().
  std::string why_not(const ArenaPart& part, const std::string& who) const;
};

/// Lays out both tiers and all pairs within the budget. Error(invalid_argument) if the budget is
/// too small for small calls.
ArenaTiers lay_out(std::vector<PartSize> sizes, const ArenaBudget& budget);

/// Upper bound of the header with padding; a larger header would not fit the budget.
inline constexpr std::uint64_t kMostHeaderBytes = 320ull << 10;

/// Default budget of a communicator on each GPU: 192 MB for two ranks. More ranks get 256 MB, since
/// rings of copy engines need pieces of up to 32 MiB (docs/design/memory_tiers.md).
inline constexpr std::uint64_t kUsualMemoryBytes = 183ull << 20;
constexpr std::uint64_t usual_memory_bytes(int ranks) {
  return ranks <= 2 ? kUsualMemoryBytes : 244ull << 20;
}

/// Pair budget that holds LL packets alone, all of them from the start.
inline constexpr std::uint64_t kSmallPairBytes = 4ull << 20;

/// Largest requests that the small arena serves as fast as the large arena. For more than four
/// ranks the small arena's packet buffers split everything but all_reduce: with eight ranks, 1 MiB
/// sends take 22 us in the small arena and 6.9 in the large arena, 512 KiB reduces 13.6 and 10.6
/// (E-0334).
constexpr std::uint64_t small_request_bytes(int ranks, bool is_all_reduce) {
  return ranks <= 4 || is_all_reduce ? 1ull << 20 : 256ull << 10;
}

/// Formats a byte count like PLAIT_DEVICE_MEMORY: "64M", "1536K", "192000000".
std::string byte_count_text(std::uint64_t bytes);

}  // namespace plait::cuda
