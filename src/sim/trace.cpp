// Timeline + plan -> the Chrome trace event format that Perfetto and chrome://tracing read: a
// process a rank, a thread a lane, a slice an op, an arrow from each signal to the waits it ends,
// and a counter a path with the speed of what crosses it.
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
                text("wanted the plan that the timeline was made of, found ", label(plan),
                     " without op ", span.op, " of lane ", span.lane));
  return plan.lanes[lane].ops[op];
}

std::string hop_name(const Op& op, const Plan& plan) {
  if (op.kind != OpKind::copy) return "";
  if (op.path < 0) return "local";
  const Path& path = plan.paths[static_cast<std::size_t>(op.path)];
  return path.links.size() < 2 ? path.name : text(path.name, " hop ", op.hop);
}

void add_slices(Json& events, const Timeline& timeline, const Plan& plan) {
  for (std::size_t i = 0; i < plan.lanes.size(); ++i) {
    const Lane& lane = plan.lanes[i];
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", lane.rank},
                      {"args", {{"name", text("rank ", lane.rank)}}}});
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", lane.rank},
                      {"tid", i},
                      {"args", {{"name", text(lane.name, " (", name_of(lane.kind), ")")}}}});
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
                      {"name", hop.empty() ? name_of(op.kind) : text("copy ", hop)},
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

void add_counters(Json& events, const Timeline& timeline, const Plan& plan) {
  std::map<std::string, std::map<double, double>> changes;  // hop -> time -> change of GB/s
  for (const Span& span : timeline.spans) {
    const Op& op = op_of(span, plan);
    if (op.kind != OpKind::copy || op.path < 0 || span.end_ns <= span.start_ns) continue;
    const double speed = static_cast<double>(op.dst.bytes) / (span.end_ns - span.start_ns);
    std::map<double, double>& of_hop = changes[hop_name(op, plan)];
    of_hop[span.start_ns] += speed;
    of_hop[span.end_ns] -= speed;
  }
  for (const auto& [hop, of_hop] : changes) {
    double speed = 0.0;
    for (const auto& [at_ns, change] : of_hop) {
      speed += change;
      events.push_back({{"ph", "C"},
                        {"name", text("GB/s ", hop)},
                        {"pid", plan.request.ranks},
                        {"ts", at_ns / 1e3},
                        {"args", {{"gb_per_s", std::max(0.0, speed)}}}});
    }
  }
  events.push_back({{"ph", "M"},
                    {"name", "process_name"},
                    {"pid", plan.request.ranks},
                    {"args", {{"name", "paths"}}}});
}

}  // namespace

std::string to_trace_json(const Timeline& timeline, const Plan& plan) {
  Json events = Json::array();
  add_slices(events, timeline, plan);
  add_arrows(events, timeline, plan);
  add_counters(events, timeline, plan);
  Json trace;
  trace["displayTimeUnit"] = "ns";
  trace["traceEvents"] = std::move(events);
  trace["otherData"] = {{"plan", timeline.plan}, {"topology", timeline.topology}};
  return trace.dump();
}

}  // namespace plait
