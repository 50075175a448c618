// Strategy: a name, parameter sets worth trying, and a function that writes a plan. plait's own
// strategies are a file each in src/planner/; a program adds more by add_strategy().
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
  /// Returns parameter sets worth trying for a request, the most promising first; at least one.
  std::function<std::vector<Params>(const Topology& topology, const Request& request)> candidates;
  /// Writes the plan. The builder's request is checked(). `params` holds known names only, and may
  /// lack any name: each has a default. Throws Error(unsupported) with a reason to refuse.
  std::function<void(Builder& builder, const Params& params)> write;
  /// Names of parameters; empty = the names of the default plan and of the candidates.
  std::vector<std::string> parameters = {};
  /// True if plans send between nodes by the library (NCCL or MPI), and not over links.
  bool uses_library = false;
  /// True if the strategy takes blocks with a count each (Request::counts).
  bool takes_counts = false;

  Plan build(const Topology& topology, const Request& request, const Params& params) const;
};

/// Adds a strategy to strategies(), propose(), ranked() and propose_one(). Calls that name the
/// strategy run its plans, once proved. Calls that name no strategy never use an added strategy,
/// since ranks may have added different strategies. All ranks of a communicator must add the same.
/// A second strategy of the same name replaces the first for plans not yet made.
/// Error(invalid_argument) for a name of plait's own strategies, and for a strategy without
/// functions.
void add_strategy(Strategy strategy);

/// Returns a parameter's value, or `otherwise` if not given. Error(invalid_argument) outside
/// [least, most].
int param_in(const Params& params, const std::string& name, int otherwise, int least, int most);
/// Returns the whole message (or block) of a request, in bytes; if counts differ, the largest
/// block.
Range whole_range(const Request& request);
/// Returns `range` of block `block` as offsets into the buffer of consecutive blocks, cut to the
/// block's size.
Range in_block(const Request& request, int block, Range range);
/// Writes the plan of any collective on a single rank: a copy, or a reduction of a single input.
void alone(Builder& builder);

}  // namespace plait
