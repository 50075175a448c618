// Lists for the info of engines.
#include "gpu/engine/engine.hpp"

namespace plait::cuda {

std::vector<Collective> all_collectives() {
  return {
#define PLAIT_COLLECTIVE(name, input, output, busbw) Collective::name,
#include "plait/collectives.def"
#undef PLAIT_COLLECTIVE
  };
}

}  // namespace plait::cuda
