// Progressive filling over the part of the machine that a change reaches.
#include "sim/fluid.hpp"

#include <algorithm>
#include <limits>

namespace plait::sim {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

Fluid::Fluid(const Machine& machine, std::size_t links)
    : machine_(machine),
      members_(machine.capacities().size()),
      link_flows_(links, 0),
      busy_links_(machine.capacities().size(), 0),
      rates_(machine.capacities().size()),
      resource_mark_(machine.capacities().size(), 0),
      left_(machine.capacities().size(), 0.0),
      weight_(machine.capacities().size(), 0.0) {}

void Fluid::count_link(int link, int by) {
  if (link < 0) return;
  int& flows = link_flows_[at(link)];
  const bool was_busy = flows > 0;
  flows += by;
  if (was_busy == (flows > 0)) return;
  for (const int resource : machine_.link_resources(link)) busy_links_[at(resource)] += by;
}

// Copies to several peers through one port disturb each other: each further peer costs a share.
double Fluid::capacity(int resource) const {
  const double whole = machine_.capacities()[at(resource)];
  const int peers = busy_links_[at(resource)];
  if (peers < 2 || machine_.ports()[at(resource)] == 0) return whole;
  return whole / (1.0 + machine_.costs().port_flow_loss * (peers - 1));
}

int Fluid::start(double now_ns, double bytes, double limit, const Use* uses, int use_count,
                 int link, int owner) {
  int index = static_cast<int>(flows_.size());
  if (spare_.empty()) {
    flows_.emplace_back();
    flow_mark_.push_back(0);
    level_.push_back(0.0);
  } else {
    index = spare_.back();
    spare_.pop_back();
  }
  Flow& flow = flows_[at(index)];
  flow.remaining_bytes = bytes;
  flow.rate = 0.0;
  flow.limit = limit;
  flow.since_ns = now_ns;
  flow.uses = uses;
  flow.use_count = use_count;
  flow.link = link;
  flow.owner = owner;
  flow.active = true;
  flow.places.clear();
  for (int i = 0; i < use_count; ++i) {
    std::vector<Member>& members = members_[at(uses[i].resource)];
    flow.places.push_back(static_cast<int>(members.size()));
    members.push_back({index, i});
    dirty_.push_back(uses[i].resource);
  }
  count_link(link, 1);
  return index;
}

void Fluid::stop(int index) {
  Flow& flow = flows_[at(index)];
  for (int i = 0; i < flow.use_count; ++i) {
    const int resource = flow.uses[i].resource;
    std::vector<Member>& members = members_[at(resource)];
    const Member last = members.back();
    members[at(flow.places[at(i)])] = last;
    flows_[at(last.flow)].places[at(last.use)] = flow.places[at(i)];
    members.pop_back();
    dirty_.push_back(resource);
  }
  count_link(flow.link, -1);
  flow.active = false;
  ++flow.version;
  spare_.push_back(index);
}

// Everything connected with `resource` over flows goes into resources_ and touched_.
void Fluid::reach(int resource) {
  if (resource_mark_[at(resource)] == mark_) return;
  resource_mark_[at(resource)] = mark_;
  std::size_t next = resources_.size();
  resources_.push_back(resource);
  for (; next < resources_.size(); ++next)
    for (const Member& member : members_[at(resources_[next])]) {
      if (flow_mark_[at(member.flow)] == mark_) continue;
      flow_mark_[at(member.flow)] = mark_;
      touched_.push_back(member.flow);
      const Flow& flow = flows_[at(member.flow)];
      for (int i = 0; i < flow.use_count; ++i) {
        const int other = flow.uses[i].resource;
        if (resource_mark_[at(other)] == mark_) continue;
        resource_mark_[at(other)] = mark_;
        resources_.push_back(other);
      }
    }
}

void Fluid::fill() {
  for (const int resource : resources_) {
    left_[at(resource)] = capacity(resource);
    weight_[at(resource)] = 0.0;
    for (const Member& member : members_[at(resource)])
      weight_[at(resource)] += flows_[at(member.flow)].uses[member.use].weight;
  }
  std::sort(touched_.begin(), touched_.end(), [&](int a, int b) {
    const double x = flows_[at(a)].limit, y = flows_[at(b)].limit;
    return x != y ? x < y : a < b;
  });
  for (const int index : touched_) level_[at(index)] = -1.0;
  const auto settle_at = [&](int index, double rate) {
    level_[at(index)] = rate;
    const Flow& flow = flows_[at(index)];
    for (int i = 0; i < flow.use_count; ++i) {
      const Use& use = flow.uses[i];
      left_[at(use.resource)] -= use.weight * rate;
      weight_[at(use.resource)] -= use.weight;
    }
  };
  std::size_t next = 0;  // flows before it have their rate
  while (true) {
    while (next < touched_.size() && level_[at(touched_[next])] >= 0.0) ++next;
    if (next == touched_.size()) break;
    int tightest = -1;
    double share = std::numeric_limits<double>::infinity();
    for (const int resource : resources_) {
      if (weight_[at(resource)] <= 1e-9) continue;
      const double mine = std::max(0.0, left_[at(resource)]) / weight_[at(resource)];
      if (mine < share) {
        share = mine;
        tightest = resource;
      }
    }
    const double limit = flows_[at(touched_[next])].limit;
    if (limit <= share || tightest < 0) {
      settle_at(touched_[next], limit);
      continue;
    }
    for (const Member& member : members_[at(tightest)])
      if (level_[at(member.flow)] < 0.0) settle_at(member.flow, share);
    weight_[at(tightest)] = 0.0;
  }
}

void Fluid::record(double now_ns) {
  for (const int resource : resources_) {
    const bool is_idle = members_[at(resource)].empty();
    const double rate = is_idle ? 0.0 : capacity(resource) - std::max(0.0, left_[at(resource)]);
    std::vector<Rate>& rates = rates_[at(resource)];
    if (rate != (rates.empty() ? 0.0 : rates.back().gb_per_s)) rates.push_back({now_ns, rate});
  }
}

void Fluid::settle(double now_ns, std::vector<Finish>& changed) {
  if (dirty_.empty()) return;
  ++mark_;
  resources_.clear();
  touched_.clear();
  for (const int resource : dirty_) reach(resource);
  dirty_.clear();
  fill();
  record(now_ns);
  for (const int index : touched_) {
    Flow& flow = flows_[at(index)];
    const double rate = level_[at(index)];
    if (rate == flow.rate) continue;
    flow.remaining_bytes =
        std::max(0.0, flow.remaining_bytes - flow.rate * (now_ns - flow.since_ns));
    flow.since_ns = now_ns;
    flow.rate = rate;
    ++flow.version;
    changed.push_back({now_ns + flow.remaining_bytes / rate, index, flow.version});
  }
}

}  // namespace plait::sim
