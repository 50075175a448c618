// Lists the engine calls that `plait verify --all` and the tests prove: every engine, every
// collective, 2 to 8 and 16 ranks, odd sizes, the limits of each parameter, small and large arenas,
// and calls of each engine followed by calls of every other engine.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "gpu/engine/engine.hpp"
#include "gpu/select/usual_group.hpp"
#include "plait/plan.hpp"

namespace plait::cuda {

struct EngineCase {
  std::string engine;
  std::string label;
  std::vector<std::function<Plan()>>
      calls;  ///< A single call, or several in a row that cases of their own prove too.
  bool in_graphs = false;  ///< Also ends if a graph puts all streams into a single branch.
};

/// Making a plan throws Error(unsupported) if the engine does not serve the case.
std::vector<EngineCase> engine_cases();

/// Default tuning, then the minimum and maximum of each parameter of the engine in turn. Launch
/// parameters are left out, since plans do not show them.
std::vector<Tuning> corners(const Engine& engine, const Request& request);

/// Group with slots of two pages and little host memory: small messages take many pieces and reuse
/// every slot.
Group tiny_group(int ranks);
/// The tiny group of ranks whose GPUs do not address each other.
Group host_group(int ranks);
/// Group with an SM budget. Copy engines then have slots for every collective.
Group budget_group(int ranks);

/// Topology of GPUs that all see each other and a common host. Engines need no more of a machine.
Topology linked_machine(int gpus);

}  // namespace plait::cuda
