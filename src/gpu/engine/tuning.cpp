// Reads params.def into tables.
#include "gpu/engine/tuning.hpp"

#include <algorithm>

#include "base/env.hpp"
#include "base/text.hpp"
#include "plait/error.hpp"
#include "plan/former_names.hpp"

namespace plait::cuda {
namespace {

struct ParamRow {
  int Tuning::* field;
  const char* name;
  int unset, most, grain;
  const char* engines;  ///< "tiled | scatter_ring", or "all".
  const char* meaning;
};
constexpr ParamRow kParamRows[] = {
#define PLAIT_PARAM(name, unset, most, grain, engines, meaning) \
  {&Tuning::name, #name, unset, most, grain, #engines, meaning},
#include "gpu/engine/params.def"
#undef PLAIT_PARAM
};

std::vector<std::string> names_in(const std::string& engines) {
  std::vector<std::string> names;
  for (std::string name : split(engines, '|')) {
    name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
    names.push_back(name);
  }
  return names;
}

bool takes(const Param& param, const std::string& engine) {
  const auto has = [&](const std::string& name) {
    return std::find(param.engines.begin(), param.engines.end(), name) != param.engines.end();
  };
  return has(engine) || has("all");
}

std::string names_for(const std::string& engine) {
  std::string names;
  for (const Param& one : params())
    if (takes(one, engine)) names += text("{}{}", names.empty() ? "" : ", ", one.name);
  return names;
}

}  // namespace

const std::vector<Param>& params() {
  static const std::vector<Param> all = [] {
    std::vector<Param> made;
    for (const ParamRow& row : kParamRows)
      made.push_back(
          {row.name, row.unset, row.most, row.grain, names_in(row.engines), row.meaning});
    return made;
  }();
  return all;
}

Tuning tuning_from(const std::string& engine, const std::map<std::string, std::int64_t>& given) {
  Tuning tuning;
  for (const auto& [name, value] : given) {
    if (const std::string why = why_removed(engine, name, value); !why.empty())
      throw Error(ErrorCode::invalid_argument, why);
    const auto found = std::find_if(params().begin(), params().end(),
                                    [&](const Param& one) { return one.name == name; });
    if (found == params().end() || !takes(*found, engine))
      throw Error(ErrorCode::invalid_argument, text("parameter of {}: wanted one of {}, found {}",
                                                    engine, names_for(engine), name));
    if (value < 0 || value > found->most)
      throw Error(
          ErrorCode::invalid_argument,
          text("{}: wanted a whole number from 0 to {}, found {}", name, found->most, value));
    if (value % found->grain != 0)
      throw Error(ErrorCode::invalid_argument,
                  text("{}: wanted a multiple of {}, found {}", name, found->grain, value));
    tuning.*kParamRows[found - params().begin()].field = static_cast<int>(value);
  }
  return tuning;
}

std::map<std::string, std::int64_t> params_of(const Tuning& tuning) {
  std::map<std::string, std::int64_t> set;
  for (const ParamRow& row : kParamRows)
    if (tuning.*row.field != row.unset) set[row.name] = tuning.*row.field;
  return set;
}

}  // namespace plait::cuda
