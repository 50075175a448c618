// How a budget of device memory is shared out among the parts of a rank's arena, by name. All ranks
// compute the same from what they have agreed on. Pure arithmetic, so it is tested without a GPU.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace plait::cuda {

enum class ArenaPart : int {
#define PLAIT_ARENA_PART(name, field, halves, byte, what) name,
#include "exec/cuda/device/arena_parts.def"
#undef PLAIT_ARENA_PART
};

/// Bytes of each part; of one in halves, bytes of a half. The same on all ranks.
struct DeviceArenaSizes {
#define PLAIT_ARENA_PART(name, field, halves, byte, what) std::uint64_t field = 0;
#include "exec/cuda/device/arena_parts.def"
#undef PLAIT_ARENA_PART
  std::uint64_t tile_blocks = 0;  ///< that have slots of tiles; 0 = kTileBlocks

  std::uint64_t& of(ArenaPart part);
  std::uint64_t of(ArenaPart part) const;
  bool operator==(const DeviceArenaSizes&) const = default;
};

struct ArenaPartInfo {
  ArenaPart part;
  const char* name;
  unsigned halves;
  unsigned char byte;  ///< what all of it says before the first call
  const char* what;
};
const std::vector<ArenaPartInfo>& arena_parts();

/// The driver hands out memory in such grains.
inline constexpr std::uint64_t kArenaGrainBytes = 2ull << 20;

/// Where each part lies in an arena, and how much the arena takes.
class ArenaLayout {
 public:
  /// header_bytes: of what lies in front of all parts.
  ArenaLayout(const DeviceArenaSizes& sizes, std::uint64_t header_bytes);
  std::uint64_t at(ArenaPart part) const { return at_[static_cast<std::size_t>(part)]; }
  /// Of both halves, where there are two.
  std::uint64_t bytes_of(ArenaPart part) const;
  std::uint64_t total_bytes() const { return total_; }

 private:
  std::vector<std::uint64_t> at_;  // by part, and where the last one ends
  std::uint64_t total_ = 0;
};

/// What the ranks of a communicator will do with their arenas. The same on all ranks.
struct ArenaUse {
  int ranks = 2;
  bool two_tiers = false;     ///< two rooms: what small calls need, and later the rest
  bool floats_only = false;   ///< reductions of small integers are not asked for
  bool moves_only = false;    ///< a pair's: two ranks of a larger communicator that reduce nothing
  int pairs = 0;              ///< that a rank may come to be in, each with memory of its own
  unsigned tiled_blocks = 0;  ///< most blocks of a tiled call; 0 = no tiled kernels run here
  bool exchanges = false;     ///< copy engines serve all collectives
  bool rings = false;         ///< copy engines serve all_gathers of more than two ranks
  std::uint64_t message_slot_bytes = 0;  ///< wanted in full, or not at all
  std::uint64_t message_line_bytes = 0;
  bool plans = false;              ///< plans may run
  std::uint64_t plan_scratch = 0;  ///< asked for by name; 0 = a part of the budget
};

/// A part that was left out, since less than its least was left.
struct LackingPart {
  ArenaPart part;
  std::uint64_t wanted_bytes;  ///< at least, of both halves
  std::uint64_t left_bytes;
};

/// `first` is there when a communicator has been made. Where it grows, `later` has what large calls
/// need, in memory of its own; parts that it lacks are those of `first`.
struct ArenaTiers {
  DeviceArenaSizes small;
  DeviceArenaSizes large;
  std::vector<LackingPart> lacking;
  std::uint64_t pair_bytes = 0;  ///< the budget of each pair, out of this one; 0 = nothing was left
  std::string budget;            ///< for people: "PLAIT_DEVICE_MEMORY=64M"

  /// "" where there is such a part; else why not, as why_not() of an engine says it.
  std::string why_not(ArenaPart part, const std::string& who) const;
};

/// Both rooms and all pairs together take no more than the budget. Error(invalid_argument) where
/// that does not reach for small calls.
ArenaTiers lay_out(const ArenaUse& use, std::uint64_t budget_bytes);

/// Of a communicator on each GPU, where nobody says otherwise: 192 MB of two ranks. Rings of copy
/// engines want pieces of up to 32 MiB, so more ranks have 256 MB (docs/design/memory_tiers.md).
inline constexpr std::uint64_t kUsualMemoryBytes = 183ull << 20;
constexpr std::uint64_t usual_memory_bytes(int ranks) {
  return ranks <= 2 ? kUsualMemoryBytes : 244ull << 20;
}

/// A pair with this has lines alone, and all of it at once.
inline constexpr std::uint64_t kSmallPairBytes = 4ull << 20;

/// Requests of so many bytes and less are served in the first room as well as they ever are. Of
/// more than four ranks its inboxes cut what is not an all_reduce: of eight, sends of 1 MiB take 22
/// us there, 6.9 in the later room, reduces of 512 KiB 13.6 and 10.6 (E-0334).
constexpr std::uint64_t small_request_bytes(int ranks, bool is_all_reduce) {
  return ranks <= 4 || is_all_reduce ? 1ull << 20 : 256ull << 10;
}

/// "64M", "1536K", "192000000": as PLAIT_DEVICE_MEMORY is written.
std::string byte_count_text(std::uint64_t bytes);

}  // namespace plait::cuda
