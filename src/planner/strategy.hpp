// What a strategy is: a name, the parameters worth trying, and a function that writes its plan.
// One file a strategy; strategies.def lists them, and nothing else knows them by name.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/builder.hpp"

namespace plait {

using Params = std::map<std::string, std::int64_t>;

struct Strategy {
  StrategyInfo info;
  /// Parameter sets worth trying for this request, the likeliest first. At least one.
  std::vector<Params> (*candidates)(const Topology& topology, const Request& request);
  /// The builder's request is checked(), `params` may lack any name (each has a default) but holds
  /// no unknown one. Throws Error(unsupported) with the reason to refuse.
  void (*write)(Builder& builder, const Params& params);
  /// The parameters it knows; empty = those that its default plan and its candidates name.
  std::vector<std::string> parameters = {};
  /// Sends between nodes by a library, as it is done; others' plans would by links of their own.
  bool uses_library = false;

  Plan build(const Topology& topology, const Request& request, const Params& params) const;
};

/// A parameter's value within limits, or `otherwise` where it is not given;
/// Error(invalid_argument) outside.
int param_in(const Params& params, const std::string& name, int otherwise, int least, int most);
/// The whole message (or block) of a request.
Range whole_range(const Request& request);
/// The same range of one of the blocks that lie one after another in a buffer.
Range in_block(const Request& request, int block, Range range);
/// The one-rank plan of any collective: the input, reduced alone where the collective reduces.
void alone(Builder& builder);

// Every strategy, each defined in the file of its name.
#define PLAIT_STRATEGY(name) const Strategy& name##_strategy();
#include "planner/strategies.def"
#undef PLAIT_STRATEGY

const std::vector<const Strategy*>& all_strategies();

}  // namespace plait
