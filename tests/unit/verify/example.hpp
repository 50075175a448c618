// A small machine and a correct plan, for tests to break: n linked GPUs, all_reduce and all_gather
// by pushes into scratch, with an opening barrier so that accesses are contained.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "plait/builder.hpp"
#include "plait/plan.hpp"
#include "plait/report.hpp"

namespace plait::example {

inline Topology machine(int gpus) {
  Topology made;
  made.name = "example";
  for (int i = 0; i < gpus; ++i) {
    Device device;
    device.index = i;
    made.devices.push_back(device);
  }
  for (int src = 0; src < gpus; ++src)
    for (int dst = 0; dst < gpus; ++dst) {
      Link link;
      link.src = src;
      link.dst = dst;
      link.gb_per_s = 100.0;
      if (src != dst) made.links.push_back(link);
    }
  return made;
}

/// Each rank pushes its input into a slot of every peer's scratch, then sums or copies the slots.
inline Plan direct(Collective collective, int ranks, std::uint64_t count,
                   Space slots_in = Space::scratch) {
  const Topology topology = machine(ranks);
  Request unchecked;
  unchecked.collective = collective;
  unchecked.ranks = ranks;
  unchecked.count = count;
  const Request request = checked(unchecked, topology);
  Builder builder(topology, request, "example");
  const std::uint64_t bytes = count * bytes_of(request.type);
  const bool is_sum = reduces(collective);
  std::vector<std::vector<Region>> slots(static_cast<std::size_t>(ranks));
  std::vector<std::vector<Event>> opened(slots.size()), arrived(slots.size());
  std::vector<int> lanes;
  for (int r = 0; r < ranks; ++r) {
    lanes.push_back(builder.lane(r, LaneKind::kernel, "main"));
    for (int from = 0; from < ranks; ++from)
      slots[std::size_t(r)].push_back(from == r ? builder.input(r, {0, bytes})
                                                : builder.alloc(slots_in, r, bytes));
  }
  for (int r = 0; r < ranks && slots_in != Space::inbox; ++r)
    for (int to = 0; to < ranks; ++to)
      if (to != r) opened[std::size_t(to)].push_back(builder.signal(lanes[std::size_t(r)], to));
  for (int r = 0; r < ranks; ++r) {
    for (const Event& event : opened[std::size_t(r)]) builder.wait(lanes[std::size_t(r)], event);
    for (int to = 0; to < ranks; ++to) {
      if (to == r) continue;
      builder.copy(lanes[std::size_t(r)], slots[std::size_t(to)][std::size_t(r)],
                   builder.input(r, {0, bytes}));
      arrived[std::size_t(to)].push_back(builder.signal(lanes[std::size_t(r)], to));
    }
  }
  for (int r = 0; r < ranks; ++r) {
    for (const Event& event : arrived[std::size_t(r)]) builder.wait(lanes[std::size_t(r)], event);
    if (is_sum) {
      builder.reduce(lanes[std::size_t(r)], builder.output(r, {0, bytes}), slots[std::size_t(r)]);
      continue;
    }
    for (int from = 0; from < ranks; ++from)
      builder.copy(lanes[std::size_t(r)], builder.output(r, {std::uint64_t(from) * bytes, bytes}),
                   slots[std::size_t(r)][std::size_t(from)]);
  }
  return builder.build();
}

inline Op& op(Plan& plan, int lane, OpKind kind, int which = 0) {
  for (Op& candidate : plan.lanes.at(std::size_t(lane)).ops)
    if (candidate.kind == kind && which-- == 0) return candidate;
  throw std::out_of_range("the plan has no such op");
}

inline void drop(Plan& plan, int lane, OpKind kind, int which = 0) {
  std::vector<Op>& ops = plan.lanes.at(std::size_t(lane)).ops;
  ops.erase(ops.begin() + (&op(plan, lane, kind, which) - ops.data()));
}

/// Returns the broken rules, each once.
inline std::vector<std::string> rules(const Report& report) {
  std::vector<std::string> found;
  for (const Finding& finding : report.findings)
    if (std::find(found.begin(), found.end(), finding.rule) == found.end())
      found.push_back(finding.rule);
  return found;
}

inline void expect(const Plan& plan, const std::string& rule, std::size_t findings,
                   const std::string& words) {
  const Report report = verify(plan);
  INFO(print(report));
  CHECK(rules(report) == std::vector<std::string>{rule});
  CHECK(report.findings.size() == findings);
  CHECK(print(report).find(words) != std::string::npos);
}

}  // namespace plait::example
