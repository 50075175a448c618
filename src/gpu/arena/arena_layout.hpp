// Shares out a budget of device memory among the named parts of a rank's arena. All ranks compute
// the same layout from agreed values. Pure arithmetic: tests need no GPU.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace plait::cuda {

enum class ArenaPart : int {
#define PLAIT_ARENA_PART(name, field, halves, byte, what) name,
#include "gpu/arena/arena_parts.def"
#undef PLAIT_ARENA_PART
};

/// Bytes of each part; of a single half if the part has halves. The same on all ranks.
struct DeviceArenaSizes {
#define PLAIT_ARENA_PART(name, field, halves, byte, what) std::uint64_t field = 0;
#include "gpu/arena/arena_parts.def"
#undef PLAIT_ARENA_PART
  std::uint64_t tile_blocks = 0;  ///< Blocks that have tile slots; 0 = kTileBlocks.

  std::uint64_t& of(ArenaPart part);
  std::uint64_t of(ArenaPart part) const;
  bool operator==(const DeviceArenaSizes&) const = default;
};

struct ArenaPartInfo {
  ArenaPart part;
  const char* name;
  unsigned halves;
  unsigned char byte;  ///< Initial value of every byte.
  const char* what;
};
const std::vector<ArenaPartInfo>& arena_parts();

/// Granularity of the driver's allocations.
inline constexpr std::uint64_t kArenaGrainBytes = 2ull << 20;

/// Offset of each part in an arena, and the size of the arena.
class ArenaLayout {
 public:
  /// header_bytes: size of the header in front of all parts.
  ArenaLayout(const DeviceArenaSizes& sizes, std::uint64_t header_bytes);
  std::uint64_t at(ArenaPart part) const { return at_[static_cast<std::size_t>(part)]; }
  /// Bytes of the whole part, of both halves if it has two.
  std::uint64_t bytes_of(ArenaPart part) const;
  std::uint64_t total_bytes() const { return total_; }

 private:
  std::vector<std::uint64_t> at_;  // By part, then the end of the last part.
  std::uint64_t total_ = 0;
};

/// Intended use of the arenas of a communicator; the same on all ranks.
struct ArenaUse {
  int ranks = 2;
  bool two_tiers = false;     ///< Small arena at once, large arena with the first large call.
  bool floats_only = false;   ///< No reductions of small integers.
  bool moves_only = false;    ///< A pair of ranks of a larger communicator: reduces nothing.
  int pairs = 0;              ///< Pairs a rank may join later, each with separate memory.
  unsigned tiled_blocks = 0;  ///< Most blocks of a tiled call; 0 = tiled kernels do not run here.
  bool exchanges = false;     ///< Copy engines serve all collectives.
  bool rings = false;         ///< Copy engines serve all_gathers of more than two ranks.
  std::uint64_t message_slot_bytes = 0;  ///< Full size or nothing.
  std::uint64_t message_packet_bytes = 0;
  bool plans = false;              ///< Plans may run.
  std::uint64_t plan_scratch = 0;  ///< Size the user asked for; 0 = a share of the budget.
};

/// A part left out, because less than the part's minimum was left.
struct LackingPart {
  ArenaPart part;
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
  std::string why_not(ArenaPart part, const std::string& who) const;
};

/// Lays out both tiers and all pairs within the budget. Error(invalid_argument) if the budget is
/// too small for small calls.
ArenaTiers lay_out(const ArenaUse& use, std::uint64_t budget_bytes);

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
