// Proposes plans: builds every strategy's candidates and sorts by closed-form cost, or builds a
// single named strategy with checked parameters.
#include <algorithm>
#include <set>
#include <utility>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "planner/cost.hpp"
#include "planner/strategy.hpp"

namespace plait {
namespace {

constexpr int kMostRanksBetweenNodes = 16;  // for plans that only the simulator runs
constexpr std::size_t kMostPlans = 24;      // for a request; propose() takes less than 100 ms
constexpr std::size_t kMostOfStrategy = 8;
constexpr std::uint64_t kMostOps = 1 << 20;  // of a plan: about 0.25 GB
constexpr std::uint64_t kCheckedBytes = 8ull << 30, kSampleBytes = 256 << 20, kStep = 8;
// A plan that sums out of rank order must save 10 % of the time.
constexpr double kAlgorithmOrderPenalty = 1.1;

/// Returns why the strategy does not serve the request; empty = it does.
std::string why_not(const Strategy& strategy, const Request& request) {
  const auto& done = strategy.info.collectives;
  if (std::find(done.begin(), done.end(), request.collective) == done.end()) {
    std::string list;
    for (const Collective one : done) list += text("{}{}", list.empty() ? "" : ", ", name_of(one));
    return text("does {}, not {}", list, name_of(request.collective));
  }
  if (request.counts.empty() || strategy.takes_counts) return "";
  return text("does blocks of one size, not {}", name_of(request));
}

std::set<std::string> known_parameters(const Strategy& strategy, const Topology& topology,
                                       const Request& request) {
  if (!strategy.parameters.empty()) return {strategy.parameters.begin(), strategy.parameters.end()};
  std::set<std::string> known;
  for (const Params& params : strategy.candidates(topology, request))
    for (const auto& [name, value] : params) known.insert(name);
  for (const auto& [name, value] : strategy.build(topology, request, {}).params) known.insert(name);
  return known;
}

void check_names(const Strategy& strategy, const Topology& topology, const Request& request,
                 const Params& params) {
  if (params.empty()) return;
  const std::set<std::string> known = known_parameters(strategy, topology, request);
  for (const auto& [name, value] : params) {
    if (known.contains(name)) continue;
    std::string list;
    for (const std::string& one : known) list += text("{}{}", list.empty() ? "" : ", ", one);
    throw Error(
        ErrorCode::invalid_argument,
        text("wanted a parameter of {} (one of {}), found \"{}\"", strategy.info.name, list, name));
  }
}

/// Returns the request with a message of about `bytes`, in parts that divide as well as powers of
/// two do.
Request shortened(const Request& request, std::uint64_t bytes) {
  constexpr std::uint64_t kEven = 64;
  const double share = static_cast<double>(bytes) / static_cast<double>(message_bytes(request));
  const auto part = [share](std::uint64_t count, std::uint64_t unit) {
    return static_cast<std::uint64_t>(static_cast<double>(count) * share) / unit * unit;
  };
  const std::uint64_t unit = kEven * static_cast<std::uint64_t>(request.ranks);
  Request made = request;
  made.count = std::max(unit, part(request.count, unit));
  for (std::uint64_t& count : made.counts) count = part(count, kEven);
  return made;
}

/// Refuses a plan of too many ops before it is built: a plan has an op for each piece of each
/// rank's message, so that the plan of a mistyped size would take all memory. Plans of two shorter
/// messages tell how the number of ops grows: first short messages, then messages with pieces that
/// fill the memory.
void check_ops(const Strategy& strategy, const Topology& topology, const Request& request,
               const Params& params) {
  const std::uint64_t bytes = message_bytes(request);
  if (bytes < kCheckedBytes) return;
  const auto ops_of = [&](std::uint64_t sample) {
    return static_cast<double>(
        op_count(strategy.build(topology, shortened(request, sample), params)));
  };
  for (std::uint64_t sample = kSampleBytes; 2 * sample <= bytes; sample *= kStep) {
    const double one = ops_of(sample), more = ops_of(2 * sample) - one;
    const double samples = static_cast<double>(bytes) / static_cast<double>(sample);
    if (one + more * (samples - 1) <= static_cast<double>(kMostOps)) continue;
    const double most = 1 + (static_cast<double>(kMostOps) - one) / more;
    const auto gib = static_cast<std::int64_t>(most * static_cast<double>(sample)) >> 30;
    throw Error(
        ErrorCode::unsupported,
        text("its plan of {} GiB would have more than {} ops; ask for {} GiB or less: times "
             "of larger messages grow in proportion",
             bytes >> 30, kMostOps, std::max<std::int64_t>(1, gib)));
  }
}

bool is_own(const Strategy* strategy) {
  const std::vector<const Strategy*> own = own_strategies();
  return std::find(own.begin(), own.end(), strategy) != own.end();
}

struct Proposal {
  double cost_ns = 0.0;
  Plan plan;
};

bool is_known(const std::vector<Proposal>& proposals, const Plan& plan) {
  return std::any_of(proposals.begin(), proposals.end(), [&plan](const Proposal& proposal) {
    return proposal.plan.strategy == plan.strategy && proposal.plan.lanes == plan.lanes;
  });
}

}  // namespace

int node_count(const Topology& topology, const Request& request) {
  std::set<int> nodes;
  for (const int device : request.devices)
    nodes.insert(topology.devices[static_cast<std::size_t>(device)].node);
  return static_cast<int>(nodes.size());
}

std::vector<Plan> propose(const Topology& topology, const Request& request,
                          std::vector<Refusal>* refusals) {
  return propose_of(all_strategies(), topology, request, refusals, true);
}

std::vector<Plan> propose_of(const std::vector<const Strategy*>& strategies,
                             const Topology& topology, const Request& request,
                             std::vector<Refusal>* refusals, bool limits_ops) {
  const Request wanted = checked(request, topology);
  std::vector<Proposal> proposals;
  const auto refuse = [&](const Strategy& strategy, const std::string& reason) {
    if (refusals != nullptr) refusals->push_back({strategy.info.name, reason});
  };
  const bool is_wide = wanted.ranks > kMostRanksBetweenNodes && node_count(topology, wanted) > 1;
  for (const Strategy* strategy : strategies) {
    if (const std::string why = why_not(*strategy, wanted); !why.empty()) {
      refuse(*strategy, why);
      continue;
    }
    if (is_wide && !strategy->uses_library) {
      refuse(*strategy, text("sends between nodes by plait's own links, which is for simulation; "
                             "on more than {} ranks by name only",
                             kMostRanksBetweenNodes));
      continue;
    }
    std::size_t built = 0;
    const std::vector<Params> sets = strategy->candidates(topology, wanted);
    if (sets.empty()) refuse(*strategy, "more ops than a choice has time for: by name only");
    for (const Params& params : sets) {
      // Each strategy gets one plan, and more within the limits.
      if (built > 0 && (built >= kMostOfStrategy || proposals.size() >= kMostPlans)) break;
      try {
        if (limits_ops && is_own(strategy)) check_ops(*strategy, topology, wanted, params);
        Plan plan = strategy->build(topology, wanted, params);
        ++built;
        if (!is_known(proposals, plan)) {
          const bool has_algorithm_order = plan.sum_order == SumOrder::algorithm_order;
          const double cost_ns =
              estimate_ns(plan, topology) * (has_algorithm_order ? kAlgorithmOrderPenalty : 1.0);
          proposals.push_back({cost_ns, std::move(plan)});
        }
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
        refuse(*strategy, error.what());
        if (built == 0) break;
      }
    }
  }
  std::stable_sort(proposals.begin(), proposals.end(),
                   [](const Proposal& a, const Proposal& b) { return a.cost_ns < b.cost_ns; });
  std::vector<Plan> plans;
  for (Proposal& proposal : proposals) plans.push_back(std::move(proposal.plan));
  return plans;
}

Plan propose_one(const Topology& topology, const Request& request, const std::string& strategy,
                 const std::map<std::string, std::int64_t>& params) {
  const Request wanted = checked(request, topology);
  std::string names;
  for (const Strategy* one : all_strategies()) {
    names += text("{}{}", names.empty() ? "" : ", ", one->info.name);
    if (one->info.name != strategy) continue;
    if (const std::string why = why_not(*one, wanted); !why.empty())
      throw Error(ErrorCode::unsupported, text("{} {}", strategy, why));
    check_names(*one, topology, wanted, params);
    return one->build(topology, wanted, params);
  }
  throw Error(ErrorCode::invalid_argument,
              text("wanted a strategy (one of {}), found \"{}\"", names, strategy));
}

void check_op_count(const Topology& topology, const Request& request, const std::string& strategy,
                    const Params& params) {
  const Request wanted = checked(request, topology);
  for (const Strategy* one : own_strategies())
    if (one->info.name == strategy && why_not(*one, wanted).empty())
      check_ops(*one, topology, wanted, params);
}

}  // namespace plait
