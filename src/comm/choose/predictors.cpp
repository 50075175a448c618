// Describes a machine's GPUs as a group, and predicts call times by engines and by plans.
#include <algorithm>
#include <limits>
#include <memory>

#include "comm/choose/reach.hpp"
#include "comm/choose/what_runs.hpp"
#include "cpu/float_mode.hpp"
#include "plait/error.hpp"
#include "plan/blocks.hpp"
#include "planner/strategy.hpp"
#include "topo/names.hpp"

namespace plait {

std::vector<std::string> models_of(const Topology& topology, const Request& request) {
  std::vector<std::string> models;
  for (const int device : request.devices)
    models.push_back(topology.devices[static_cast<std::size_t>(device)].model);
  return models;
}

namespace {

/// Returns the islands of GPUs that address each other over links.
std::vector<int> described_islands(const Topology& topology, const std::vector<int>& devices) {
  std::vector<std::string> direct;
  for (const int from : devices) {
    std::string& peers = direct.emplace_back();
    for (const int to : devices)
      peers += from == to || find_link(topology, from, to) >= 0 || is_left_out(topology, from, to)
                   ? '1'
                   : '0';
  }
  return islands_of(direct);
}

}  // namespace

DescribedMemory memory_of(const Env& env) {
  const bool is_set = env.has("PLAIT_DEVICE_MEMORY");
  return {is_set ? env.device_memory : 0, env.device_scratch, is_set};
}

cuda::Group described_group(const Topology& topology, const Request& given,
                            const DescribedMemory& memory, int pair_of, SumOrder order) {
  const Request request = checked(given, topology);
  const std::vector<std::string> models = models_of(topology, request);
  if (pair_of != 0) return cuda::usual_pair(pair_of, memory.bytes, models);
  const bool through_host = go_through_host(topology, request);
  const bool has_islands = through_host && !described_islands(topology, request.devices).empty();
  cuda::Group group =
      cuda::usual_group(request.ranks, false, memory.bytes, 0, models, through_host, has_islands);
  group.sum_order = order;
  group.has_host_reducer &= reach_of(topology, request.devices, {}).host;
  // Masked communicators have all memory from the first call on.
  const bool at_once = memory.at_once || !why_masked(topology, request).empty();
  if (at_once || memory.plan_scratch != 0) {
    const std::uint64_t usual = through_host ? cuda::usual_host_bytes(request.ranks) : 0;
    group.sizes = {};
    lay_out_arena(group, {.budget_bytes = memory.bytes != 0 ? memory.bytes : usual,
                          .two_tiers = !at_once,
                          .pairs = true,
                          .plans = true,
                          .plan_scratch = memory.plan_scratch});
  }
  return group;
}

std::string why_masked(const Topology& topology, const Request& placed) {
  if (go_through_host(topology, placed)) return "";  // arenas in host memory with any mask
  for (std::size_t from = 0; from < placed.devices.size(); ++from)
    for (std::size_t to = 0; to < placed.devices.size(); ++to)
      if (is_left_out(topology, placed.devices[from], placed.devices[to]))
        return why_no_link(from, to);
  return "";
}

std::optional<Path> way_through_host(const Topology& topology, int from, int to) {
  for (Path& path : paths_between(topology, from, to))
    if (path.kind == PathKind::host) return std::move(path);
  return std::nullopt;
}

bool go_through_host(const Topology& topology, const Request& request) {
  const auto is_gpu_of_node = [&](int device) {
    const Device& one = topology.devices[static_cast<std::size_t>(device)];
    const Device& first = topology.devices[static_cast<std::size_t>(request.devices.front())];
    return one.kind == DeviceKind::gpu && one.node == first.node;
  };
  if (!std::all_of(request.devices.begin(), request.devices.end(), is_gpu_of_node)) return false;
  bool lacks_link = false;
  for (const int from : request.devices)
    for (const int to : request.devices) {
      if (from == to || find_link(topology, from, to) >= 0 || is_left_out(topology, from, to))
        continue;
      lacks_link = true;
      if (!way_through_host(topology, from, to)) return false;
    }
  return lacks_link;
}

/// Plans of kernels whose arenas lie in host memory are those of kernels over links, and the price
/// takes the way through host memory.
Topology with_links(const Topology& topology) {
  Topology linked = topology;
  for (const int from : rank_devices(topology))
    for (const int to : rank_devices(topology))
      if (from != to && find_link(topology, from, to) < 0)
        linked.links.push_back({LinkKind::nvlink, from, to, 1, 1.0, 0.0, {}});
  return linked;
}

cuda::Predict predictor(const Topology& topology, const cuda::Group& group,
                        const std::vector<int>& devices) {
  const Topology linked = group.through_host ? with_links(topology) : Topology{};
  return [=](const cuda::Engine& engine, const Request& request) {
    const PlainFloats same_on_every_rank;
    try {
      Request placed = request;
      placed.devices = devices;
      placed = checked(placed, topology);
      const Plan plan = plan_of(engine, group.through_host ? linked : topology, placed, {}, group);
      return predicted_ns(plan, topology) / 1e3;
    } catch (const Error&) {  // two of the GPUs have no direct link
      return std::numeric_limits<double>::infinity();
    }
  };
}

cuda::PredictPlan plan_predictor(const Topology& topology,
                                 std::function<Plan(const Request&)> plan_for) {
  return [&topology, plan_for = std::move(plan_for)](const Request& request) {
    // Above a length a call's time, and the simulator's, grow in proportion to the message.
    const PlainFloats same_on_every_rank;
    Request simulated = request;
    double samples = 1.0;
    if (request.counts.empty() && message_bytes(request) > kLongBytes) {
      simulated = of_message_bytes(request, kLongBytes);
      // Parts divide as parts of usual messages do.
      const std::uint64_t even = 64 * static_cast<std::uint64_t>(request.ranks);
      if (simulated.count > even) simulated.count -= simulated.count % even;
      samples = static_cast<double>(message_bytes(request)) /
                static_cast<double>(message_bytes(simulated));
    }
    try {
      return samples * predicted_ns(plan_for(simulated), topology) / 1e3;
    } catch (const Error&) {  // no plan serves the call
      return std::numeric_limits<double>::infinity();
    }
  };
}

cuda::Selector described_selector(const Topology& topology, const Request& placed,
                                  const cuda::Group& group, cuda::TuningTable table) {
  const std::vector<std::string> models = models_of(topology, placed);
  const auto plans =
      std::make_shared<GpuPlans>(topology, placed.devices, group, usual_plan_ring(group));
  const bool as_measured = !group.through_host && cuda::are_measured_models(models, placed.ranks);
  return {group,
          std::move(table),
          as_measured,
          predictor(topology, group, placed.devices),
          cuda::table_of_models(models),
          plan_predictor(topology, [plans, devices = placed.devices](const Request& one) {
            Request request = one;
            request.devices = devices;
            return plans->chooser().pick(request, {});
          })};
}

double predicted_call_ns(const Topology& topology, const Request& placed) {
  if (may_run_engines(topology, placed)) {
    const cuda::Group group = described_group(topology, placed);
    const cuda::Selector selector = described_selector(topology, placed, group, {});
    if (const std::optional<cuda::EngineChoice> choice = selector.best(placed, {"", {}, true})) {
      const Topology linked = group.through_host ? with_links(topology) : Topology{};
      const Plan plan = plan_of(*choice->engine, group.through_host ? linked : topology, placed,
                                choice->tuning, group);
      return predicted_ns(plan, topology);
    }
  }
  return predicted_ns(taken_by_calls(topology, placed), topology);
}

}  // namespace plait
