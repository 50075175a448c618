// Names of engines up to version 0.1, in recorded rows, tuning tables, stored plans and programs.
#pragma once
#include <map>
#include <string>

namespace plait {

/// "hop" -> "direct_ll", "line_chain" -> "ll_chain".
const std::map<std::string, std::string>& former_names();
/// Today's name of an engine, from today's name or a former one; any other name unchanged.
std::string name_now(const std::string& name);

}  // namespace plait
