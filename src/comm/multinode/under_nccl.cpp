// Describes the ranks' GPUs as the drop-in finds them when a communicator is made, then asks the
// drop-in's own functions: terms, tables, selector, programs over nodes.
#include "comm/multinode/under_nccl.hpp"

#include <algorithm>

#include "base/error_reason.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/choose/gpu_plans.hpp"
#include "comm/choose/multinode_choice.hpp"
#include "comm/gpu/drop_in.hpp"
#include "comm/gpu/first_start.hpp"
#include "comm/gpu/tuning_machine.hpp"
#include "comm/multinode/node_program_runner.hpp"
#include "comm/transport/nccl/numbers.hpp"
#include "gpu/engine/kernel_types.hpp"
#include "gpu/lanes/plan_memory.hpp"
#include "gpu/p2p/message_memory.hpp"
#include "gpu/select/gpu_tables.hpp"
#include "plait/error.hpp"
#include "plan/sum_order.hpp"
#include "topo/gpu_models.hpp"
#include "topo/names.hpp"

namespace plait {
namespace {

/// Returns the kind that ranks on these models find (gpu_kind.hpp); empty = unlike GPUs. A model
/// with a table is taken as linked like the GPUs of the table.
std::string kind_of(const std::vector<std::string>& models) {
  const std::string& model = models.front();
  if (std::any_of(models.begin(), models.end(), [&](const auto& one) { return one != model; }))
    return "";
  for (const cuda::TuningTable& one : cuda::gpu_tables())
    if (one.gpus().are_model(model) && !one.gpus().kind().ends_with("through host memory"))
      return one.gpus().kind();
  const GpuModel* const known = gpu_model(model);
  return text("{}, {} multiprocessors", model, known == nullptr ? 0u : known->multiprocessors);
}

/// The GPUs of a node's ranks, by the devices of a described machine.
class DescribedNode {
 public:
  DescribedNode(const Topology& topology, const Request& placed, const std::vector<int>& ranks,
                const Env& env, DropInTerms terms)
      : options_(drop_in_options(env, terms)),
        starts_measuring_(env.autotune && env.tuning.empty() && terms.in_processes) {
    group_.ranks = static_cast<int>(ranks.size());
    group_.in_processes = terms.in_processes;
    group_.topology = topology;
    for (const int rank : ranks) {
      const int device = placed.devices[static_cast<std::size_t>(rank)];
      group_.ordinals.push_back(static_cast<int>(group_.ordinals.size()));
      group_.uuids.push_back(text("{}", device));
      group_.devices.push_back(device);
      models_.push_back(topology.devices[static_cast<std::size_t>(device)].model);
    }
    group_.kind = kind_of(models_);
    group_.tuning_machine = tuning_machine(topology, group_.devices);
    group_.reach.host = reach_of(topology, group_.devices, {}).host;
    Request of_node = placed;
    of_node.devices = group_.devices;
    group_.reach.why_no_kernels = why_masked(topology, of_node);
    find_arenas(env);
  }

  const GpuGroup& group() const { return group_; }

  /// Throws Error(unsupported) with the reason if the communicator stays on NCCL.
  void require_served(const cuda::TuningTable& table) {
    if (const std::string why = agreed().lacks(cuda::kLaneKernels); !why.empty())
      throw Error(ErrorCode::unsupported, why);
    const std::string why_no_table = why_no_tuning_table(options_);
    if (why_no_table.empty()) group_.tuning = table;
    const bool measures_here = starts_measuring_ && why_no_table.empty() && table.rows().empty();
    if (measures_here && !options_.bitwise && !is_measured())
      throw Error(ErrorCode::unsupported, "until the first start has measured these GPUs");
    if (!options_.bitwise) require_measured(group_, why_no_table);
    options_ = drop_in_options_on(group_, options_);
  }

  bool takes_messages() const { return options_.rank.messages; }
  const GpuCallsOptions& options() const { return options_; }

