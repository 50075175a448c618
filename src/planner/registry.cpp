// The list of all strategies, from strategies.def and add_strategy(), and functions that strategies
// share.
#include <algorithm>
#include <deque>
#include <mutex>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plan/blocks.hpp"
#include "planner/strategy.hpp"

namespace plait {
namespace {

struct UserStrategies {
  std::mutex mutex;
  std::deque<Strategy> ever;             // never erased: a pointer may be in use
  std::vector<const Strategy*> current;  // the newest strategy of each name
};

UserStrategies& added() {
  static UserStrategies* const all =
      new UserStrategies;  // never deleted: threads may outlive static objects
  return *all;
}

const Strategy* named(const std::vector<const Strategy*>& list, const std::string& name) {
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](const Strategy* one) { return one->info.name == name; });
  return found == list.end() ? nullptr : *found;
}

}  // namespace

Plan Strategy::build(const Topology& topology, const Request& request, const Params& params) const {
  Builder builder(topology, request, info.name);
  write(builder, params);
  return builder.build();
}

Plan plan_and_steps(const Strategy& strategy, const Topology& topology, const Request& request,
                    const Params& params, std::vector<NodeStep>& steps) {
  Builder builder(topology, request, strategy.info.name);
  builder.collect_steps(&steps);
  strategy.write(builder, params);
  return builder.build();
}

Plan plan_with_steps(const Strategy& strategy, const Topology& topology, const Request& request,
                     const Params& params, std::vector<NodeStep>& steps) {
  Builder builder(topology, request, strategy.info.name);
  builder.collect_steps(&steps, true);
  strategy.write(builder, params);
  return builder.build();
}

int param_in(const Params& params, const std::string& name, int otherwise, int least, int most) {
  const auto found = params.find(name);
  const std::int64_t value = found == params.end() ? otherwise : found->second;
  if (value < least || value > most)
    throw Error(ErrorCode::invalid_argument,
                text("wanted {} in {}..{}, found {}", name, least, most, value));
  return static_cast<int>(value);
}

Range whole_range(const Request& request) { return {0, request.count * bytes_of(request.type)}; }

Range in_block(const Request& request, int block, Range range) {
  if (block < 0 || block >= request.ranks)
    throw Error(ErrorCode::invalid_argument,
                text("wanted a block in 0..{}, found {}", request.ranks - 1, block));
  const std::uint64_t block_bytes = request.count * bytes_of(request.type);
  if (request.counts.empty())
    return {static_cast<std::uint64_t>(block) * block_bytes + range.offset, range.bytes};
  const bool is_sent =
      request.collective == Collective::reduce_scatter || request.collective == Collective::scatter;
  return part_of(is_sent ? sent_block(request, request.root, block)
                         : received_block(request, block, request.root),
                 range);
}

void alone(Builder& builder) {
  const Range whole = whole_range(builder.request());
  const int lane = builder.lane(0, LaneKind::kernel, "alone");
  if (reduces(builder.request().collective))
    builder.reduce(lane, builder.output(0, whole), {builder.input(0, whole)});
  else
    builder.copy(lane, builder.output(0, whole), builder.input(0, whole));
}

void add_strategy(Strategy strategy) {
  if (strategy.info.name.empty() || !strategy.candidates || !strategy.write)
    throw Error(ErrorCode::invalid_argument,
                text("a strategy: wanted a name, candidates and a function that writes its plan, "
                     "found one without (name \"{}\")",
                     strategy.info.name));
  if (named(own_strategies(), strategy.info.name) != nullptr)
    throw Error(ErrorCode::invalid_argument,
                text("a strategy: wanted a name of its own, found \"{}\", which is plait's",
                     strategy.info.name));
  const std::lock_guard lock(added().mutex);
  const Strategy& added_one = added().ever.emplace_back(std::move(strategy));
  std::erase_if(added().current,
                [&](const Strategy* one) { return one->info.name == added_one.info.name; });
  added().current.push_back(&added_one);
}

const std::vector<const Strategy*>& own_strategies() {
  static const std::vector<const Strategy*> all{
#define PLAIT_STRATEGY(name) &name##_strategy(),
#include "planner/strategies.def"
#undef PLAIT_STRATEGY
  };
  return all;
}

std::vector<const Strategy*> all_strategies() {
  std::vector<const Strategy*> all = own_strategies();
  const std::lock_guard lock(added().mutex);
  all.insert(all.end(), added().current.begin(), added().current.end());
  return all;
}

std::vector<StrategyInfo> strategies() {
  std::vector<StrategyInfo> infos;
  for (const Strategy* strategy : all_strategies()) infos.push_back(strategy->info);
  return infos;
}

}  // namespace plait
