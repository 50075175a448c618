// Reads choices.def into arrays.
#include "gpu/select/choices.hpp"

#include <algorithm>

namespace plait::cuda {

bool BuiltInChoice::is_about(const Request& request) const {
  if (collective != request.collective || request.ranks > ranks) return false;
  if (in_graphs_alone && request.ranks != ranks) return false;
  const std::uint64_t bytes = message_bytes(request);
  return bytes >= from_bytes && bytes <= upto_bytes;
}

std::span<const BuiltInChoice> choices() {
  constexpr std::uint64_t kAnySize = ~std::uint64_t{0};
  constexpr unsigned kAnyBudget = ~0u;
  static constexpr BuiltInChoice kChoices[] = {
#define PLAIT_MEASURED_ON(kind, ranks)
#define PLAIT_CHOICE(collective, ranks, upto_bytes, engine, beats_nccl, ...) \
  {Collective::collective, ranks,           0, upto_bytes,                   \
   engine##_engine,        beats_nccl == 1, 0, Tuning{__VA_ARGS__}},
#define PLAIT_BUDGET_CHOICE(collective, ranks, most_blocks, from_bytes, engine, beats_nccl) \
  {Collective::collective, ranks,           from_bytes,  kAnySize,                          \
   engine##_engine,        beats_nccl == 1, most_blocks, {}},
#define PLAIT_GRAPH_CHOICE(collective, ranks, from_bytes, engine, beats_nccl, ...) \
  {Collective::collective, ranks, from_bytes,          kAnySize, engine##_engine,  \
   beats_nccl == 1,        0,     Tuning{__VA_ARGS__}, true},
#include "gpu/select/choices.def"
#undef PLAIT_GRAPH_CHOICE
#undef PLAIT_BUDGET_CHOICE
#undef PLAIT_CHOICE
#undef PLAIT_MEASURED_ON
  };
  return kChoices;
}

std::span<const MeasuredKind> measured_kinds() {
  static constexpr MeasuredKind kKinds[] = {
#define PLAIT_MEASURED_ON(kind, ranks) {kind, ranks},
#define PLAIT_CHOICE(collective, ranks, upto_bytes, engine, beats_nccl, ...)
#define PLAIT_BUDGET_CHOICE(collective, ranks, most_blocks, from_bytes, engine, beats_nccl)
#define PLAIT_GRAPH_CHOICE(collective, ranks, from_bytes, engine, beats_nccl, ...)
#include "gpu/select/choices.def"
#undef PLAIT_GRAPH_CHOICE
#undef PLAIT_BUDGET_CHOICE
#undef PLAIT_CHOICE
#undef PLAIT_MEASURED_ON
  };
  return kKinds;
}

bool is_measured(const std::string& kind, int ranks) {
  const auto kinds = measured_kinds();
  return std::any_of(kinds.begin(), kinds.end(), [&](const MeasuredKind& one) {
    return one.kind == kind && ranks <= one.ranks;
  });
}

bool is_measured_model(const std::string& model, int ranks) {
  const auto kinds = measured_kinds();
  return std::any_of(kinds.begin(), kinds.end(), [&](const MeasuredKind& one) {
    return one.kind.starts_with(model + ",") && ranks <= one.ranks;
  });
}

}  // namespace plait::cuda
