// Checks flags: each has a single writer lane and grows by 1, so a plan's order does not depend on
// timing. In an engine's plan a flag may jump, and several lanes of the writer may raise the flag
// in turn: order.cpp checks the order of turns. No raise passes the count that the plan states, or
// a wait of the next call would end before its own signal. Source: monotonic epochs instead of
// reset flags.
#include <map>
#include <set>

#include "base/text.hpp"
#include "verify/phases.hpp"

namespace plait {
namespace {

constexpr int kMostFlags = 1 << 16;  // for each owner and writer

struct LastRaise {
  Site last;
  std::uint32_t value = 0;
};

std::string flag_name(const Flag& flag) {
  return text("flag {} of rank {} by rank {}", flag.index, flag.owner, flag.writer);
}

std::string flag_fault(const Plan& plan, const Lane& lane, const Op& op) {
  const int ranks = plan.request.ranks;
  const Flag& flag = op.flag;
  if (flag.owner < 0 || flag.owner >= ranks || flag.writer < 0 || flag.writer >= ranks ||
      flag.index < 0 || flag.index >= kMostFlags)
    return text("wanted ranks in 0..{} and an index below {}, found {}", ranks - 1, kMostFlags,
                flag_name(flag));
  const bool may_look_back = op.kind == OpKind::wait && !plan.counts.empty();
  if (op.value == 0 && !may_look_back)
    return text("wanted a value of at least 1, found 0 for {}", flag_name(flag));
  if (op.before != 0 && (op.value != 0 || !may_look_back))
    return text(
        "wanted only a wait for 0 in an engine's plan to look back at earlier calls, found {} "
        "before {} of {}",
        op.before, op.value, flag_name(flag));
  const auto count = plan.counts.find(flag.index);
  if (op.kind == OpKind::signal && count != plan.counts.end() && op.value > count->second)
    return text("wanted {} raised to {} at most, the count of a call, found {}", flag_name(flag),
                count->second, op.value);
  if (op.kind == OpKind::signal && flag.writer != lane.rank)
    return text("wanted a flag that rank {} may raise, found {}", lane.rank, flag_name(flag));
  if (op.kind == OpKind::wait && flag.owner != lane.rank)
    return text("wanted a flag in the memory of rank {}, found {}", lane.rank, flag_name(flag));
  return "";
}

std::string signal_fault(const Plan& plan, Site site_of, const Op& op,
                         std::map<Flag, LastRaise>& raised) {
  LastRaise& last = raised[op.flag];
  const LastRaise before = last;
  last = {site_of, op.value};
  if (before.value != 0 && before.last.lane != site_of.lane)
    return text("wanted one lane to raise {}, found that {} raises it too", flag_name(op.flag),
                site(plan, before.last.lane, before.last.op));
  if (op.value != before.value + 1)
    return text("wanted {} to go from {} to {}, found {}", flag_name(op.flag), before.value,
                before.value + 1, op.value);
  return "";
}

/// Checks waits that look back past the call before. Two calls in a row do not reach such a wait.
void check_long_looks(const Plan& plan, Findings& findings) {
  std::set<Flag> raised;
  for (const Lane& lane : plan.lanes)
    for (const Op& op : lane.ops)
      if (op.kind == OpKind::signal) raised.insert(op.flag);
  for (std::size_t i = 0; i < plan.lanes.size(); ++i)
    for (std::size_t k = 0; k < plan.lanes[i].ops.size(); ++k) {
      const Op& op = plan.lanes[i].ops[k];
      const auto count = plan.counts.find(op.flag.index);
      if (op.kind != OpKind::wait || op.before == 0 || count == plan.counts.end() ||
          count->second == 0 || raised.contains(op.flag))
        continue;
      findings.of_op(Rule::deadlock, static_cast<int>(i), static_cast<int>(k),
                     text("wanted a signal of {} in each call, since a later call waits for the "
                          "call's count of {}, found none",
                          flag_name(op.flag), count->second));
    }
}

}  // namespace

// No value is raised twice. OpOrder checks that raises happen in the order of values.
void check_raises(const Plan& plan, Findings& findings) {
  std::set<std::pair<Flag, std::uint32_t>> seen;
  for (std::size_t i = 0; i < plan.lanes.size(); ++i)
    for (std::size_t k = 0; k < plan.lanes[i].ops.size(); ++k) {
      const Op& op = plan.lanes[i].ops[k];
      if (op.kind == OpKind::signal && !seen.insert({op.flag, op.value}).second)
        findings.of_op(
            Rule::flag, static_cast<int>(i), static_cast<int>(k),
            text("wanted {} to grow, found it raised to {} twice", flag_name(op.flag), op.value));
    }
}

void check_flags(const Plan& plan, Findings& findings) {
  if (!plan.counts.empty()) check_raises(plan, findings);
  std::map<Flag, LastRaise> raised;
  for (std::size_t i = 0; i < plan.lanes.size(); ++i)
    for (std::size_t k = 0; k < plan.lanes[i].ops.size(); ++k) {
      const Op& op = plan.lanes[i].ops[k];
      if (op.kind != OpKind::signal && op.kind != OpKind::wait) continue;
      const Site here{static_cast<int>(i), static_cast<int>(k)};
      std::string fault = flag_fault(plan, plan.lanes[i], op);
      if (fault.empty() && op.kind == OpKind::signal && plan.counts.empty())
        fault = signal_fault(plan, here, op, raised);
      if (!fault.empty()) findings.of_op(Rule::flag, here.lane, here.op, fault);
    }
  if (findings.none()) check_long_looks(plan, findings);
}

}  // namespace plait
