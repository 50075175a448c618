// Flags, memory and kernels of all rooms, from the rows of the engines and of plans, messages and
// the path check.
#pragma once
#include <vector>

#include "gpu/engine/resources.hpp"

namespace plait::cuda {

/// In memory order: every room of engines.def once, then the others.
const std::vector<const Resources*>& all_resources();
/// Flags and parts of an arena, in memory order.
const ArenaContents& arena_contents();
/// Families that the set-up probes.
const std::vector<const KernelFamily*>& kernel_families();

}  // namespace plait::cuda
