// Names and defaults of parameters, from parameters.def.
#include "topo/parameters.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

constexpr double kDerived = std::numeric_limits<double>::quiet_NaN();

/// Parameters up to version 0.1 that files may still state and nothing reads: prices of schedules
/// of `tiled`.
constexpr std::string_view kFormer[] = {"tile_xor_share", "tile_phase_ns", "tile_pull_share",
                                        "tile_load_share"};

const ParameterKind* find(std::string_view key) {
  const std::vector<ParameterKind>& kinds = parameter_kinds();
  const auto found = std::find_if(kinds.begin(), kinds.end(),
                                  [&](const ParameterKind& kind) { return key == kind.key; });
  return found == kinds.end() ? nullptr : &*found;
}

}  // namespace

const std::vector<ParameterKind>& parameter_kinds() {
  static const std::vector<ParameterKind> kinds = {
#define PLAIT_PARAMETER(key, otherwise, fallback, meaning) {#key, otherwise, fallback},
#include "topo/parameters.def"
#undef PLAIT_PARAMETER
  };
  return kinds;
}

double parameter(const Topology& topology, std::string_view key) {
  const double stated = parameter(topology, key, kDerived);
  if (!std::isnan(stated)) return stated;
  const ParameterKind* kind = find(key);
  if (kind == nullptr || std::isnan(kind->otherwise))
    throw Error(ErrorCode::internal, text("wanted a parameter with a default, found {}", key));
  return kind->otherwise;
}

std::string unknown_parameter(const std::string& key) {
  if (key.starts_with("no_relay.") || key.starts_with("no_link.") || find(key) != nullptr)
    return {};
  if (std::find(std::begin(kFormer), std::end(kFormer), key) != std::end(kFormer)) return {};
  std::string names;
  for (const ParameterKind& kind : parameter_kinds()) names += text("{}, ", kind.key);
  return text("wanted one of {}no_relay.N, no_link.A.B, found {}", names, key);
}

}  // namespace plait
