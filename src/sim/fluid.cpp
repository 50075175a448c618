// Progressive filling over the part of the machine that a start or stop reaches.
#include "sim/fluid.hpp"

#include <algorithm>
#include <limits>

namespace plait::sim {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

Fluid::Fluid(const SimMachine& machine, std::size_t links)
    : machine_(machine),
      members_(machine.capacities().size()),
      link_flows_(links, 0),
      busy_links_(machine.capacities().size(), 0),
      used_(machine.capacities().size(), 0.0),
      full_(machine.capacities().size(), 0),
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
  for (const int resource : machine_.link_resources(link)) {
    int& busy = busy_links_[at(resource)];
    busy += by;
    // With two or more peers, a port's capacity depends on the number of peers.
    if (std::max(busy, busy - by) > 1 && machine_.ports()[at(resource)] != 0)
      dirty_.push_back(resource);
  }
}

// Each peer beyond the first reduces the total speed of copies through a port by a share.
double Fluid::capacity(int resource) const {
  const double whole = machine_.capacities()[at(resource)];
  const int peers = busy_links_[at(resource)];
  if (peers < 2 || machine_.ports()[at(resource)] == 0) return whole;
  return whole / (1.0 + machine_.costs().port_flow_loss * (peers - 1));
}

int Fluid::start(double now_ns, double bytes, double limit, const ResourceUse* uses, int use_count,
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
  flow.queued_ns = std::numeric_limits<double>::infinity();
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
  }
  fresh_.push_back(index);
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
    if (full_[at(resource)] != 0) dirty_.push_back(resource);
    double& used = used_[at(resource)];  // exactly 0 if no flow is left, without rounding errors
    used = members.empty() ? 0.0 : used - flow.uses[i].weight * flow.rate;
    moved_.push_back(resource);
  }
  count_link(flow.link, -1);
  flow.active = false;
  ++flow.version;
  spare_.push_back(index);
}

// Adds all resources and flows connected with `resource` to resources_ and touched_.
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

void Fluid::settle_flow(int index, double rate) {
  level_[at(index)] = rate;
  const Flow& flow = flows_[at(index)];
  for (int i = 0; i < flow.use_count; ++i) {
    const ResourceUse& use = flow.uses[i];
    left_[at(use.resource)] -= use.weight * rate;
    weight_[at(use.resource)] -= use.weight;
  }
}

// Returns the resource that fills first as all rates rise (-1 = none); `share` gets the rate of
// that resource's flows.
int Fluid::tightest(double& share) {
  int found = -1;
  share = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < rising_.size();) {
    const int resource = rising_[i];
    if (weight_[at(resource)] <= 1e-9) {
      rising_[i] = rising_.back();
      rising_.pop_back();
      continue;
    }
    const double mine = std::max(0.0, left_[at(resource)]) / weight_[at(resource)];
    if (mine < share || (mine == share && resource < found)) {
      share = mine;
      found = resource;
    }
    ++i;
  }
  return found;
}

void Fluid::fill() {
  for (const int resource : resources_) {
    left_[at(resource)] = capacity(resource);
    full_[at(resource)] = 0;
    weight_[at(resource)] = 0.0;
    for (const Member& member : members_[at(resource)])
      weight_[at(resource)] += flows_[at(member.flow)].uses[member.use].weight;
  }
  std::sort(touched_.begin(), touched_.end(), [&](int a, int b) {
    const double x = flows_[at(a)].limit, y = flows_[at(b)].limit;
    return x != y ? x < y : a < b;
  });
  for (const int index : touched_) level_[at(index)] = -1.0;
  rising_ = resources_;
  std::size_t next = 0;  // all earlier flows have a rate
  while (next < touched_.size()) {
    double share = 0.0;
    const int resource = tightest(share);
    // Flows that stop at a limit of their own never lower the share of the rest, so a single share
    // serves all.
    bool is_limited = false;
    for (; next < touched_.size(); ++next) {
      const int index = touched_[next];
      if (level_[at(index)] >= 0.0) continue;
      if (resource >= 0 && flows_[at(index)].limit > share) break;
      settle_flow(index, flows_[at(index)].limit);
      is_limited = true;
    }
    if (is_limited || next == touched_.size()) continue;
    for (const Member& member : members_[at(resource)])
      if (level_[at(member.flow)] < 0.0) settle_flow(member.flow, share);
    full_[at(resource)] = 1;
    weight_[at(resource)] = 0.0;
  }
  for (const int resource : resources_) {
    const bool is_idle = members_[at(resource)].empty();
    used_[at(resource)] = is_idle ? 0.0 : capacity(resource) - std::max(0.0, left_[at(resource)]);
    moved_.push_back(resource);
  }
}

bool Fluid::finds_room(int index) {
  const Flow& flow = flows_[at(index)];
  for (int i = 0; i < flow.use_count; ++i) {
    const ResourceUse& use = flow.uses[i];
    const double whole = capacity(use.resource);
    if (used_[at(use.resource)] + use.weight * flow.limit > whole * (1.0 + 1e-12)) return false;
  }
  for (int i = 0; i < flow.use_count; ++i) {
    used_[at(flow.uses[i].resource)] += flow.uses[i].weight * flow.limit;
    moved_.push_back(flow.uses[i].resource);
  }
  return true;
}

void Fluid::record(double now_ns) {
  for (const int resource : moved_) {
    const double rate = used_[at(resource)];
    std::vector<Rate>& rates = rates_[at(resource)];
    if (rate == (rates.empty() ? 0.0 : rates.back().gb_per_s)) continue;
    rates.push_back({now_ns, rate});
  }
  moved_.clear();
}

void Fluid::set_rate(int index, double rate, double now_ns, std::vector<Finish>& changed) {
  Flow& flow = flows_[at(index)];
  if (rate == flow.rate) return;
  flow.remaining_bytes = std::max(0.0, flow.remaining_bytes - flow.rate * (now_ns - flow.since_ns));
  flow.since_ns = now_ns;
  flow.rate = rate;
  flow.finish_ns = now_ns + flow.remaining_bytes / rate;
  if (flow.finish_ns >= flow.queued_ns) return;  // later() adjusts the queued Finish when due
  flow.queued_ns = flow.finish_ns;
  changed.push_back({flow.finish_ns, index, flow.version});
}

Finish Fluid::later(int index) {
  Flow& flow = flows_[at(index)];
  flow.queued_ns = flow.finish_ns;
  return {flow.finish_ns, index, flow.version};
}

void Fluid::settle(double now_ns, std::vector<Finish>& changed) {
  for (const int index : fresh_) {
    if (finds_room(index)) {
      set_rate(index, flows_[at(index)].limit, now_ns, changed);
      continue;
    }
    const Flow& flow = flows_[at(index)];
    for (int i = 0; i < flow.use_count; ++i) dirty_.push_back(flow.uses[i].resource);
  }
  fresh_.clear();
  if (!dirty_.empty()) {
    ++mark_;
    resources_.clear();
    touched_.clear();
    for (const int resource : dirty_) reach(resource);
    dirty_.clear();
    fill();
    for (const int index : touched_) set_rate(index, level_[at(index)], now_ns, changed);
  }
  record(now_ns);
}

}  // namespace plait::sim
