// What a room of engines needs of every rank: flags, memory and kernels. Each room states its needs
// in a row of its own; the arena, the memory budget and the set-up probe read the rows of all rooms
// (select/all_resources.hpp) and know no room by name.
#pragma once
#include <vector>

#include "gpu/arena/arena_layout.hpp"
#include "gpu/engine/group.hpp"
#include "gpu/engine/kernel_families.hpp"

namespace plait::cuda {

/// Indices (Flag::index) of the flags in plans of a room's engines, from first to before end.
/// Engines that share an arena use separate ranges, so no call seems to wait for another engine's
/// flags.
struct PlanFlagRange {
  int first, end;
};

struct Resources {
  std::vector<const FlagsRow*> flags;
  std::vector<const ArenaPart*> parts;
  /// Sizes that the parts should get in this group. Null = the room has no parts.
  std::vector<PartSize> (*sizes)(const Group& group, const ArenaOptions& wish) = nullptr;
  std::vector<const KernelFamily*> families;
  std::vector<PlanFlagRange> plan_flags;
};

/// Turns of PartSize: the order in which the budget pays the least sizes.
enum MemoryTurn : int {
  kWholeTurn,  ///< The full size or nothing.
  kSmallCallsTurn,
  kAnyCallsTurn,
  kLargeCallsTurn,
  kLargestCallsTurn,
  kLastTurn
};

}  // namespace plait::cuda
