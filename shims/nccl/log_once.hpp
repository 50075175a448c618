// Lines that would come again with each call or communicator are printed once.
#pragma once
#include <mutex>
#include <set>
#include <string>

namespace plait::nccl {

/// True the first time a line is asked for, as far as these are remembered.
inline bool first_time(const std::string& line) {
  static std::mutex guard;
  static auto* const said = new std::set<std::string>;  // kept: calls come until the process ends
  const std::lock_guard<std::mutex> hold(guard);
  return said->size() < 10000 && said->insert(line).second;
}

}  // namespace plait::nccl
