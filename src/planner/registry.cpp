// The list of all strategies, as strategies.def has it, and what they share.
#include "base/text.hpp"
#include "plait/error.hpp"
#include "planner/strategy.hpp"

namespace plait {

Plan Strategy::build(const Topology& topology, const Request& request, const Params& params) const {
  Builder builder(topology, request, info.name);
  write(builder, params);
  return builder.build();
}

int param_in(const Params& params, const std::string& name, int otherwise, int least, int most) {
  const auto found = params.find(name);
  const std::int64_t value = found == params.end() ? otherwise : found->second;
  if (value < least || value > most)
    throw Error(ErrorCode::invalid_argument,
                text("wanted ", name, " in ", least, "..", most, ", found ", value));
  return static_cast<int>(value);
}

Range whole_range(const Request& request) { return {0, request.count * bytes_of(request.type)}; }

Range in_block(const Request& request, int block, Range range) {
  const std::uint64_t block_bytes = request.count * bytes_of(request.type);
  return {static_cast<std::uint64_t>(block) * block_bytes + range.offset, range.bytes};
}

void alone(Builder& builder) {
  const Range whole = whole_range(builder.request());
  const int lane = builder.lane(0, LaneKind::kernel, "alone");
  if (reduces(builder.request().collective))
    builder.reduce(lane, builder.output(0, whole), {builder.input(0, whole)});
  else
    builder.copy(lane, builder.output(0, whole), builder.input(0, whole));
}

const std::vector<const Strategy*>& all_strategies() {
  static const std::vector<const Strategy*> all{
#define PLAIT_STRATEGY(name) &name##_strategy(),
#include "planner/strategies.def"
#undef PLAIT_STRATEGY
  };
  return all;
}

std::vector<StrategyInfo> strategies() {
  std::vector<StrategyInfo> infos;
  for (const Strategy* strategy : all_strategies()) infos.push_back(strategy->info);
  return infos;
}

}  // namespace plait
