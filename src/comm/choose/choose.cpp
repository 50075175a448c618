// Chooses a plan: PLAIT_ALGO or the call's strategy, else the best proposal that sums in rank
// order, else (unless bitwise results are required) the best of all. On more than two nodes, rank
// order passes through all nodes in turn and is used on request only. Every plan is proved before
// the first run.
#include "comm/choose/choose.hpp"

#include <algorithm>

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/choose/descriptor.hpp"
#include "comm/choose/ranking.hpp"
#include "cpu/float_mode.hpp"
#include "plait/communicator.hpp"
#include "plait/error.hpp"
#include "plait/report.hpp"
#include "plan/sum_order.hpp"
#include "planner/strategy.hpp"

namespace plait {
namespace {

std::shared_ptr<const ProvedPlan> prove(Plan plan) {
  const Report report = verify(plan);
  if (!report.proved())
    throw Error(ErrorCode::invalid_argument,
                text("plan {} is not right: {}", label(plan), print(report)));
  auto proved = std::make_shared<ProvedPlan>();
  proved->label = label(plan);
  proved->counted_as = text("{}/{}", name_of(plan.request), proved->label);
  const std::string json = to_json(plan);
  proved->hash = hash_bytes(json.data(), json.size());
  proved->epochs = epochs_per_call(plan);
  proved->uses_inbox = std::any_of(plan.inbox_bytes.begin(), plan.inbox_bytes.end(),
                                   [](std::uint64_t bytes) { return bytes > 0; });
  proved->sizes = sizes_for(plan);
  proved->bytes_of_path = bytes_per_path(plan);
  proved->plan = std::move(plan);
  return proved;
}

/// Returns the plan that was fastest by measurement where estimates are wrong (E-0204): two CPU
/// ranks of a node reduce in a single step while inputs, outputs and inboxes fit the caches of
/// their cores, and by halves above that size.
std::optional<Plan> measured(const Topology& topology, const Request& request) {
  if (request.collective != Collective::all_reduce || request.ranks != 2 || request.count == 0 ||
      node_count(topology, request) > 1)
    return std::nullopt;
  const std::uint64_t bytes = message_bytes(request);
  constexpr std::uint64_t kInOneStep = 512 << 10, kInOneSlab = 2 << 20;
  try {
    if (bytes <= kInOneStep) return propose_one(topology, request, "one_shot", {});
    return propose_one(topology, request, "phases", {{"slabs", bytes <= kInOneSlab ? 1 : 4}});
  } catch (const Error&) {  // no direct link, or little memory
    return std::nullopt;
  }
}

/// Returns plait's own proposals, best first (ranks may differ in added strategies). Order on GPUs:
/// by simulation. Order on CPU ranks, since the simulator would occupy the ranks' cores: by
/// measurement, then by the planner's estimate. request: checked. takes_samples: see propose_of().
std::vector<Plan> candidates(const Topology& topology, const Request& request,
                             std::vector<Refusal>* refusals = nullptr, bool takes_samples = true) {
  std::vector<Plan> proposals =
      propose_of(own_strategies(), topology, request, refusals, false, takes_samples);
  if (find_device(topology, DeviceKind::gpu, 0) < 0) {
    if (std::optional<Plan> first = measured(topology, request)) {
      std::erase(proposals, *first);
      proposals.insert(proposals.begin(), std::move(*first));
    }
    return proposals;
  }
  // The first plan spends the budget: the order stays as it is.
  if (proposals.empty() || op_count(proposals.front()) > kSimulatedOps) return proposals;
  std::vector<Plan> plans;
  for (RankedPlan& one : ranked_of(std::move(proposals), topology, kSimulatedOps))
    plans.push_back(std::move(one.plan));
  return plans;
}

/// Whether rank order is used on request only. request: checked.
bool takes_any_order(const Topology& topology, const Request& request) {
  return node_count(topology, request) > 2;
}

/// Returns a flag of the plan whose writer and owner are on different nodes; null = none.
const Flag* flag_between_nodes(const Plan& plan, const Topology& topology) {
  const std::vector<int>& devices = plan.request.devices;
  const auto node_of = [&](int rank) {
    return topology.devices.at(static_cast<std::size_t>(devices.at(static_cast<std::size_t>(rank))))
        .node;
  };
  const auto known = static_cast<int>(devices.size());
  for (const Lane& lane : plan.lanes)
    for (const Op& op : lane.ops)
      if ((op.kind == OpKind::signal || op.kind == OpKind::wait) && op.flag.writer < known &&
          op.flag.owner < known && node_of(op.flag.writer) != node_of(op.flag.owner))
        return &op.flag;
  return nullptr;
}

std::string describe_plan(const ProvedPlan& chosen) {
  std::string lines = text("{}, sums in {}\n", chosen.label, name_of(chosen.plan.sum_order));
  for (const Stripe& stripe : chosen.plan.stripes)
    lines += text("  stripe {}: bytes {} to {}\n",
                  stripe.route == "nvlink" ? "over direct links" : "by " + stripe.route,
                  stripe.offset, stripe.offset + stripe.bytes);
  for (const auto& [path, bytes] : chosen.bytes_of_path)
    lines += text("  path {}: {} bytes\n", path, bytes);
  return lines;
}

}  // namespace

double scalar_of(const CallOptions& options, int rank, int ranks) {
  if (options.scalars.empty()) return options.scalar;
  if (options.scalars.size() != static_cast<std::size_t>(ranks))
    throw Error(
        ErrorCode::invalid_argument,
        text("scalars: wanted one for each of {} ranks, found {}", ranks, options.scalars.size()));
  return options.scalars[static_cast<std::size_t>(rank)];
}

CallOptions parse_algo(const std::string& what, const std::string& algo) {
  CallOptions options;
  const std::size_t colon = algo.find(':');
  options.strategy = algo.substr(0, colon);
  if (colon == std::string::npos) return options;
  for (const std::string& word : split(algo.substr(colon + 1), ',')) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorCode::invalid_argument,
                  text("{}: wanted name:param=value,..., found '{}'", what, algo));
    options.params[word.substr(0, equals)] =
        parse_integer(text("{} {}", what, word.substr(0, equals)), word.substr(equals + 1),
                      -(1ll << 60), 1ll << 60);
  }
  return options;
}

