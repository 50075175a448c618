// Names of engines and of parameters up to version 0.1, in recorded rows, tuning tables, stored
// plans and programs.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace plait {

/// "hop" -> "direct_ll", "line_chain" -> "ll_chain".
const std::map<std::string, std::string>& former_names();
/// Today's name of an engine, from today's name or a former one; any other name unchanged.
std::string name_now(const std::string& name);
/// Sentence for an error if `engine` took the parameter with this value before 0.2.0 and does not
/// any more: the removed schedule, and what to do. "" for any other parameter or value.
std::string why_removed(const std::string& engine, const std::string& param, std::int64_t value);

}  // namespace plait
