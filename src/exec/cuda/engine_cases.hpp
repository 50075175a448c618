// Which calls of engines `plait verify --all` proves, and the tests with it: every engine, every
// collective, 2 to 8 ranks and 16, odd sizes, the corners of what may be tuned, small and large
// arenas; and calls in a row, each engine's behind each other one's.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "exec/cuda/group.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

struct EngineCase {
  std::string engine;
  std::string label;
  std::vector<std::function<Plan()>>
      calls;               ///< several: in a row, each proved in a case of its own
  bool in_graphs = false;  ///< ends also where a graph lays all streams in one branch
};

/// Making a plan throws Error(unsupported) where the engine does not serve the case.
std::vector<EngineCase> engine_cases();

/// With slots of two pages and little host memory: small messages take many pieces, and each slot
/// is used again.
Group tiny_group(int ranks);

/// GPUs that all see each other and one host: engines ask no more of a machine.
Topology linked_machine(int gpus);

}  // namespace plait::cuda
