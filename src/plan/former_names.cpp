// The tables of former names and of removed parameters.
#include "plan/former_names.hpp"

#include <set>

#include "base/text.hpp"

namespace plait {

const std::map<std::string, std::string>& former_names() {
  static const std::map<std::string, std::string> names{{"hop", "direct_ll"},
                                                        {"line_chain", "ll_chain"}};
  return names;
}

std::string name_now(const std::string& name) {
  const auto found = former_names().find(name);
  return found == former_names().end() ? name : found->second;
}

std::string why_removed(const std::string& engine, const std::string& param, std::int64_t value) {
  static const std::set<std::string> schedules{"fold", "ring", "pull", "under_way_kib",
                                               "copied_results"};
  const bool has_order = engine == "tiled" || engine == "scatter_ring";
  const bool is_order = has_order && param == "order" && (value == 1 || value == 3);
  if (!is_order && (engine != "tiled" || !schedules.contains(param))) return "";
  return text(
      "{}={} of {}: removed in 0.2.0, since no measured row chose this schedule: leave it out, and "
      "write a tuning table that has it anew by `plait tune`",
      param, value, engine);
}

}  // namespace plait