std::string wanted_label(const CallOptions& options) {
  if (options.strategy.empty()) return "";
  std::string params;
  for (const auto& [name, value] : options.params)
    params += text("{}{}={}", params.empty() ? "" : ",", name, value);
  return text("{}({})", options.strategy, params);
}

/// Returns the part of a multi-node plan that no executor runs, if any.
std::string Chooser::why_not_multinode(const Plan& plan) const {
  if (!is_multinode_) return {};
  if (std::any_of(plan.paths.begin(), plan.paths.end(),
                  [](const Path& path) { return path.kind == PathKind::net; }))
    return "plan copies between nodes, and no executor runs such copies";
  // A plan without a copy between nodes may still have ranks of all nodes signal each other.
  if (const Flag* const flag = flag_between_nodes(plan, *topology_))
    return text("plan has rank {} signal rank {} on another node, and no executor has such flags",
                flag->writer, flag->owner);
  return {};
}

/// Returns why a plan may not be run; empty if the plan may.
std::string Chooser::refusal(const Plan& plan) const {
  // Peers cannot see the caller's buffers: ordinary memory of the caller's process.
  if (plan.symmetric) return "wants buffers that all ranks see";
  if (!is_multinode_ && !plan.calls.empty())
    return "wants a library between nodes, and this communicator is of one node";
  if (const std::string why = why_not_multinode(plan); !why.empty()) return why;
  if (reduces(plan.request.collective) && plan.sum_order != order_) {
    if (is_tree(order_)) return text("does not sum in the order {}", name_of(order_));
    if (bitwise_) return "PLAIT_BITWISE=1 forbids its sum order";
  }
  return why_not_ ? why_not_(plan) : "";
}

bool Chooser::allowed(const Plan& plan) const { return refusal(plan).empty(); }

/// Returns the plan in the communicator's order if its ops can sum in that order, else as it is.
Plan Chooser::ordered(Plan plan) const {
  if (!is_tree(order_)) return plan;
  if (std::optional<Plan> made = in_order(plan, order_)) return std::move(*made);
  if (plan.strategy != "multi_node") return plan;
  Plan tree = plan;  // a node's sum may be half of the tree
  tree.sum_order = order_;
  return verify(tree).proved() ? tree : plan;
}

std::vector<Plan> Chooser::ordered(std::vector<Plan> plans) const {
  for (Plan& plan : plans) plan = ordered(std::move(plan));
  return plans;
}

/// Whether a plan keeps the order that plait's plans prefer.
bool Chooser::prefers(const Plan& plan) const {
  return plan.sum_order == SumOrder::rank_order || is_tree(order_);
}

