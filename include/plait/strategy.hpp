// What a strategy is: a name, the parameters worth trying, and a function that writes its plan.
// Plait's own are one file each in src/planner/; a program adds its own by add_strategy().
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "plait/builder.hpp"

namespace plait {

using Params = std::map<std::string, std::int64_t>;

struct Strategy {
  StrategyInfo info;
  /// Parameter sets worth trying for this request, the likeliest first. At least one.
  std::function<std::vector<Params>(const Topology& topology, const Request& request)> candidates;
  /// The builder's request is checked(), `params` may lack any name (each has a default) but holds
  /// no unknown one. Throws Error(unsupported) with the reason to refuse.
  std::function<void(Builder& builder, const Params& params)> write;
  /// The parameters it knows; empty = those that its default plan and its candidates name.
  std::vector<std::string> parameters = {};
  /// Sends between nodes by a library, as it is done; others' plans would by links of their own.
  bool uses_library = false;
  /// Plans blocks that have a count each (Request::counts).
  bool takes_counts = false;

  Plan build(const Topology& topology, const Request& request, const Params& params) const;
};

/// Makes a strategy known: strategies(), propose(), ranked() and propose_one() have it, and calls
/// that name it run its plans, once they are proved. Calls that name none never take it, since
/// ranks may differ in what they added. All ranks of a communicator must add the same. A second one
/// of the same name takes the place of the first for plans not yet made.
/// Error(invalid_argument) for a name that is plait's own, and for a strategy without functions.
void add_strategy(Strategy strategy);

/// A parameter's value within limits, or `otherwise` where it is not given;
/// Error(invalid_argument) outside.
int param_in(const Params& params, const std::string& name, int otherwise, int least, int most);
/// The whole message (or block) of a request; of an uneven one, of the largest block.
Range whole_range(const Request& request);
/// The same range of one of the blocks that lie one after another in a buffer; as far as it goes.
Range in_block(const Request& request, int block, Range range);
/// The one-rank plan of any collective: the input, reduced alone where the collective reduces.
void alone(Builder& builder);

}  // namespace plait
