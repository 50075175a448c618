// A plan -> its happens-before order, by running it: lanes go on until they wait, signals wake
// them.
// A word has one writer lane and grows by 1, so the wait for value v depends on exactly the signal
// that raised the word to v, whatever the timing: one run tells the order of all runs.
#include "verify/order.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <stdexcept>

#include "base/text.hpp"

namespace plait {
namespace {

constexpr std::size_t kMostClockCells = 1ULL << 28;  // 1 GiB; shipped plans need a few MiB

std::uint64_t bit(int rank) { return 1ULL << static_cast<unsigned>(rank); }

}  // namespace

struct Order::Word {
  std::vector<Site> signals;  // in the plan; the one at v - 1 raises the word to v
  std::uint32_t value = 0;    // in the run
  std::vector<int> waiters;   // lanes
};

struct Order::Run {
  std::map<Flag, Word> words;
  std::vector<std::vector<Word*>> word_of;  // by lane, op
  std::vector<std::size_t> next;            // by lane: the op to run
  std::vector<std::uint32_t> row;           // by lane: its clock
  std::deque<int> ready;
};

Order::Order(const Plan& plan, Findings& findings) : plan_(plan) {
  const std::size_t lanes = plan.lanes.size();
  Run state;
  state.next.assign(lanes, 0);
  state.row.assign(lanes, 0);
  state.word_of.resize(lanes);
  row_of_.resize(lanes);
  rows_.assign(lanes, 0);
  ranks_of_row_.assign(1, 0);
  for (std::size_t i = 0; i < lanes; ++i) {
    state.ready.push_back(static_cast<int>(i));
    for (std::size_t k = 0; k < plan.lanes[i].ops.size(); ++k) {
      const Op& op = plan.lanes[i].ops[k];
      const bool flags = op.kind == OpKind::signal || op.kind == OpKind::wait;
      Word* word = flags ? &state.words[op.flag] : nullptr;
      if (op.kind == OpKind::signal)
        word->signals.push_back({static_cast<int>(i), static_cast<int>(k)});
      state.word_of[i].push_back(word);
    }
  }
  while (!state.ready.empty()) {
    const int next = state.ready.front();
    state.ready.pop_front();
    run(state, next);
  }
  report_stuck(state, findings);
  close();
}

void Order::run(Run& state, int lane_index) {
  const auto i = static_cast<std::size_t>(lane_index);
  const std::vector<Op>& ops = plan_.lanes[i].ops;
  for (std::size_t& at = state.next[i]; at < ops.size(); ++at) {
    Word* word = state.word_of[i][at];
    if (ops[at].kind == OpKind::wait) {
      if (word->value < ops[at].value) {
        word->waiters.push_back(lane_index);
        return;
      }
      state.row[i] = joined(state.row[i], word->signals[ops[at].value - 1]);
    }
    row_of_[i].push_back(state.row[i]);
    sequence_.push_back({lane_index, static_cast<int>(at)});
    if (ops[at].kind != OpKind::signal) continue;
    word->value = ops[at].value;
    for (const int waiter : word->waiters) state.ready.push_back(waiter);
    word->waiters.clear();
  }
}

// The row that knows what `row` knows and all that is done when the signal is.
std::uint32_t Order::joined(std::uint32_t row_index, Site signal) {
  const std::size_t lanes = plan_.lanes.size();
  const std::size_t mine = row_index * lanes;
  const std::size_t theirs =
      row_of_[static_cast<std::size_t>(signal.lane)][static_cast<std::size_t>(signal.op)] * lanes;
  const auto signaller = static_cast<std::size_t>(signal.lane);
  const auto done = static_cast<std::uint32_t>(signal.op) + 1;
  bool learns = rows_[mine + signaller] < done;
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

void Order::report_stuck(const Run& state, Findings& findings) const {
  for (std::size_t i = 0; i < plan_.lanes.size(); ++i) {
    const std::size_t at = state.next[i];
    if (at == plan_.lanes[i].ops.size()) continue;
    const Op& op = plan_.lanes[i].ops[at];
    const std::vector<Site>& signals = state.word_of[i][at]->signals;
    const std::string wanted =
        text("wanted flag ", op.flag.index, " of rank ", op.flag.owner, " by rank ", op.flag.writer,
             " to reach ", op.value, ", found ");
    std::string found;
    if (signals.size() < op.value) {
      found = text("that it is raised to ", signals.size(), " at most: a signal is missing");
    } else {
      const Site raiser = signals[op.value - 1];
      const auto stuck = static_cast<int>(state.next[static_cast<std::size_t>(raiser.lane)]);
      found = text("that ", site(plan_, raiser.lane, raiser.op), " raises it, which ",
                   raiser.lane == static_cast<int>(i)
                       ? std::string("comes after this wait on the same lane")
                       : text("is behind the blocked ", site(plan_, raiser.lane, stuck)));
    }
    findings.of_op(Rule::deadlock, static_cast<int>(i), static_cast<int>(at), wanted + found);
  }
}

// What is known when each rank ends: the join of the last clocks of its lanes.
void Order::close() {
  const std::size_t lanes = plan_.lanes.size();
  ends_.assign(static_cast<std::size_t>(plan_.request.ranks), std::vector<std::uint32_t>(lanes, 0));
  ranks_at_end_.assign(ends_.size(), 0);
  for (std::size_t i = 0; i < lanes; ++i) {
    const auto rank = static_cast<std::size_t>(plan_.lanes[i].rank);
    ranks_at_end_[rank] |= bit(plan_.lanes[i].rank);
    if (row_of_[i].empty()) continue;
    const std::uint32_t last = row_of_[i].back();
    for (std::size_t k = 0; k < lanes; ++k)
      ends_[rank][k] = std::max(ends_[rank][k], rows_[last * lanes + k]);
    ranks_at_end_[rank] |= ranks_of_row_[last];
  }
}

bool Order::after_begin(Site site, int other) const {
  if (rank(site) == other) return true;
  const std::uint32_t known =
      row_of_[static_cast<std::size_t>(site.lane)][static_cast<std::size_t>(site.op)];
  return (ranks_of_row_[known] & bit(other)) != 0;
}

bool Order::before_end(Site site, int other) const {
  return rank(site) == other ||
         ends_[static_cast<std::size_t>(other)][static_cast<std::size_t>(site.lane)] >
             static_cast<std::uint32_t>(site.op);
}

bool Order::begins_before_end(int one, int other) const {
  return one == other || (ranks_at_end_[static_cast<std::size_t>(other)] & bit(one)) != 0;
}

}  // namespace plait
