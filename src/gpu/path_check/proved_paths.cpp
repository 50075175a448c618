// Keeps the proved pairs of GPUs for the life of the process.
#include "gpu/path_check/proved_paths.hpp"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

namespace plait::cuda {
namespace {

struct ProvedPairs {
  std::mutex guard;
  std::set<std::pair<std::string, std::string>> all;
};

/// A single object per process, never destroyed.
ProvedPairs& proved() {
  static auto* const only = new ProvedPairs;
  return *only;
}

std::vector<std::pair<std::string, std::string>> pairs_of(const std::vector<std::string>& gpus) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& one : gpus)
    for (const std::string& other : gpus)
      if (one < other) pairs.emplace_back(one, other);
  return pairs;
}

}  // namespace

void note_proved_paths(const std::vector<std::string>& gpus) {
  const std::lock_guard<std::mutex> hold(proved().guard);
  for (const auto& pair : pairs_of(gpus)) proved().all.insert(pair);
}

bool are_paths_proved(const std::vector<std::string>& gpus) {
  const std::lock_guard<std::mutex> hold(proved().guard);
  const auto pairs = pairs_of(gpus);
  return !pairs.empty() && std::all_of(pairs.begin(), pairs.end(), [](const auto& pair) {
    return proved().all.contains(pair);
  });
}

}  // namespace plait::cuda