  /// The choices of GpuCalls for the group.
  const cuda::Selector& selector() {
    if (selector_) return *selector_;
    const cuda::Group of = agreed();
    const bool as_measured = options_.beats_nccl ? is_measured_beside_nccl(group_)
                                                 : cuda::is_measured(group_.kind, group_.ranks);
    const bool predicts = !options_.beats_nccl && options_.knows_links;
    plans_ = std::make_unique<GpuPlans>(group_.topology, group_.devices, of, usual_plan_ring(of),
                                        options_.forced, options_.bitwise);
    const auto plan_for = [this](const Request& one) {
      return plans_->chooser().pick(placed(one), {});
    };
    selector_ = std::make_unique<const cuda::Selector>(
        of, group_.tuning, as_measured,
        predicts ? predictor(group_.topology, of, group_.devices) : nullptr,
        cuda::table_of(group_.kind),
        predicts ? plan_predictor(group_.topology, plan_for) : cuda::PredictPlan());
    return *selector_;
  }

  /// Returns the engine of a request; none = a plan or NCCL. Throws Error if PLAIT_ALGO names an
  /// engine that refuses the request.
  std::optional<cuda::EngineChoice> choice(const Request& request) {
    const CallOptions& forced = options_.forced;
    const bool names_engine =
        !forced.strategy.empty() && cuda::engine_named(forced.strategy, request) != nullptr;
    if (!forced.strategy.empty() && !names_engine) return std::nullopt;
    if (const std::string& why = group_.reach.why_no_kernels; !why.empty()) {
      if (!names_engine) return std::nullopt;
      throw Error(ErrorCode::unsupported, text("{}: {}", forced.strategy, why));
    }
    if (options_.beats_nccl && !names_engine) return selector().no_slower_than_nccl(request);
    return selector().best(request, {forced.strategy, forced.params});
  }

  /// Returns the plan that PLAIT_ALGO names, or of a masked machine. Throws Error without one.
  Plan named_plan(const Request& request) {
    selector();
    return plans_->chooser().pick(placed(request), options_.forced);
  }

  WhatRuns described(const cuda::EngineChoice& choice, const Request& request) {
    return what_runs(choice, group_.topology, checked(placed(request), group_.topology), agreed(),
                     Launch::graph);
  }

  bool is_measured() const { return is_measured_beside_nccl(group_); }

 private:
  Request placed(const Request& request) const {
    Request there = request;
    there.devices = group_.devices;
    return there;
  }

  /// Decides where arenas lie, as make_with_arenas() does.
  void find_arenas(const Env& env) {
    const auto is_masked = [&](const std::string& one, const std::string& other) {
      return is_left_out(group_.topology, std::stoi(one), std::stoi(other));
    };
    const auto addresses = [&](const std::string& one, const std::string& other) {
      return find_link(group_.topology, std::stoi(one), std::stoi(other)) >= 0 ||
             is_masked(one, other);
    };
    const auto distance = [&](const std::string& one, const std::string& other) {
      const int link = find_link(group_.topology, std::stoi(one), std::stoi(other));
      const bool by_nvlink =
          is_masked(one, other) ||
          (link >= 0 &&
           group_.topology.links[static_cast<std::size_t>(link)].kind == LinkKind::nvlink);
      return by_nvlink ? cuda::Distance::nvl : cuda::Distance::phb;
    };
    std::vector<std::string> reasons, records;
    for (int rank = 0; rank < group_.ranks; ++rank) {
      GpuGroup of = group_;
      of.rank = rank;
      reasons.push_back(why_no_direct_access(of, env, distance, addresses));
      records.push_back(pack({reasons.back(), direct_peers(of, env, distance, addresses)}));
    }
    const auto said = std::find_if(reasons.begin(), reasons.end(),
                                   [](const std::string& one) { return !one.empty(); });
    if (said == reasons.end()) return;
    if (!options_.knows_links)
      throw Error(ErrorCode::unsupported, text("{}, which plait needs on several nodes", *said));
    agree_on_arenas(group_, [&](const std::string&) { return records; }, "");
  }

