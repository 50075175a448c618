// Computes choice, plan, proof and time of a call on a described machine.
#include "comm/choose/what_runs.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "comm/choose/choose.hpp"
#include "comm/choose/multinode_choice.hpp"
#include "cpu/float_mode.hpp"
#include "gpu/copy/copy_tuning.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

/// Engines access peers' memory, impossible across nodes.
bool are_linked_in_a_node(const Topology& topology, const Request& request) {
  const auto node = [&](int device) {
    return topology.devices[static_cast<std::size_t>(device)].node;
  };
  for (const int from : request.devices)
    for (const int to : request.devices)
      if (from != to && (node(from) != node(to) || find_link(topology, from, to) < 0)) return false;
  return true;
}

}  // namespace

Plan taken_by_calls(const Topology& topology, const Request& given) {
  const PlainFloats same_on_every_rank;
  const Request request = checked(given, topology);
  std::vector<std::string> hosts;  // by rank
  bool on_gpus = false;
  for (const int device : request.devices) {
    const Device& one = topology.devices[static_cast<std::size_t>(device)];
    hosts.push_back(text("{}", one.node));
    on_gpus = on_gpus || one.kind == DeviceKind::gpu;
  }
  const Nodes nodes = nodes_of(hosts, 0, 0);
  const bool multinode = nodes.count() > 1;
  CallOptions options;
  if (multinode && on_gpus) options = multinode_options(nodes, request, false);
  return Chooser(topology, {}, false, {}, multinode).pick(request, options);
}

Plan plan_as_launched(const cuda::EngineChoice& choice, const Topology& topology,
                      const Request& request, const cuda::Group& group, Launch launch) {
  cuda::Tuning tuning = choice.tuning;
  if (tuning.host_permille < 0 && launch == Launch::eager && cuda::may_share(group) &&
      choice.engine == &cuda::copy_exchange_engine() && request.counts.empty() &&
      request.count * bytes_of(request.type) >= cuda::kLeastSharedBytes)
    tuning.host_permille = cuda::kBestHostPermille;
  return plan_of(*choice.engine, topology, request, tuning, group);
}

std::string print(const WhatRuns& found) {
  std::string lines = text("  predicted: {} us\n", found.predicted_us);
  for (const auto& [path, bytes] : bytes_per_path(found.plan))
    lines += text("  {}: {} bytes\n", path, bytes);
  if (found.proof.proved())
    return lines + text("  proved: {} ops, two calls in a row\n", found.proof.ops);
  return lines + "  not proved: " + found.proof.findings.front().sentence + "\n";
}

WhatRuns what_runs(const cuda::EngineChoice& choice, const Topology& topology,
                   const Request& request, const cuda::Group& group, Launch launch) {
  WhatRuns found;
  found.choice = choice;
  found.plan = plan_as_launched(choice, topology, request, group, launch);
  found.predicted_us = predicted_ns(found.plan, topology, launch) / 1e3;
  found.proof = verify(found.plan);
  if (found.proof.proved()) {
    const Report twice = verify_in_a_row({&found.plan, &found.plan});
    found.proof.findings = twice.findings;
    found.proof.ops += twice.ops;
  }
  return found;
}

std::optional<WhatRuns> what_would_run(const Topology& topology, const Request& request,
                                       const cuda::EngineRequest& wanted, Launch launch,
                                       cuda::TuningTable table, std::uint64_t memory_bytes,
                                       int pair_of) {
  const Request placed = checked(request, topology);
  if (placed.ranks < 2 || placed.ranks > cuda::kMaxCudaRanks || placed.count == 0 ||
      !are_linked_in_a_node(topology, placed))
    return std::nullopt;
  const cuda::Group group = described_group(topology, placed, memory_bytes, pair_of);
  const std::vector<std::string> models = models_of(topology, placed);
  const cuda::Selector selector(
      group, std::move(table), cuda::are_measured_models(models, placed.ranks),
      predictor(topology, group), cuda::table_of_models(models),
      plan_predictor(topology, [&](const Request& one) { return taken_by_calls(topology, one); }));
  const std::optional<cuda::EngineChoice> choice =
      selector.best(placed, {wanted.engine, wanted.params, launch == Launch::graph});
  if (!choice) return std::nullopt;
  WhatRuns found = what_runs(*choice, topology, placed, group, launch);
  if (selector.differs_in_graphs(placed, wanted))
    found.otherwise = selector.best(placed, {"", {}, launch != Launch::graph});
  return found;
}

}  // namespace plait
