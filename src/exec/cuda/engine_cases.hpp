// Which calls of engines `plait verify --all` proves, and the tests with it: every engine, every
// collective, 2 to 8 ranks and 16, odd sizes, the corners of what may be tuned, small and large
// arenas; and calls in a row, each engine's behind each other one's.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "exec/cuda/engine.hpp"
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

/// Nothing tuned; then the least and the most that each parameter of the engine takes, one at a
/// time. How a kernel is spread does not show in its plan.
std::vector<Tuning> corners(const Engine& engine, const Request& request);

/// With slots of two pages and little host memory: small messages take many pieces, and each slot
/// is used again.
Group tiny_group(int ranks);
/// Under a budget of SMs copy engines have slots for every collective.
Group budget_group(int ranks);

/// GPUs that all see each other and one host: engines ask no more of a machine.
Topology linked_machine(int gpus);

}  // namespace plait::cuda
