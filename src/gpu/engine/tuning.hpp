// Engine parameters of params.def: a single table for callers' params, tuning files, the command
// line and the docs.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace plait::cuda {

struct Tuning {
#define PLAIT_PARAM(name, unset, most, grain, engines, meaning) int name = unset;
#include "gpu/engine/params.def"
#undef PLAIT_PARAM
  bool operator==(const Tuning&) const = default;
};

/// Row of params.def.
struct Param {
  std::string name;
  int unset = 0;
  int most = 0;
  int grain = 1;
  std::vector<std::string> engines;
  std::string meaning;
};
const std::vector<Param>& params();

/// Throws Error(invalid_argument) for a name that the engine does not take or a value out of range;
/// the message lists the valid names or the range.
Tuning tuning_from(const std::string& engine, const std::map<std::string, std::int64_t>& given);
/// Parameters that are set.
std::map<std::string, std::int64_t> params_of(const Tuning& tuning);

}  // namespace plait::cuda
