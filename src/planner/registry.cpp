// The list of all strategies, as strategies.def has it.
#include "planner/strategy.hpp"

namespace plait {

std::int64_t param_or(const Params& params, const std::string& name, std::int64_t otherwise) {
  const auto found = params.find(name);
  return found == params.end() ? otherwise : found->second;
}

const std::vector<const Strategy*>& all_strategies() {
  static const std::vector<const Strategy*> all{
#define PLAIT_STRATEGY(name) &name##_strategy(),
#include "planner/strategies.def"
#undef PLAIT_STRATEGY
  };
  return all;
}

std::vector<StrategyInfo> strategies() {
  std::vector<StrategyInfo> infos;
  for (const Strategy* strategy : all_strategies()) infos.push_back(strategy->info);
  return infos;
}

}  // namespace plait