Plan Chooser::pick(const Request& given, const CallOptions& options) const {
  const Request request = checked(given, *topology_);
  const CallOptions& wanted =
      options.strategy.empty() && !forced_.strategy.empty() ? forced_ : options;
  if (!wanted.strategy.empty()) {
    Plan plan = ordered(propose_one(*topology_, request, wanted.strategy, wanted.params));
    if (const std::string why = refusal(plan); !why.empty())
      throw Error(ErrorCode::unsupported, text("{}: {}", label(plan), why));
    return plan;
  }
  if (const std::string why = why_not_order(request, order_); !why.empty())
    throw Error(ErrorCode::unsupported, text("{}: {}", name_of(request), why));
  const bool any_order = takes_any_order(*topology_, request);
  const auto find = [&](std::vector<Plan>& plans, bool takes_any) {
    return std::find_if(plans.begin(), plans.end(), [&](const Plan& plan) {
      return allowed(plan) && (takes_any || prefers(plan));
    });
  };
  std::vector<Plan> plans;
  if (message_bytes(request) > kLongBytes) {
    plans = ordered(candidates(*topology_, request));
    if (const auto first = find(plans, any_order); first != plans.end()) return std::move(*first);
  }
  plans = ordered(candidates(*topology_, request, nullptr, false));
  if (const auto first = find(plans, any_order); first != plans.end()) return std::move(*first);
  if (const auto first = find(plans, true); first != plans.end()) return std::move(*first);
  std::string why;
  for (const Plan& plan : plans) why += text("; {} {}", label(plan), refusal(plan));
  throw Error(ErrorCode::unsupported,
              text("no plan for {} of {} {} on {} ranks of {}{}", name_of(request),
                   amount_of(request), name_of(request.type), request.ranks, topology_->name,
                   why.empty() ? ", as no strategy proposes one" : why));
}

std::shared_ptr<const ProvedPlan> Chooser::plan_for(const Request& request,
                                                    const CallOptions& options) {
  Key key{static_cast<int>(request.collective),
          request.count,
          static_cast<int>(request.type),
          static_cast<int>(request.op),
          request.ranks,
          request.root,
          request.peer,
          request.devices,
          request.counts,
          options.strategy,
          options.params};
  {
    const std::lock_guard lock(mutex_);
    if (const auto* const found = plan_of_.find(key)) return *found;
  }
  // No lock: a strategy of the program may ask this communicator for plans and calls.
  const PlainFloats same_on_every_rank;  // the same float results on every rank: plans are chosen
                                         // and cut by shares and estimates
  auto plan = prove(pick(checked(request, *topology_), options));
  if (log_enabled(LogLevel::explain))
    log(LogLevel::explain, -1,
        text("{} of {} {}: {}", name_of(request), amount_of(request), name_of(request.type),
             describe_plan(*plan)));
  const std::lock_guard lock(mutex_);
  if (const auto* const found = plan_of_.find(key)) return *found;
  return plan_of_.add(std::move(key), std::move(plan), [](const auto&) {});
}

std::shared_ptr<const ProvedPlan> Chooser::proved(const Plan& plan) {
  const std::lock_guard lock(mutex_);
  for (const auto& proved_plan : own_plans_)
    if (proved_plan->plan == plan) return proved_plan;
  if (plan.symmetric)
    throw Error(ErrorCode::unsupported, text("{}: wants buffers that all ranks see", label(plan)));
  if (const std::string why = why_not_multinode(plan); !why.empty())
    throw Error(ErrorCode::unsupported, text("{}: {}", label(plan), why));
  if (!is_multinode_ && !plan.calls.empty())
    throw Error(ErrorCode::unsupported, text("{}: wants a library between nodes", label(plan)));
  if (!plan.counts.empty())
    throw Error(ErrorCode::unsupported,
                text("{}: wants a plan by lanes, found that of an engine, which counts on over its "
                     "calls; name the engine as the strategy instead",
                     label(plan)));
  constexpr std::size_t kMostOwnPlans = 8;
  if (own_plans_.size() >= kMostOwnPlans) own_plans_.erase(own_plans_.begin());
  own_plans_.push_back(prove(plan));
  return own_plans_.back();
}

std::string Chooser::explain(const Request& request) {
  const PlainFloats same_on_every_rank;
  const auto chosen = plan_for(request, {});
  std::vector<Refusal> refusals;
  const Request placed = checked(request, *topology_);
  const std::vector<Plan> plans = ordered(candidates(*topology_, placed, &refusals));
  const bool any_order = takes_any_order(*topology_, placed);
  std::string lines = text("{} of {} {}, {}, on {} ranks of {}\nchosen: {}", name_of(request),
                           amount_of(request), name_of(request.type), name_of(request.op),
                           request.ranks, topology_->name, describe_plan(*chosen));
  if (!forced_.strategy.empty()) lines += "  because PLAIT_ALGO asks for it\n";
  lines += "considered, best first:\n";
  for (const Plan& plan : plans) {
    const std::string refused = refusal(plan);
    const std::string why = label(plan) == chosen->label ? "  <- chosen"
                            : !refused.empty()           ? text("  ({})", refused)
                            : any_order || prefers(plan) ? ""
                                                         : "  (does not sum in rank order)";
    lines += text("  {}{}\n", label(plan), why);
  }
  if (!refusals.empty()) lines += "refused:\n";
  for (const Refusal& refusal : refusals)
    lines += text("  {}: {}\n", refusal.strategy, refusal.reason);
  return lines;
}

}  // namespace plait
