// The parameters that a topology may have (parameters.def), and the defaults.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "plait/topology.hpp"

namespace plait {

struct ParameterKind {
  const char* key;
  double otherwise;      ///< default; NaN = derived from other parameters, or unused
  const char* fallback;  ///< the default in words; empty = the number
};

/// Returns all parameters in the order of the list.
const std::vector<ParameterKind>& parameter_kinds();
/// Returns the topology's value, else the default. Error(internal) if the list has no default.
double parameter(const Topology& topology, std::string_view key);
/// Returns the fault of a name; empty for names in the list or of a mask.
std::string unknown_parameter(const std::string& key);

}  // namespace plait
