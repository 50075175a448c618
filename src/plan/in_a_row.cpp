// Joins the plans of consecutive calls into a single plan: flag values continue from call to call,
// inputs and outputs get offsets of their own, and on every rank a call ends before the next
// begins.
#include "plan/in_a_row.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"

namespace plait {
namespace {

constexpr int kOwnFlags = 1 << 16;  // more than a plan has
constexpr int kJoins = 1 << 28;     // first index of the flags between calls, past all others

bool is_flagged(const Op& op) { return op.kind == OpKind::signal || op.kind == OpKind::wait; }

class RowWriter {
 public:
  Plan made;

  void add(const Plan& plan) {
    begin(plan);
    const auto ranks = static_cast<std::size_t>(plan.request.ranks);
    made.enqueued.resize(ranks);
    first_ = made.lanes.size();
    for (const Lane& lane : plan.lanes) {
      Lane& moved = made.lanes.emplace_back(lane);
      moved.name = text("{}:{}", calls_, lane.name);
      moved.ops.clear();
    }
    is_enqueued_.resize(made.lanes.size(), false);
    for (const std::vector<int>& lanes : plan.enqueued)
      for (const int lane : lanes) is_enqueued_[first_ + static_cast<std::size_t>(lane)] = true;
    for (std::size_t rank = 0; rank < ranks; ++rank) follow(plan, static_cast<int>(rank));
    for (std::size_t i = 0; i < plan.lanes.size(); ++i)
      for (const Op& op : plan.lanes[i].ops) made.lanes[first_ + i].ops.push_back(moved(op, plan));
    for (std::size_t rank = 0; rank < plan.enqueued.size(); ++rank)
      for (const int lane : plan.enqueued[rank])
        made.enqueued[rank].push_back(static_cast<int>(first_) + lane);
    if (!plan.counts.empty()) counted_.add(plan);
    end(plan);
  }

 private:
  void begin(const Plan& plan) {
    ++calls_;
    if (calls_ == 1) {
      made.request = plan.request;
      made.relay_devices = plan.relay_devices;
    }
    made.strategy += text("{}{}", calls_ == 1 ? "" : ", then ", label(plan));
    made.counts.insert(plan.counts.begin(), plan.counts.end());
    path_of_.clear();
    for (const Path& path : plan.paths) {
      const auto same = std::find_if(made.paths.begin(), made.paths.end(),
                                     [&](const Path& known) { return known.name == path.name; });
      path_of_.push_back(static_cast<int>(same - made.paths.begin()));
      if (same == made.paths.end()) made.paths.push_back(path);
    }
    const auto grown = [](std::vector<std::uint64_t>& sizes, const std::vector<std::uint64_t>& by) {
      sizes.resize(std::max(sizes.size(), by.size()), 0);
      for (std::size_t i = 0; i < by.size(); ++i) sizes[i] = std::max(sizes[i], by[i]);
    };
    grown(made.scratch_bytes, plan.scratch_bytes);
    grown(made.ring_bytes, plan.ring_bytes);
    grown(made.inbox_bytes, plan.inbox_bytes);
  }

  // The lanes on which a rank's call begins and ends.
  std::vector<std::size_t> gates(const Plan& plan, int rank) const {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < plan.lanes.size(); ++i) {
      if (plan.lanes[i].rank != rank) continue;
      if (plan.lanes[i].name == kHomeLane) return {first_ + i};
      all.push_back(first_ + i);
    }
    return all;
  }

  void append(std::size_t lane, OpKind kind, int rank, int index) {
    Op op;
    op.kind = kind;
    op.flag = {rank, rank, index};
    op.value = 1;
    made.lanes[lane].ops.push_back(op);
    if (is_enqueued_[lane])
      made.enqueued[static_cast<std::size_t>(rank)].push_back(static_cast<int>(lane));
  }

  // Orders a rank's call after the rank's previous call. CPU cores run one job at a time.
  void follow(const Plan& plan, int rank) {
    for (const std::size_t lane : gates(plan, rank))
      for (const int index : ended_[rank]) append(lane, OpKind::wait, rank, index);
    for (std::size_t i = 0; i < plan.lanes.size(); ++i) {
      const Lane& lane = plan.lanes[i];
      const auto before = jobs_.find({rank, lane.name});
      if (lane.rank == rank && lane.kind == LaneKind::cpu && before != jobs_.end())
        append(first_ + i, OpKind::wait, rank, before->second);
    }
  }

