// Finds the happens-before order of a plan in a single run: lanes run until a wait, signals wake
// lanes. The raises of a flag are ordered and grow, so a wait for v depends on exactly the first
// signal that raises the flag to v or more, at any timing: all runs have the same order.
#include "verify/order.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <stdexcept>

#include "base/text.hpp"
#include "plan/library_call.hpp"

namespace plait {
namespace {

constexpr std::size_t kMostClockCells = 1ULL << 28;  // 1 GiB; shipped plans need a few MiB

std::uint64_t bit(int rank) { return 1ULL << static_cast<unsigned>(rank); }

}  // namespace

struct OpOrder::FlagHistory {
  struct Raise {
    std::uint32_t value;
    Site site;
  };
  std::vector<Raise> raises;  // by value
  std::vector<int> waiters;   // lanes

  // The raise that a wait for `value` depends on; null = none.
  const Raise* raise_to(std::uint32_t value) const {
    const auto first = std::lower_bound(
        raises.begin(), raises.end(), value,
        [](const Raise& raise, std::uint32_t least) { return raise.value < least; });
    return first == raises.end() ? nullptr : &*first;
  }
};

struct OpOrder::PlanRun {
  std::map<Flag, FlagHistory> histories;
  std::vector<std::vector<FlagHistory*>> history_of;  // by lane, op
  std::vector<std::size_t> next;                      // by lane: the next op
  std::vector<std::uint32_t> row;                     // by lane: row of the clock
  std::vector<std::vector<int>> arrived;              // by call: lanes that have reached the join
  std::deque<int> ready;
};

OpOrder::OpOrder(const Plan& plan, Findings& findings) : plan_(plan) {
  const std::size_t lanes = plan.lanes.size();
  PlanRun state;
  state.next.assign(lanes, 0);
  state.row.assign(lanes, 0);
  state.arrived.resize(plan.calls.size());
  for (const LibraryCall& call : plan.calls) members_.emplace_back(call.ranks.size());
  state.history_of.resize(lanes);
  row_of_.resize(lanes);
  rows_.assign(lanes, 0);
  ranks_of_row_.assign(1, 0);
  for (std::size_t i = 0; i < lanes; ++i) {
    state.ready.push_back(static_cast<int>(i));
    for (std::size_t k = 0; k < plan.lanes[i].ops.size(); ++k) {
      const Op& op = plan.lanes[i].ops[k];
      const bool flags = op.kind == OpKind::signal || op.kind == OpKind::wait;
      if (op.kind == OpKind::join) note_member(op.call, {static_cast<int>(i), static_cast<int>(k)});
      FlagHistory* history = flags ? &state.histories[op.flag] : nullptr;
      if (op.kind == OpKind::signal)
        history->raises.push_back({op.value, {static_cast<int>(i), static_cast<int>(k)}});
      state.history_of[i].push_back(history);
    }
  }
  for (auto& [flag, history] : state.histories)
    std::stable_sort(history.raises.begin(), history.raises.end(),
                     [](const auto& a, const auto& b) { return a.value < b.value; });
  while (!state.ready.empty()) {
    const int next = state.ready.front();
    state.ready.pop_front();
    run(state, next);
  }
  report_stuck(state, findings);
  report_turns(state, findings);
  close(state);
}

void OpOrder::run(PlanRun& state, int lane_index) {
  const auto i = static_cast<std::size_t>(lane_index);
  const std::vector<Op>& ops = plan_.lanes[i].ops;
  for (std::size_t& at = state.next[i]; at < ops.size(); ++at) {
    FlagHistory* history = state.history_of[i][at];
    if (ops[at].kind == OpKind::wait && ops[at].value != 0) {  // 0: raised by earlier calls
      const FlagHistory::Raise* const raise = history->raise_to(ops[at].value);
      if (raise == nullptr || !is_done(raise->site)) {
        history->waiters.push_back(lane_index);
        return;
      }
      state.row[i] = joined(state.row[i], raise->site, true);
    }
    if (ops[at].kind == OpKind::join) {
      if (!arrive(state, lane_index, ops[at].call)) return;
      continue;
    }
    row_of_[i].push_back(state.row[i]);
    sequence_.push_back({lane_index, static_cast<int>(at)});
    if (ops[at].kind != OpKind::signal) continue;
    for (const int waiter : history->waiters) state.ready.push_back(waiter);
    history->waiters.clear();
  }
}

void OpOrder::note_member(int call, Site site) {
  const int member = member_of(plan_.calls[static_cast<std::size_t>(call)], rank(site));
  members_[static_cast<std::size_t>(call)][static_cast<std::size_t>(member)] = site;
}

// A library call may block each member until the last has joined; all lanes continue then. A member
// is ordered only after the members that send it data. Returns true if this lane was the last.
bool OpOrder::arrive(PlanRun& state, int lane_index, int call) {
  std::vector<int>& arrived = state.arrived[static_cast<std::size_t>(call)];
  const std::vector<Site>& members = members_[static_cast<std::size_t>(call)];
  if (std::find(arrived.begin(), arrived.end(), lane_index) == arrived.end())
    arrived.push_back(lane_index);
  if (arrived.size() < members.size()) return false;
  const Request request = request_of(plan_, plan_.calls[static_cast<std::size_t>(call)]);
  for (const Site& site : members) {
    row_of_[static_cast<std::size_t>(site.lane)].push_back(
        state.row[static_cast<std::size_t>(site.lane)]);
    sequence_.push_back(site);
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto lane = static_cast<std::size_t>(members[i].lane);
    for (std::size_t k = 0; k < members.size(); ++k)
      if (k != i && depends_on(request, static_cast<int>(i), static_cast<int>(k)))
        state.row[lane] = joined(state.row[lane], members[k], false);
    if (members[i].lane == lane_index) continue;
    ++state.next[lane];
    state.ready.push_back(members[i].lane);
  }
  return true;
}

// Returns a row with the clock of `row_index` joined with that of the op at `signal`: after the op
// (is_done), or before the op's start.
std::uint32_t OpOrder::joined(std::uint32_t row_index, Site signal, bool is_done) {
  const std::size_t lanes = plan_.lanes.size();
  const std::size_t mine = row_index * lanes;
  const std::size_t theirs =
      row_of_[static_cast<std::size_t>(signal.lane)][static_cast<std::size_t>(signal.op)] * lanes;
  const auto signaller = static_cast<std::size_t>(signal.lane);
  const auto done = static_cast<std::uint32_t>(signal.op) + (is_done ? 1 : 0);
  bool learns = rows_[mine + signaller] < done ||
                (ranks_of_row_[row_index] & bit(plan_.lanes[signaller].rank)) == 0;
  for (std::size_t i = 0; i < lanes && !learns; ++i) learns = rows_[mine + i] < rows_[theirs + i];
  if (!learns) return row_index;
  if (rows_.size() + lanes > kMostClockCells)
    throw std::length_error("too many lanes and waits to hold their order in memory");
  const std::size_t made = rows_.size();
  rows_.resize(made + lanes);
  for (std::size_t i = 0; i < lanes; ++i)
    rows_[made + i] = std::max(rows_[mine + i], rows_[theirs + i]);
  rows_[made + signaller] = std::max(rows_[made + signaller], done);
  ranks_of_row_.push_back(ranks_of_row_[row_index] | ranks_of_row_[theirs / lanes] |
                          bit(plan_.lanes[signaller].rank));
  return static_cast<std::uint32_t>(made / lanes);
}

void OpOrder::report_stuck(const PlanRun& state, Findings& findings) const {
  for (std::size_t i = 0; i < plan_.lanes.size(); ++i) {
    const std::size_t at = state.next[i];
    if (at == plan_.lanes[i].ops.size()) continue;
    const Op& op = plan_.lanes[i].ops[at];
    if (op.kind == OpKind::join) {
      const auto call = static_cast<std::size_t>(op.call);
      for (const Site& one : members_[call])
        if (std::count(state.arrived[call].begin(), state.arrived[call].end(), one.lane) == 0)
          findings.of_op(
              Rule::deadlock, static_cast<int>(i), static_cast<int>(at),
              text("wanted all ranks of call {} to join it, found rank {} blocked on lane {}", call,
                   rank(one), lane(one.lane).name));
      continue;
    }
    const FlagHistory& history = *state.history_of[i][at];
    const std::string wanted = text("wanted flag {} of rank {} by rank {} to reach {}, found ",
                                    op.flag.index, op.flag.owner, op.flag.writer, op.value);
    std::string found;
    if (history.raise_to(op.value) == nullptr) {
      found = text("that it is raised to {} at most: a signal is missing",
                   history.raises.empty() ? 0 : history.raises.back().value);
    } else {
      const Site raiser = history.raise_to(op.value)->site;
      const auto stuck = static_cast<int>(state.next[static_cast<std::size_t>(raiser.lane)]);
      found = text("that {} raises it, which {}", site(plan_, raiser.lane, raiser.op),
                   raiser.lane == static_cast<int>(i)
                       ? std::string("comes after this wait on the same lane")
                       : text("is behind the blocked {}", site(plan_, raiser.lane, stuck)));
    }
    findings.of_op(Rule::deadlock, static_cast<int>(i), static_cast<int>(at), wanted + found);
  }
}

// Reports lanes that raise a flag in turn, but not in an order of values.
void OpOrder::report_turns(const PlanRun& state, Findings& findings) const {
  for (const auto& [flag, history] : state.histories)
    for (std::size_t i = 1; i < history.raises.size(); ++i) {
      const Site first = history.raises[i - 1].site, next = history.raises[i].site;
      if (!is_done(first) || !is_done(next) || before(first, next)) continue;
      findings.of_op(Rule::flag, next.lane, next.op,
                     text("wanted flag {} of rank {} by rank {} to be raised to {} before {}, "
                          "found no order between {} and {}",
                          flag.index, flag.owner, flag.writer, history.raises[i - 1].value,
                          history.raises[i].value, site(plan_, first.lane, first.op),
                          site(plan_, next.lane, next.op)));
    }
}

// The clock at each rank's end: the join of the last clocks of the rank's lanes.
void OpOrder::close(const PlanRun& state) {
  const std::size_t lanes = plan_.lanes.size();
  ends_.assign(static_cast<std::size_t>(plan_.request.ranks), std::vector<std::uint32_t>(lanes, 0));
  ranks_at_end_.assign(ends_.size(), 0);
  for (std::size_t i = 0; i < lanes; ++i) {
    const auto rank = static_cast<std::size_t>(plan_.lanes[i].rank);
    ranks_at_end_[rank] |= bit(plan_.lanes[i].rank);
    const std::uint32_t last = state.row[i];
    for (std::size_t k = 0; k < lanes; ++k)
      ends_[rank][k] = std::max(ends_[rank][k], rows_[last * lanes + k]);
    ranks_at_end_[rank] |= ranks_of_row_[last];
  }
}

bool OpOrder::after_begin(Site site, int other) const {
  if (rank(site) == other) return true;
  const std::uint32_t row =
      row_of_[static_cast<std::size_t>(site.lane)][static_cast<std::size_t>(site.op)];
  return (ranks_of_row_[row] & bit(other)) != 0;
}

bool OpOrder::before_end(Site site, int other) const {
  return rank(site) == other ||
         ends_[static_cast<std::size_t>(other)][static_cast<std::size_t>(site.lane)] >
             static_cast<std::uint32_t>(site.op);
}

bool OpOrder::begins_before_end(int one, int other) const {
  return one == other || (ranks_at_end_[static_cast<std::size_t>(other)] & bit(one)) != 0;
}

}  // namespace plait
