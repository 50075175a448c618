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
  std::string out = text("{} on {}\n", timeline.plan, timeline.topology);
  out += text("total      {} us\n", fixed(timeline.total_ns / 1e3, 2));
  out += text("algbw      {} GB/s, busbw {} GB/s\n", fixed(timeline.algbw_gb_per_s, 2),
              fixed(timeline.busbw_gb_per_s, 2));
  out += text("bound by   {}\n", timeline.bound_by);
  if (timeline.lower_bound_ns > 0.0 && timeline.total_ns > 0.0)
    out += text("no plan under {} us: this is {} % of what this machine allows\n",
                fixed(timeline.lower_bound_ns / 1e3, 2),
                fixed(100.0 * timeline.lower_bound_ns / timeline.total_ns, 1));
  for (const ResourceLoad& one : timeline.resources)
    if (one.name == timeline.bound_by && one.busy_ns > 1.1 * timeline.lower_bound_ns)
      out += text("{} is busy {} us: this plan moves more through it than the bound counts\n",
                  one.name, fixed(one.busy_ns / 1e3, 2));
  std::vector<ResourceLoad> loads = timeline.resources;
  std::stable_sort(loads.begin(), loads.end(), [](const ResourceLoad& a, const ResourceLoad& b) {
    return a.busy_ns > b.busy_ns;
  });
  constexpr std::size_t kShown = 12;
  std::size_t width = 12;
  for (std::size_t i = 0; i < std::min(kShown, loads.size()); ++i)
    width = std::max(width, loads[i].name.size() + 2);
  out += text("{}{}busy\n", padded("resource", width), padded("MB", 12));
  for (std::size_t i = 0; i < std::min(kShown, loads.size()); ++i)
    out +=
        text("{}{}{} %\n", padded(loads[i].name, width), padded(fixed(loads[i].bytes / 1e6, 2), 12),
             fixed(100.0 * loads[i].busy_ns / std::max(timeline.total_ns, 1e-9), 1));
  if (loads.size() > kShown) out += text("and {} more resources\n", loads.size() - kShown);
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
