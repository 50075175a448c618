// Avoids repeated log lines of calls and communicators.
#pragma once
#include <mutex>
#include <set>
#include <string>

namespace plait::nccl {

/// Returns true the first time for each line; remembers at most 10000 lines.
inline bool first_time(const std::string& line) {
  static std::mutex guard;
  static auto* const said = new std::set<std::string>;  // never freed: calls may come during exit
  const std::lock_guard<std::mutex> hold(guard);
  return said->size() < 10000 && said->insert(line).second;
}

}  // namespace plait::nccl
