// The parameters that a topology may state (parameters.def), and what holds where it does not.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "plait/topology.hpp"

namespace plait {

struct ParameterKind {
  const char* key;
  double otherwise;      ///< NaN where other parameters say, or nobody asks
  const char* fallback;  ///< that in words; empty where it is the number
};

/// All of them, in the order of the list.
const std::vector<ParameterKind>& parameter_kinds();
/// As the topology states it, else the list's own number. Error(internal) where the list has none.
double parameter(const Topology& topology, std::string_view key);
/// What is wrong with a name; empty where the list has it, or it is a mask's.
std::string unknown_parameter(const std::string& key);

}  // namespace plait
