// Calls within limits of their own: fewer blocks than the communicator's calls, or data that copy
// engines move. Each limit of blocks has selectors of its own, which go when other limits are in
// use.
#include <algorithm>

#include "base/text.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/gpu/gpu_calls.hpp"
#include "gpu/copy/copy_memory.hpp"
#include "gpu/select/large_steps.hpp"
#include "plait/error.hpp"

namespace plait {

const GpuCalls::LimitedSelectors& GpuCalls::selectors_under(unsigned most_blocks) {
  if (const LimitedSelectors* const known = limited_.find({most_blocks})) return *known;
  const auto under = [&](cuda::Group group) {
    group.most_blocks =
        group.most_blocks == 0 ? most_blocks : std::min(group.most_blocks, most_blocks);
    return selector(std::move(group), nullptr);
  };
  return limited_.add(
      {most_blocks}, {under(cuda_->small_arena_group()), under(cuda_->full_group())}, [](auto&) {});
}

/// Returns none if no engine obeys the limits, or NCCL may be faster within them. Copy engines move
/// the data of a call that wants so, whatever the time; a call that reduces needs kernels anyway.
std::optional<cuda::EngineChoice> GpuCalls::limited_choice(const LimitedRequest& request,
                                                           ArenaTier tier) {
  if (!group_.reach.why_no_kernels.empty()) return std::nullopt;
  const CallLimits& limits = request.limits;
  std::optional<cuda::EngineChoice> choice;
  if (limits.engines_move && !reduces(request.collective)) {
    choice = whole_->best(request, {cuda::copy_exchange_engine().info().name, {}, false});
  } else if (limits.most_blocks != 0) {
    const LimitedSelectors& under = selectors_under(limits.most_blocks);
    choice = chosen(tier == ArenaTier::small ? *under.first : *under.whole, request,
                    options_.forced, Launch::eager);
  } else {
    choice = choose_engine(request, options_.forced, tier, Launch::eager);
  }
  if (!choice || limits.most_blocks == 0) return choice;
  // Pieces that copy engines have moved are reduced by as many blocks as the rank's calls may take.
  if (reduces(request.collective) && &choice->engine->resources() == &cuda::copy_resources())
    return std::nullopt;
  int& blocks = choice->tuning.blocks;
  const int most = static_cast<int>(limits.most_blocks);
  blocks = blocks == 0 ? most : std::min(blocks, most);
  if (!cuda::why_not(*choice->engine, request, choice->tuning, cuda_->full_group()).empty())
    choice.reset();
  return choice;
}

GpuCalls::GpuCall GpuCalls::prepare_limited(const LimitedRequest& request, ArenaTier tier) {
  GpuCall call;
  call.counted->request = request;
  call.counted->tier = tier;
  const std::optional<cuda::EngineChoice> choice = limited_choice(request, tier);
  if (!choice)
    throw Error(ErrorCode::internal,
                text("{}: no engine obeys the call's limits", name_of(request)));
  prepare_choice(call, *choice, tier);
  return call;
}

/// Plans obey no limits.
GpuCalls::Offer GpuCalls::limited_offer(const LimitedRequest& request) {
  Offer made;
  const auto failure = attempt([&] {
    if (request.count == 0) return;
    const bool by_copies =
        cuda_->has_lazy_arena() && request.limits.engines_move && !reduces(request.collective);
    const bool is_large = by_copies || steps_needed(request, {}) != 0;
    const std::optional<cuda::EngineChoice> choice = limited_choice(request, tier_of(is_large));
    made.is_taken = choice.has_value();
    if (choice && is_large)
      made.large_steps = cuda::large_steps_of(*choice, request, cuda_->full_group());
  });
  return failure ? Offer() : made;
}

}  // namespace plait
