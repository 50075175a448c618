// The list of engines, and the checks common to all engines.
#include "gpu/select/engines.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "plan/former_names.hpp"
#include "plan/sum_order.hpp"

namespace plait::cuda {

const std::vector<const Engine*>& engines() {
  static const std::vector<const Engine*> all{
#define PLAIT_ENGINE(name) &name##_engine(),
#include "gpu/select/engines.def"
#undef PLAIT_ENGINE
  };
  return all;
}

const Engine* engine_named(const std::string& name, const Request& request) {
  if (name == "rotation")
    return request.ranks == 2                             ? &copy_exchange_engine()
           : request.collective == Collective::all_gather ? &copy_ring_engine()
                                                          : &copy_rotation_engine();
  const std::string now = name_now(name);
  const auto found = std::find_if(engines().begin(), engines().end(),
                                  [&](const Engine* engine) { return engine->info().name == now; });
  return found == engines().end() ? nullptr : *found;
}

std::string engine_names() {
  std::string names;
  for (const Engine* engine : engines())
    names += text("{}{}", names.empty() ? "" : ", ", engine->info().name);
  return names;
}

std::vector<std::string> engines_of(const Param& param) {
  if (param.engines != std::vector<std::string>{"all"}) return param.engines;
  std::vector<std::string> names;
  for (const Engine* engine : engines()) names.push_back(engine->info().name);
  return names;
}

std::string why_not(const Engine& engine, const Request& request, const Tuning& tuning,
                    const Group& group) {
  if (request.ranks != group.ranks)
    return text("the request is for {} ranks, the group has {}", request.ranks, group.ranks);
  const std::vector<Collective>& served = engine.info().collectives;
  if (std::find(served.begin(), served.end(), request.collective) == served.end())
    return text("it does not serve {}", name_of(request.collective));
  if (!request.counts.empty() && !engine.takes_counts())
    return text("it serves blocks of one size, and not {}", name_of(request));
  if (is_in_tree(request, group.sum_order)) {
    if (const std::string why = why_not_order(request, group.sum_order); !why.empty()) return why;
    if (!engine.sums_in_trees(request, group))
      return text("it does not sum in the order {}", name_of(group.sum_order));
  }
  const std::string why = why_no_host_part(engine, request, tuning, group);
  return why.empty() ? engine.why_not(request, tuning, group) : why;
}

}  // namespace plait::cuda
