// The list of all strategies, in the order they are shown.
#include "planner/strategy.hpp"

namespace plait {

std::int64_t param_or(const Params& params, const std::string& name, std::int64_t otherwise) {
  const auto found = params.find(name);
  return found == params.end() ? otherwise : found->second;
}

const std::vector<const Strategy*>& all_strategies() {
  static const std::vector<const Strategy*> all{
      &one_shot_strategy(),     &two_shot_strategy(),
      &direct_strategy(),       &flat_strategy(),
      &hierarchical_strategy(), &pairwise_strategy(),
      &ring_strategy(),         &recursive_doubling_strategy(),
      &rabenseifner_strategy(), &tree_strategy(),
      &bruck_strategy(),        &staged_strategy(),
      &rerouted_strategy(),     &striped_strategy(),
  };
  return all;
}

std::vector<StrategyInfo> strategies() {
  std::vector<StrategyInfo> infos;
  for (const Strategy* strategy : all_strategies()) infos.push_back(strategy->info);
  return infos;
}

}  // namespace plait
