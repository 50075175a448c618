// Proposes plans: builds every strategy's candidates and sorts by closed-form cost, or builds a
// single named strategy with checked parameters.
#include <algorithm>
#include <optional>
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
constexpr std::uint64_t kMostBuiltOps = 1 << 21;  // of the plans of a long message
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

/// A plan, or of a long message the plan of a sample with the long message's cost.
struct Proposal {
  double cost_ns = 0.0;
  Plan plan;
  const Strategy* strategy = nullptr;
  Params params;
  bool is_sample = false;
};

bool is_known(const std::vector<Proposal>& proposals, const Plan& plan) {
  return std::any_of(proposals.begin(), proposals.end(), [&plan](const Proposal& proposal) {
    return proposal.plan.strategy == plan.strategy && proposal.plan.lanes == plan.lanes;
  });
}

/// Builds a message's plans by each strategy, and estimates their cost.
class Proposer {
 public:
  /// request: checked, and outlives the object.
  Proposer(const Topology& topology, const Request& request, std::vector<Refusal>* refusals,
           bool limits_ops, bool takes_samples)
      : topology_(topology), request_(request), refusals_(refusals), limits_ops_(limits_ops) {
    const std::uint64_t bytes = message_bytes(request);
    if (!takes_samples || bytes <= kLongBytes) return;
    sample_ = shortened(request, kSampleBytes);
    samples_ = static_cast<double>(bytes) / static_cast<double>(message_bytes(*sample_));
  }

  void refuse(const Strategy& strategy, const std::string& reason) {
    if (refusals_ != nullptr) refusals_->push_back({strategy.info.name, reason});
  }

  void add_all(const Strategy& strategy) {
    std::size_t built = 0;
    const std::vector<Params> sets = strategy.candidates(topology_, request_);
    if (sets.empty()) refuse(strategy, "more ops than a choice has time for: by name only");
    for (const Params& params : sets) {
      // Each strategy gets one plan, and more within the limits.
      if (built > 0 && (built >= kMostOfStrategy || proposals_.size() >= kMostPlans)) break;
      try {
        add(strategy, params);
        ++built;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
        refuse(strategy, error.what());
        if (built == 0) break;
      }
    }
  }

  /// Returns the plans, cheapest first. Of a long message: those that do not exceed the limit of
  /// ops together, and the first in rank order.
  std::vector<Plan> plans() {
    std::stable_sort(
        proposals_.begin(), proposals_.end(),
        [](const Proposal& one, const Proposal& other) { return one.cost_ns < other.cost_ns; });
    std::vector<Plan> plans;
    std::uint64_t ops = 0;
    bool is_in_order = false;
    std::set<const Strategy*> left, refused;
    for (Proposal& proposal : proposals_) {
      if (proposal.is_sample && is_in_order && ops >= kMostBuiltOps) {
        left.insert(proposal.strategy);
        continue;
      }
      try {
        if (proposal.is_sample) proposal.plan = whole(*proposal.strategy, proposal.params);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
        if (refused.insert(proposal.strategy).second) refuse(*proposal.strategy, error.what());
        continue;
      }
      ops += op_count(proposal.plan);
      is_in_order |= proposal.plan.sum_order == SumOrder::rank_order;
      plans.push_back(std::move(proposal.plan));
    }
    for (const Plan& plan : plans)
      std::erase_if(left, [&](const Strategy* one) { return one->info.name == plan.strategy; });
    for (const Strategy* const one : left)
      refuse(*one, "predicted to be slower: a message above 1 GiB has the first plans alone");
    return plans;
  }

 private:
  Plan whole(const Strategy& strategy, const Params& params) const {
    if (limits_ops_ && is_own(&strategy)) check_ops(strategy, topology_, request_, params);
    return strategy.build(topology_, request_, params);
  }

  /// Returns the plan of the sample; none = the strategy makes a whole plan, or says why not.
  std::optional<Plan> sampled(const Strategy& strategy, const Params& params) const {
    if (!sample_ || !is_own(&strategy)) return std::nullopt;  // the program's are made once
    try {
      return strategy.build(topology_, *sample_, params);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      return std::nullopt;
    }
  }

  void add(const Strategy& strategy, const Params& params) {
    std::optional<Plan> sample = sampled(strategy, params);
    const bool is_sample = sample.has_value();
    Plan plan = is_sample ? std::move(*sample) : whole(strategy, params);
    if (is_known(proposals_, plan)) return;
    double cost_ns = estimate_ns(plan, topology_) * (is_sample ? samples_ : 1.0);
    if (plan.sum_order == SumOrder::algorithm_order) cost_ns *= kAlgorithmOrderPenalty;
    proposals_.push_back({cost_ns, std::move(plan), &strategy, params, is_sample});
  }

  const Topology& topology_;
  const Request& request_;
  std::vector<Refusal>* refusals_;
  bool limits_ops_;
  std::optional<Request> sample_;
  double samples_ = 1.0;  // of a long message
  std::vector<Proposal> proposals_;
};

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
                             std::vector<Refusal>* refusals, bool limits_ops, bool takes_samples) {
  const Request wanted = checked(request, topology);
  Proposer proposer(topology, wanted, refusals, limits_ops, takes_samples);
  const bool is_wide = wanted.ranks > kMostRanksBetweenNodes && node_count(topology, wanted) > 1;
  for (const Strategy* strategy : strategies) {
    if (const std::string why = why_not(*strategy, wanted); !why.empty())
      proposer.refuse(*strategy, why);
    else if (is_wide && !strategy->uses_library)
      proposer.refuse(*strategy,
                      text("sends between nodes by plait's own links, which is for simulation; "
                           "on more than {} ranks by name only",
                           kMostRanksBetweenNodes));
    else
      proposer.add_all(*strategy);
  }
  return proposer.plans();
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