  /// The values that CudaRank agrees on.
  cuda::Group agreed() const {
    const cuda::CudaRankOptions& rank = options_.rank;
    const bool in_host = !group_.through_host.empty();
    cuda::Group group = cuda::usual_group(group_.ranks, rank.overlap_compute, 0, rank.most_blocks,
                                          models_, in_host);
    cuda::ArenaOptions memory = rank.memory;
    memory.two_tiers = options_.has_lazy_arena && group_.reach.why_no_kernels.empty();
    if (in_host && memory.budget_bytes == 0)
      memory.budget_bytes =
          cuda::usual_host_bytes(group_.ranks) +
          (rank.messages ? cuda::message_memory_bytes(group_.ranks, rank.most_blocks) : 0);
    if (rank.messages && group.runs(cuda::kMessageKernels)) {
      const unsigned tier = group.multiprocessors;
      group.most_message_blocks = rank.most_blocks == 0 ? tier : std::min(rank.most_blocks, tier);
    }
    group.sum_order = options_.sum_order;
    group.sizes = {};
    lay_out_arena(group, memory);
    const bool has_rings = options_.knows_links && (memory.plans || group_.ranks <= 4 || in_host);
    group.host_bytes = has_rings ? cuda::kPlanRingBytes + cuda::kExchangeRingBytes : 0;
    group.has_host_reducer =
        has_rings && group_.reach.host && (!in_host || cuda::cores_take_calls(group_.ranks));
    return group;
  }

