// Writes a timeline in the Chrome trace event format of Perfetto and chrome://tracing: a process
// for each rank, a thread for each lane, a slice for each op, an arrow from each signal to the
// waits it ends, a counter for each rank with its lanes at work, and a counter with the rate of
// each resource (port, lane group, memory).
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plait/timeline.hpp"

namespace plait {
namespace {

using Json = nlohmann::ordered_json;

const Op& op_of(const Span& span, const Plan& plan) {
  const auto lane = static_cast<std::size_t>(span.lane), op = static_cast<std::size_t>(span.op);
  if (lane >= plan.lanes.size() || op >= plan.lanes[lane].ops.size())
    throw Error(ErrorCode::invalid_argument,
                text("wanted the plan of the timeline, found {} without op {} of lane {}",
                     label(plan), span.op, span.lane));
  return plan.lanes[lane].ops[op];
}

std::string hop_name(const Op& op, const Plan& plan) {
  if (op.kind != OpKind::copy) return "";
  if (op.path < 0) return "local";
  if (static_cast<std::size_t>(op.path) >= plan.paths.size())
    throw Error(ErrorCode::invalid_argument,
                text("wanted a copy over one of the {} paths of plan {}, found path {}",
                     plan.paths.size(), label(plan), op.path));
  const Path& path = plan.paths[static_cast<std::size_t>(op.path)];
  return path.links.size() < 2 ? path.name : text("{} hop {}", path.name, op.hop);
}

void add_slices(Json& events, const Timeline& timeline, const Plan& plan) {
  for (std::size_t i = 0; i < plan.lanes.size(); ++i) {
    const Lane& lane = plan.lanes[i];
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", lane.rank},
                      {"args", {{"name", text("rank {}", lane.rank)}}}});
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", lane.rank},
                      {"tid", i},
                      {"args", {{"name", text("{} ({})", lane.name, name_of(lane.kind))}}}});
  }
  for (const Span& span : timeline.spans) {
    const Op& op = op_of(span, plan);
    Json arguments = {{"op", print(op, plan)}};
    if (op.dst.bytes > 0) {
      arguments["bytes"] = op.dst.bytes;
      if (span.end_ns > span.start_ns)
        arguments["gb_per_s"] = static_cast<double>(op.dst.bytes) / (span.end_ns - span.start_ns);
    }
    const std::string hop = hop_name(op, plan);
    events.push_back({{"ph", "X"},
                      {"name", hop.empty() ? name_of(op.kind) : text("copy {}", hop)},
                      {"cat", name_of(op.kind)},
                      {"pid", plan.lanes[static_cast<std::size_t>(span.lane)].rank},
                      {"tid", span.lane},
                      {"ts", span.start_ns / 1e3},
                      {"dur", (span.end_ns - span.start_ns) / 1e3},
                      {"args", arguments}});
  }
}

void add_arrows(Json& events, const Timeline& timeline, const Plan& plan) {
  std::map<std::tuple<Flag, std::uint32_t>, const Span*> raised;
  for (const Span& span : timeline.spans) {
    const Op& op = op_of(span, plan);
    if (op.kind == OpKind::signal) raised[{op.flag, op.value}] = &span;
  }
  int number = 0;
  for (const Span& span : timeline.spans) {
    const Op& op = op_of(span, plan);
    if (op.kind != OpKind::wait) continue;
    const auto from = raised.find({op.flag, op.value});
    if (from == raised.end()) continue;
    const Span& signal = *from->second;
    events.push_back({{"ph", "s"},
                      {"name", "flag"},
                      {"cat", "flag"},
                      {"id", number},
                      {"pid", plan.lanes[static_cast<std::size_t>(signal.lane)].rank},
                      {"tid", signal.lane},
                      {"ts", signal.start_ns / 1e3}});
    events.push_back({{"ph", "f"},
                      {"bp", "e"},
                      {"name", "flag"},
                      {"cat", "flag"},
                      {"id", number},
                      {"pid", plan.lanes[static_cast<std::size_t>(span.lane)].rank},
                      {"tid", span.lane},
                      {"ts", span.end_ns / 1e3}});
    ++number;
  }
}

/// Adds a counter for each rank: the lanes that copy, reduce and join.
void add_work(Json& events, const Timeline& timeline, const Plan& plan) {
  struct Work {
    int copy = 0, reduce = 0, join = 0;
  };
  std::map<int, std::map<double, Work>> changes;  // by rank and time
  for (const Span& span : timeline.spans) {
    const OpKind kind = op_of(span, plan).kind;
    if (kind == OpKind::signal || kind == OpKind::wait || span.end_ns <= span.start_ns) continue;
    auto& of_rank = changes[plan.lanes[static_cast<std::size_t>(span.lane)].rank];
    const auto add = [&](double at_ns, int by) {
      Work& work = of_rank[at_ns];
      (kind == OpKind::copy ? work.copy : kind == OpKind::reduce ? work.reduce : work.join) += by;
    };
    add(span.start_ns, 1);
    add(span.end_ns, -1);
  }
  for (const auto& [rank, times] : changes) {
    Work now;
    for (const auto& [at_ns, change] : times) {
      now.copy += change.copy;
      now.reduce += change.reduce;
      now.join += change.join;
      events.push_back(
          {{"ph", "C"},
           {"name", "lanes at work"},
           {"pid", rank},
           {"ts", at_ns / 1e3},
           {"args", {{"copy", now.copy}, {"reduce", now.reduce}, {"join", now.join}}}});
    }
  }
}

void add_counters(Json& events, const Timeline& timeline, int pid) {
  const auto counter = [&](const ResourceLoad& load, const Rate& rate) {
    events.push_back({{"ph", "C"},
                      {"name", text("GB/s {}", load.name)},
                      {"pid", pid},
                      {"ts", rate.at_ns / 1e3},
                      {"args", {{"gb_per_s", rate.gb_per_s}}}});
  };
  for (const ResourceLoad& load : timeline.resources) {
    if (load.rates.empty()) continue;
    if (load.rates.front().at_ns > 0.0) counter(load, Rate{});
    for (const Rate& rate : load.rates) counter(load, rate);
  }
  events.push_back({{"ph", "M"},
                    {"name", "process_name"},
                    {"pid", pid},
                    {"args", {{"name", "links and memories"}}}});
}

}  // namespace

std::string to_trace_json(const Timeline& timeline, const Plan& plan) {
  Json events = Json::array();
  add_slices(events, timeline, plan);
  add_arrows(events, timeline, plan);
  add_work(events, timeline, plan);
  add_counters(events, timeline, plan.request.ranks);
  Json trace;
  trace["displayTimeUnit"] = "ns";
  trace["traceEvents"] = std::move(events);
  trace["otherData"] = {{"plan", timeline.plan}, {"topology", timeline.topology}};
  return trace.dump();
}

}  // namespace plait
