// Reads choices.def.
#include "exec/cuda/choices.hpp"

namespace plait::cuda {

bool FusedChoice::is_about(const Request& request) const {
  if (collective != request.collective || request.ranks > ranks) return false;  // of most rows
  const std::uint64_t bytes = message_bytes(request);
  return bytes >= from_bytes && bytes <= upto_bytes;
}

std::span<const FusedChoice> choices() {
  constexpr std::uint64_t kAnySize = ~std::uint64_t{0};
  constexpr unsigned kAnyBudget = ~0u;
  static constexpr FusedChoice kChoices[] = {
#define PLAIT_CHOICE(collective, ranks, upto_bytes, kernel, ahead) \
  {Collective::collective, ranks, 0, upto_bytes, #kernel, ahead == 1, 0},
#define PLAIT_BUDGET_CHOICE(collective, ranks, most_blocks, from_bytes, kernel, ahead) \
  {Collective::collective, ranks, from_bytes, kAnySize, #kernel, ahead == 1, most_blocks},
#include "exec/cuda/choices.def"
#undef PLAIT_BUDGET_CHOICE
#undef PLAIT_CHOICE
  };
  return kChoices;
}

std::string usual_kernel(const Request& request) {
  if (request.ranks < 2 || request.count == 0) return "";
  for (const FusedChoice& choice : choices())
    if (choice.most_blocks == 0 && choice.is_about(request)) return choice.kernel;
  return "";
}

}  // namespace plait::cuda
