// How an engine does a call, as params.def lists it: one table for callers' params, tuning files,
// the command line and the docs.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace plait::cuda {

struct Tuning {
#define PLAIT_PARAM(name, unset, most, grain, engines, meaning) int name = unset;
#include "exec/cuda/params.def"
#undef PLAIT_PARAM
  bool operator==(const Tuning&) const = default;
};

/// A row of params.def.
struct Param {
  std::string name;
  int unset = 0;
  int most = 0;
  int grain = 1;
  std::vector<std::string> engines;
  std::string meaning;
};
const std::vector<Param>& params();

/// Throws Error(invalid_argument) that lists what there is: a name that the engine does not take, a
/// value out of range.
Tuning tuning_from(const std::string& engine, const std::map<std::string, std::int64_t>& given);
/// What is set of it.
std::map<std::string, std::int64_t> params_of(const Tuning& tuning);

}  // namespace plait::cuda
