// SM shares of calls, derived from the values in Group.
#include "gpu/engine/group.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace plait::cuda {

std::string Group::why_no_part(const ArenaPart& part) const {
  if (sizes[part] != 0) return "";
  const std::string why = tiers.why_not(part, "it");
  if (!why.empty()) return why;
  return has_small_arena_alone && tiers.large[part] != 0
             ? text("it wants {}, which come with the first large call outside a capture",
                    part.what)
             : text("there are no {}", part.what);
}

unsigned Group::blocks(const Tuning& tuning) const {
  if (tuning.blocks != 0) return std::min(static_cast<unsigned>(tuning.blocks), multiprocessors);
  return most_blocks != 0 ? std::min(most_blocks, multiprocessors) : multiprocessors;
}

unsigned Group::blocks_leaving_sms() const {
  constexpr unsigned kReservedSms = 16;
  return multiprocessors > kReservedSms ? multiprocessors - kReservedSms : 1;
}

unsigned Group::most_threads(bool is_lean) const {
  const bool half_the_gpu = most_blocks != 0 && 2 * most_blocks <= multiprocessors;
  return is_lean || half_the_gpu ? 512 : 256;
}

}  // namespace plait::cuda
