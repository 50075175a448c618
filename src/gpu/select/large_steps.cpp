// Reads the steps from the parts of the engine's room.
#include "gpu/select/large_steps.hpp"

#include "gpu/host_path/with_host_part.hpp"

namespace plait::cuda {

/// Copy engines borrow slots of tiles. Beside a part through host memory tiles scatter what copy
/// engines bring.
unsigned large_steps_of(const EngineChoice& choice, const Request& request, const Group& group) {
  unsigned steps = 0;
  for (const ArenaPart* const part : choice.engine->resources().parts)
    if (group.tiers.large[*part] != 0) steps |= part->step & kAllLargeSteps;
  if (may_have_host_part(*choice.engine, request, choice.tuning, group)) steps |= kCopyStep;
  if ((steps & kCopyStep) != 0) steps |= kTileStep;
  return steps != 0 ? steps : kAllLargeSteps;
}

}  // namespace plait::cuda