  void end(const Plan& plan) {
    for (int rank = 0; rank < plan.request.ranks; ++rank) {
      const std::vector<std::size_t> lanes = gates(plan, rank);
      if (!lanes.empty()) ended_[rank].clear();  // else the previous call is still the last
      for (const std::size_t lane : lanes) {
        append(lane, OpKind::signal, rank, kJoins + joins_);
        ended_[rank].push_back(kJoins + joins_++);
      }
    }
    for (std::size_t i = 0; i < plan.lanes.size(); ++i)
      if (plan.lanes[i].kind == LaneKind::cpu) {
        append(first_ + i, OpKind::signal, plan.lanes[i].rank, kJoins + joins_);
        jobs_[{plan.lanes[i].rank, plan.lanes[i].name}] = kJoins + joins_++;
      }
    const auto has_bytes = [](std::uint64_t bytes) { return bytes != 0; };
    if (std::any_of(plan.inbox_bytes.begin(), plan.inbox_bytes.end(), has_bytes)) ++inbox_calls_;
  }

  Op moved(Op op, const Plan& plan) const {
    if (is_flagged(op)) {
      // In a plan by lanes, no call waits for a flag of another call.
      if (plan.counts.empty()) op.flag.index += kOwnFlags * (calls_ + 1);
      counted_.move(op);
      return op;
    }
    const auto move = [&](Region& region) {
      const bool is_user = region.space == Space::input || region.space == Space::output;
      if (is_user) region.offset += static_cast<std::uint64_t>(calls_ - 1) * kApart;
      if (region.space == Space::inbox) region.offset += inbox_calls_ % 2 * kApart;
    };
    move(op.dst);
    for (Region& src : op.srcs) move(src);
    const bool is_named = op.path >= 0 && static_cast<std::size_t>(op.path) < plan.paths.size();
    if (is_named) op.path = path_of_[static_cast<std::size_t>(op.path)];
    return op;
  }

  static constexpr std::uint64_t kApart = 1ULL << 56;  // more than any buffer

  int calls_ = 0, joins_ = 0;
  std::uint64_t inbox_calls_ = 0;
  std::size_t first_ = 0;  // lane of the call being added
  std::vector<int> path_of_;
  std::vector<bool> is_enqueued_;          // by lane
  std::map<int, std::vector<int>> ended_;  // by rank: flags that the last call raises
  std::map<std::pair<int, std::string>, int>
      jobs_;  // by rank and lane: flag of a CPU core's last job
  FlagCounts counted_;
};

}  // namespace

std::uint32_t FlagCounts::base_of(const Flag& flag) const {
  const auto by_index = of_index_.find(flag.index);
  const auto by_flag = of_flag_.find(flag);
  return (by_index == of_index_.end() ? 0 : by_index->second) +
         (by_flag == of_flag_.end() ? 0 : by_flag->second);
}

void FlagCounts::move(Op& op) const {
  if (!is_flagged(op)) return;
  const std::uint32_t base = base_of(op.flag);
  if (op.kind == OpKind::signal || op.value != 0 || base > op.before) {
    op.value += base - op.before;
    op.before = 0;
  } else {
    op.before -= base;
  }
}

void FlagCounts::add(const Plan& plan) {
  for (const auto& [index, count] : plan.counts) of_index_[index] += count;
  std::map<Flag, std::uint32_t> highest;
  for (const Lane& lane : plan.lanes)
    for (const Op& op : lane.ops) {
      if (op.kind != OpKind::signal || plan.counts.contains(op.flag.index)) continue;
      std::uint32_t& value = highest[op.flag];
      value = std::max(value, op.value);
    }
  for (const auto& [flag, value] : highest) of_flag_[flag] += value;
}

Plan in_a_row(const std::vector<const Plan*>& calls) {
  RowWriter row;
  for (const Plan* call : calls) row.add(*call);
  return std::move(row.made);
}

}  // namespace plait
