// Checks that a copy's regions lie on the devices at the ends of its hop. A ring lies in host
// memory, on a device that the plan does not name; that end of the hop must not be the rank's own
// device.
#include <algorithm>
#include <set>

#include "base/text.hpp"
#include "verify/phases.hpp"

namespace plait {
namespace {

int device_of(const Plan& plan, int place) {
  const int ranks = plan.request.ranks;
  return place < ranks ? plan.request.devices[static_cast<std::size_t>(place)]
                       : plan.relay_devices[static_cast<std::size_t>(place - ranks)];
}

void check_path(const Path& path, std::set<std::string>& names, Findings& findings) {
  const bool is_chain = !path.links.empty() && path.devices.size() == path.links.size() + 1;
  const bool is_negative =
      std::any_of(path.devices.begin(), path.devices.end(), [](int i) { return i < 0; }) ||
      std::any_of(path.links.begin(), path.links.end(), [](int i) { return i < 0; });
  if (!is_chain || is_negative)
    findings.of_plan(
        Rule::path,
        text("wanted one link a hop in path \"{}\", found {} devices and {} links{}", path.name,
             path.devices.size(), path.links.size(), is_negative ? ", some negative" : ""));
  if (static_cast<unsigned>(path.kind) > static_cast<unsigned>(PathKind::net))
    findings.of_plan(Rule::path, text("wanted a known kind of path, found none in {}", path.name));
  if (!names.insert(path.name).second)
    findings.of_plan(Rule::path, text("wanted path names to differ, found {} twice", path.name));
}

/// Returns why the region does not lie on `device`, an end of a hop; empty = it does.
std::string end_fault(const Plan& plan, const Region& region, int device, const char* end) {
  const int mine = device_of(plan, region.rank);
  if (region.space != Space::ring)
    return mine == device
               ? ""
               : text("wanted the hop to {} at device {}, where {} lies, found device {}", end,
                      mine, print(region), device);
  return mine != device
             ? ""
             : text(
                   "wanted the hop to {} in host memory, where {} lies, found device {} of rank {}",
                   end, print(region), device, region.rank);
}

std::string copy_fault(const Plan& plan, const Op& op) {
  const Region& src = op.srcs.front();
  if (op.path == kLocalPath) {
    const int from = device_of(plan, src.rank), to = device_of(plan, op.dst.rank);
    const bool host = src.space == Space::ring, host_too = op.dst.space == Space::ring;
    if (from == to && host == host_too) return "";
    return text("wanted a path from {} to {}, found a copy inside one memory", print(src),
                print(op.dst));
  }
  if (op.path < 0 || static_cast<std::size_t>(op.path) >= plan.paths.size())
    return text("wanted a path in 0..{} or none (-1), found {}", plan.paths.size(), op.path);
  const Path& path = plan.paths[static_cast<std::size_t>(op.path)];
  if (op.hop < 0 || static_cast<std::size_t>(op.hop) >= path.links.size())
    return text("wanted one of the {} hops of {}, found hop {}", path.links.size(), path.name,
                op.hop);
  const auto hop = static_cast<std::size_t>(op.hop);
  const std::string fault = end_fault(plan, src, path.devices[hop], "begin");
  return fault.empty() ? end_fault(plan, op.dst, path.devices[hop + 1], "end") : fault;
}

}  // namespace

void check_paths(const Plan& plan, Findings& findings) {
  std::set<std::string> names;
  for (const Path& path : plan.paths) check_path(path, names, findings);
  if (!findings.none()) return;
  for (std::size_t i = 0; i < plan.lanes.size(); ++i)
    for (std::size_t k = 0; k < plan.lanes[i].ops.size(); ++k) {
      const Op& op = plan.lanes[i].ops[k];
      if (op.kind != OpKind::copy) continue;
      const std::string fault = copy_fault(plan, op);
      if (!fault.empty())
        findings.of_op(Rule::path, static_cast<int>(i), static_cast<int>(k), fault);
    }
}

}  // namespace plait
