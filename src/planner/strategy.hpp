// What a strategy is: a name, the parameters worth trying, and a function from request to plan.
// One file a strategy; registry.cpp lists them, and nothing else knows them by name.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plait/plan.hpp"

namespace plait {

using Params = std::map<std::string, std::int64_t>;

struct Strategy {
  StrategyInfo info;
  /// Parameter sets worth trying for this request, the likeliest first. At least one.
  std::vector<Params> (*candidates)(const Topology& topology, const Request& request);
  /// `request` is checked(), `params` may lack any name (each has a default) but holds no unknown
  /// one. Throws Error(unsupported) with the reason to refuse.
  Plan (*build)(const Topology& topology, const Request& request, const Params& params);
  /// The parameters it knows; empty = those that its default plan and its candidates name.
  std::vector<std::string> parameters = {};
};

/// A parameter's value, or `otherwise` where it is not given.
std::int64_t param_or(const Params& params, const std::string& name, std::int64_t otherwise);

// Every strategy, each defined in the file of its name.
const Strategy& one_shot_strategy();
const Strategy& two_shot_strategy();
const Strategy& direct_strategy();
const Strategy& flat_strategy();
const Strategy& hierarchical_strategy();
const Strategy& pairwise_strategy();
const Strategy& ring_strategy();
const Strategy& recursive_doubling_strategy();
const Strategy& rabenseifner_strategy();
const Strategy& staged_strategy();
const Strategy& rerouted_strategy();
const Strategy& striped_strategy();  ///< copies for buffers that all ranks can reach
const Strategy& tree_strategy();     ///< broadcast, reduce, gather, scatter by binomial trees
const Strategy& bruck_strategy();    ///< all_gather and all_to_all in log2(n) rounds

const std::vector<const Strategy*>& all_strategies();

}  // namespace plait
