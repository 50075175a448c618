// The engines of engines.def, and the checks common to all engines.
#pragma once
#include <string>
#include <vector>

#include "gpu/engine/engine.hpp"
#include "gpu/host_path/with_host_part.hpp"

namespace plait::cuda {

#define PLAIT_ENGINE(name) const Engine& name##_engine();
#include "gpu/select/engines.def"
#undef PLAIT_ENGINE
const std::vector<const Engine*>& engines();
/// Returns the engine of this name, or of this former name (plan/former_names.hpp); "rotation" is
/// the copy engine that serves the request. Null = none.
const Engine* engine_named(const std::string& name, const Request& request);
/// "one_shot, two_shot, ...".
std::string engine_names();
/// Engines that take the parameter, by name.
std::vector<std::string> engines_of(const Param& param);

/// Reason to refuse the request: first the checks common to all engines (ranks, host-memory parts),
/// then the engine's own. Empty = served.
std::string why_not(const Engine& engine, const Request& request, const Tuning& tuning,
                    const Group& group);

}  // namespace plait::cuda
