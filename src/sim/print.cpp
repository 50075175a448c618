// Prints a timeline as text for people and as JSON.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "plait/timeline.hpp"

namespace plait {
namespace {

std::string fixed(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

std::string padded(const std::string& left, std::size_t width) {
  return left + std::string(left.size() < width ? width - left.size() : 1, ' ');
}

}  // namespace

std::string print(const Timeline& timeline) {
  std::string out = text(timeline.plan, " on ", timeline.topology, "\n");
  out += text("total      ", fixed(timeline.total_ns / 1e3, 2), " us\n");
  out += text("algbw      ", fixed(timeline.algbw_gb_per_s, 2), " GB/s, busbw ",
              fixed(timeline.busbw_gb_per_s, 2), " GB/s\n");
  out += text("bound by   ", timeline.bound_by, "\n");
  if (timeline.lower_bound_ns > 0.0 && timeline.total_ns > 0.0)
    out += text("no plan under ", fixed(timeline.lower_bound_ns / 1e3, 2), " us: this is ",
                fixed(100.0 * timeline.lower_bound_ns / timeline.total_ns, 1),
                " % of what this machine allows\n");
  std::vector<ResourceLoad> loads = timeline.resources;
  std::stable_sort(loads.begin(), loads.end(), [](const ResourceLoad& a, const ResourceLoad& b) {
    return a.busy_ns > b.busy_ns;
  });
  constexpr std::size_t kShown = 12;
  std::size_t width = 12;
  for (std::size_t i = 0; i < std::min(kShown, loads.size()); ++i)
    width = std::max(width, loads[i].name.size() + 2);
  out += text(padded("resource", width), padded("MB", 12), "busy\n");
  for (std::size_t i = 0; i < std::min(kShown, loads.size()); ++i)
    out += text(padded(loads[i].name, width), padded(fixed(loads[i].bytes / 1e6, 2), 12),
                fixed(100.0 * loads[i].busy_ns / std::max(timeline.total_ns, 1e-9), 1), " %\n");
  if (loads.size() > kShown) out += text("and ", loads.size() - kShown, " more resources\n");
  return out;
}

std::string to_json(const Timeline& timeline) {
  nlohmann::ordered_json json;
  json["plan"] = timeline.plan;
  json["topology"] = timeline.topology;
  json["total_ns"] = timeline.total_ns;
  json["algbw_gb_per_s"] = timeline.algbw_gb_per_s;
  json["busbw_gb_per_s"] = timeline.busbw_gb_per_s;
  json["bound_by"] = timeline.bound_by;
  json["lower_bound_ns"] = timeline.lower_bound_ns;
  json["resources"] = nlohmann::ordered_json::array();
  for (const ResourceLoad& load : timeline.resources)
    json["resources"].push_back(
        {{"name", load.name}, {"bytes", load.bytes}, {"busy_ns", load.busy_ns}});
  json["spans"] = nlohmann::ordered_json::array();
  for (const Span& span : timeline.spans)
    json["spans"].push_back({{"lane", span.lane},
                             {"op", span.op},
                             {"start_ns", span.start_ns},
                             {"end_ns", span.end_ns}});
  return json.dump(1);
}

}  // namespace plait
