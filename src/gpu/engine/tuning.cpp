// Reads params.def into tables.
#include "gpu/engine/tuning.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

/// A bit per engine, in the order of engines.def.
enum EngineIndex : unsigned {
#define PLAIT_ENGINE(name) at_##name,
#include "gpu/select/engines.def"
#undef PLAIT_ENGINE
};
enum EngineBit : unsigned {
#define PLAIT_ENGINE(name) name = 1u << at_##name,
#include "gpu/select/engines.def"
#undef PLAIT_ENGINE
  all = ~0u
};
constexpr const char* kEngineNames[] = {
#define PLAIT_ENGINE(name) #name,
#include "gpu/select/engines.def"
#undef PLAIT_ENGINE
};

struct ParamRow {
  int Tuning::* field;
  const char* name;
  int unset, most, grain;
  unsigned engine_bits;
  const char* meaning;
};
constexpr ParamRow kParamRows[] = {
#define PLAIT_PARAM(name, unset, most, grain, engines, meaning) \
  {&Tuning::name, #name, unset, most, grain, unsigned{engines}, meaning},
#include "gpu/engine/params.def"
#undef PLAIT_PARAM
};

std::vector<std::string> names_of(unsigned engine_bits) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::size(kEngineNames); ++i)
    if ((engine_bits >> i & 1) != 0) names.emplace_back(kEngineNames[i]);
  return names;
}

bool takes(const Param& param, const std::string& engine) {
  return std::find(param.engines.begin(), param.engines.end(), engine) != param.engines.end();
}

std::string names_for(const std::string& engine) {
  std::string names;
  for (const Param& one : params())
    if (takes(one, engine)) names += text(names.empty() ? "" : ", ", one.name);
  return names;
}

}  // namespace

const std::vector<Param>& params() {
  static const std::vector<Param> all = [] {
    std::vector<Param> made;
    for (const ParamRow& row : kParamRows)
      made.push_back(
          {row.name, row.unset, row.most, row.grain, names_of(row.engine_bits), row.meaning});
    return made;
  }();
  return all;
}

Tuning tuning_from(const std::string& engine, const std::map<std::string, std::int64_t>& given) {
  Tuning tuning;
  for (const auto& [name, value] : given) {
    const auto found = std::find_if(params().begin(), params().end(),
                                    [&](const Param& one) { return one.name == name; });
    if (found == params().end() || !takes(*found, engine))
      throw Error(ErrorCode::invalid_argument, text("parameter of ", engine, ": wanted one of ",
                                                    names_for(engine), ", found ", name));
    if (value < 0 || value > found->most)
      throw Error(ErrorCode::invalid_argument,
                  text(name, ": wanted a whole number from 0 to ", found->most, ", found ", value));
    if (value % found->grain != 0)
      throw Error(ErrorCode::invalid_argument,
                  text(name, ": wanted a multiple of ", found->grain, ", found ", value));
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