  GpuCallsOptions options_;
  bool starts_measuring_;
  GpuGroup group_;
  std::vector<std::string> models_;
  std::unique_ptr<GpuPlans> plans_;
  std::unique_ptr<const cuda::Selector> selector_;
};

Nodes nodes_of_ranks(const Topology& topology, const Request& placed, const Env& env) {
  if (env.node_size == 0) return described_nodes(topology, placed);
  const std::vector<std::string> hosts(static_cast<std::size_t>(placed.ranks));
  return nodes_of(hosts, env.node_size, 0);  // pretended nodes use no NICs
}

DropInTerms terms_of(const Nodes& nodes, const Env& env) {
  return {.one_node = nodes.count() == 1, .most_blocks = most_blocks_of(env)};
}

bool is_message(const Request& request) {
  return request.collective == Collective::send_recv || request.collective == Collective::copy;
}

/// Returns why no communicator, or none of its calls of this kind, is plait's; empty = some may be.
std::string why_no_call(const Request& request, const Env& env) {
  if (env.disable) return "PLAIT_DISABLE is 1";
  if (request.ranks < 2) return "a communicator of one rank";
  if (!request.counts.empty())
    return "calls of NCCL have equal counts: programs send and receive unequal ones";
  if (!is_message(request) && nccl::nccl_type(request.type) < 0)
    return text("NCCL has no {}", name_of(request.type));
  if (reduces(request.collective) && request.op != ReduceOp::premul_sum &&
      nccl::nccl_op(request.op) < 0)
    return text("NCCL has no {}", name_of(request.op));
  if (request.count == 0) return "nothing to do";
  const Collective asked = is_message(request) ? Collective::send_recv : request.collective;
  const std::vector<std::string> served = split(env.ops, ',');
  if (!served.empty() && std::none_of(served.begin(), served.end(), [&](const std::string& name) {
        return parse_collective(name) == asked;
      }))
    return text("{} is not in PLAIT_OPS", name_of(asked));
  if (!is_message(request) && message_bytes(request) < env.min_bytes)
    return text("smaller than PLAIT_MIN_BYTES ({} bytes)", env.min_bytes);
  return "";
}

/// Returns why the selector leaves a request to NCCL.
std::string why_slower(DescribedNode& node, const Request& request) {
  const std::optional<cuda::EngineChoice> best = node.selector().best(request);
  if (!best) return "no engine takes the call";
  const bool is_as_sum = !reduces(request.collective) || request.op == ReduceOp::sum ||
                         cuda::sums_common_floats(request);
  if (best->by == cuda::EngineChoice::By::table && best->beats_nccl == false)
    return "NCCL is faster, as this machine's tuning table says";
  if (!is_as_sum)
    return text("only sums were compared with NCCL, not {} of {} over {} ranks",
                name_of(request.op), name_of(request.type), request.ranks);
  if (node.is_measured() && reduces(request.collective) && !cuda::is_common_sum(request))
    return text("sums of {} over {} ranks were not compared with NCCL", name_of(request.type),
                request.ranks);
  if (best->beats_nccl == false) return "NCCL is faster, as measured on such GPUs";
  if (node.is_measured() && node.options().rank.most_blocks != 0)
    return text("plait was not compared with NCCL at {} blocks a call",
                node.options().rank.most_blocks);
  if (node.is_measured()) return "plait was not compared with NCCL on such GPUs for this call";
  return "this machine's tuning table compares no such call with NCCL";
}

void ask_nodes(UnderNccl& found, DescribedNode& node, const Nodes& nodes, const Request& request,
               const Env& env) {
  const CallOptions forced = multinode_algo(env.algo);
  if (forced.strategy.empty())
    found.why = why_library(nodes, request, env.bitwise, demanded_order(env));
  if (!found.why.empty()) {
    if (request.collective == Collective::all_reduce && !env.bitwise)
      found.why += "; PLAIT_ALGO=multi_node takes the call";
    return;
  }
  NodeProgramRunner runner(
      nodes, {[&](const Request& one) { return node.choice(one).has_value(); }, nullptr}, nullptr,
      nullptr, forced, env.bitwise, demanded_order(env));
  const auto program = runner.program(request, {});
  if (program->is_library())
    found.why =
        program->why.empty() ? text("PLAIT_ALGO={} leaves it whole", env.algo) : program->why;
  else if (env.bitwise_strict && !program->in_order &&
           has_order_of_nccl(request.collective, request.type, request.op, request.ranks))
    found.why = text("over nodes it is not summed in the order {}", name_of(demanded_order(env)));
  else
    found.other = text("{}: engines in the nodes, NCCL between", program->label);
}

void ask(UnderNccl& found, const Topology& topology, const Request& placed, const Env& env,
         const cuda::TuningTable& table) {
  found.why = why_no_call(placed, env);
  if (!found.why.empty()) return;
  const Nodes nodes = nodes_of_ranks(topology, placed, env);
  found.why = nodes.count() == 1 ? "" : nodes.why_unlike();
  if (nodes.count() > 1 && nodes.size() == 1)
    found.why = text("each of the {} nodes has one rank only", nodes.count());
  if (!found.why.empty()) return;
  DescribedNode node(topology, placed, nodes.peers(), env, terms_of(nodes, env));
  node.require_served(table);
  if (is_message(placed)) {
    const bool taken = nodes.count() == 1 && node.takes_messages();
    if (taken) found.other = "kernels of messages";
    if (!taken) found.why = "sends and receives were not measured to be faster than NCCL's";
    return;
  }
  const bool is_scaled = reduces(placed.collective) && placed.op == ReduceOp::premul_sum;
  if (nodes.count() > 1 && is_scaled) {
    found.why = "over nodes, factors are NCCL's to apply";
    return;
  }
  if (nodes.count() > 1) return ask_nodes(found, node, nodes, placed, env);
  Request request = placed;
  request.devices.clear();
  if (is_scaled) request.op = ReduceOp::sum;  // of the products
  if (is_scaled && node.options().beats_nccl && node.group().through_host.empty() &&
      input_bytes(request, 0) > most_scaled_ahead_of_nccl(request)) {
    found.why = "its products with the ranks' factors take longer than sums are ahead of NCCL's";
    return;
  }
  if (is_scaled) request.count = cuda::scaled_pieces(request, 0).piece;
  if (const auto choice = node.choice(request)) {
    const auto unknown = attempt([&] { found.engine = node.described(*choice, request); });
    if (unknown) found.other = text("engine {}", label(*choice));
  } else if (!node.options().forced.strategy.empty() ||
             !node.group().reach.why_no_kernels.empty()) {
    found.other = text("by lanes, {}", label(node.named_plan(request)));
  } else {
    found.why = why_slower(node, request);
  }
}

}  // namespace

UnderNccl under_nccl(const Topology& topology, const Request& request, const Env& env,
                     const cuda::TuningTable& table) {
  const Request placed = checked(request, topology);
  UnderNccl found;
  const auto failure = attempt([&] { ask(found, topology, placed, env, table); });
  if (failure) found.why = reason_of(*failure);
  found.is_error = !found.why.empty() && env.bitwise_strict && placed.count != 0 &&
                   has_order_of_nccl(placed.collective, placed.type, placed.op, placed.ranks);
  return found;
}

std::string tuning_file_beside_nccl(const Topology& topology, const Request& request,
                                    const Env& env, const std::string& nccl) {
  const Request placed = checked(request, topology);
  std::string file;
  static_cast<void>(attempt([&] {
    const Nodes nodes = nodes_of_ranks(topology, placed, env);
    const DescribedNode node(topology, placed, nodes.peers(), env, terms_of(nodes, env));
    if (why_no_tuning_table(node.options()).empty()) file = tuning_file(env, node.group(), nccl);
  }));
  return file;
}

}  // namespace plait
