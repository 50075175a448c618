// Which steps of the large arena a call uses (arena/arena_part.hpp), so that ranks make no memory
// that no call of theirs needs. GpuCalls asks before it reserves the arena for a call.
#pragma once
#include "gpu/select/select.hpp"

namespace plait::cuda {

/// Returns the steps that a call of the engine uses, not 0. Depends on the request and the group
/// only. The group: of both tiers.
unsigned large_steps_of(const EngineChoice& choice, const Request& request, const Group& group);

}  // namespace plait::cuda
