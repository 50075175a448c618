// Computes choice, plan, proof and time of a call on a described machine.
#include "comm/choose/what_runs.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "gpu/host_path/with_host_part.hpp"
#include "plait/error.hpp"

namespace plait {
namespace {

/// Returns the call's plan over links, also where arenas lie in host memory and GPUs lack links.
Plan plan_over_links(const cuda::EngineChoice& choice, const Topology& topology,
                     const Request& request, const cuda::Group& group, Launch launch) {
  const cuda::Tuning tuning = launch == Launch::eager
                                  ? eager_tuning(*choice.engine, request, choice.tuning, group)
                                  : choice.tuning;
  if (!group.through_host) return plan_of(*choice.engine, topology, request, tuning, group);
  return plan_of(*choice.engine, with_links(topology), request, tuning, group);
}

double predicted_us(const Plan& plan, const Topology& topology, bool through_host, Launch launch) {
  try {
    return predicted_ns(plan, topology, launch) / 1e3;
  } catch (const Error&) {
    if (!through_host) throw;
    throw Error(ErrorCode::unsupported,
                text("{}: its time through host memory is not known", label(plan)));
  }
}

}  // namespace

Plan plan_as_launched(const cuda::EngineChoice& choice, const Topology& topology,
                      const Request& request, const cuda::Group& group, Launch launch) {
  Plan plan = plan_over_links(choice, topology, request, group, launch);
  if (group.through_host) take_host_paths(plan, topology);
  return plan;
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
  WhatRuns found{choice, plan_over_links(choice, topology, request, group, launch), 0.0, {}, {}};
  found.predicted_us = predicted_us(found.plan, topology, group.through_host, launch);
  found.proof = verify(found.plan);
  if (found.proof.proved()) {
    const Report twice = verify_in_a_row({&found.plan, &found.plan});
    found.proof.findings = twice.findings;
    found.proof.ops += twice.ops;
  }
  if (group.through_host) take_host_paths(found.plan, topology);
  return found;
}

std::optional<WhatRuns> what_would_run(const Topology& topology, const Request& request,
                                       const cuda::EngineRequest& wanted, Launch launch,
                                       cuda::TuningTable table, const DescribedMemory& memory,
                                       int pair_of, SumOrder order) {
  const Request placed = checked(request, topology);
  const std::string masked = why_masked(topology, placed);
  if (!masked.empty() && !wanted.engine.empty())
    throw Error(ErrorCode::unsupported, text("{}: {}", wanted.engine, masked));
  if (!may_run_engines(topology, placed)) return std::nullopt;
  const cuda::Group group = described_group(topology, placed, memory, pair_of, order);
  const cuda::Selector selector = described_selector(topology, placed, group, std::move(table));
  const std::optional<cuda::EngineChoice> choice =
      selector.best(placed, {wanted.engine, wanted.params, launch == Launch::graph});
  if (!choice) return std::nullopt;
  WhatRuns found = what_runs(*choice, topology, placed, group, launch);
  if (selector.differs_in_graphs(placed, wanted))
    found.otherwise = selector.best(placed, {"", {}, launch != Launch::graph});
  return found;
}

}  // namespace plait
