// The table of former names.
#include "plan/former_names.hpp"

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

}  // namespace plait
