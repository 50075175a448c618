// Runs a plan on intervals instead of bytes, to find the origin of every reduction's sources.
#include "plan/origins.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/text.hpp"
#include "plait/error.hpp"
#include "plan/library_call.hpp"

namespace plait {
namespace {

constexpr int kUnwritten = -2;

// Map from offsets to the origin of the bytes up to the next entry.
class Marks {
 public:
  void set(std::uint64_t begin, std::uint64_t end, int origin) {
    cut(begin);
    cut(end);
    at_.erase(at_.lower_bound(begin), at_.lower_bound(end));
    at_[begin] = origin;
  }
  // Returns (relative begin, origin) of each run inside [begin, end).
  std::vector<std::pair<std::uint64_t, int>> runs(std::uint64_t begin, std::uint64_t end) {
    cut(begin);
    cut(end);
    std::vector<std::pair<std::uint64_t, int>> found;
    for (auto it = at_.lower_bound(begin); it != at_.end() && it->first < end; ++it)
      found.emplace_back(it->first - begin, it->second);
    return found;
  }

 private:
  void cut(std::uint64_t offset) {
    const auto next = at_.upper_bound(offset);
    at_.try_emplace(offset, std::prev(next)->second);
  }
  std::map<std::uint64_t, int> at_{{0, kUnwritten}};
};

class Follower {
 public:
  explicit Follower(const Plan& plan)
      : plan_(plan), next_(plan.lanes.size(), 0), given_(plan.calls.size()) {
    for (const Lane& lane : plan.lanes) origins_.emplace_back(lane.ops.size());
  }

  Origins follow() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t lane = 0; lane < next_.size(); ++lane)
        while (step(lane)) moved = true;
    }
    for (std::size_t lane = 0; lane < next_.size(); ++lane)
      if (next_[lane] < plan_.lanes[lane].ops.size())
        throw Error(ErrorCode::timeout,
                    text("the plan cannot end: rank {} lane {} op {} waits for ever",
                         plan_.lanes[lane].rank, plan_.lanes[lane].name, next_[lane]));
    return std::move(origins_);
  }

 private:
  bool step(std::size_t lane) {
    if (next_[lane] == plan_.lanes[lane].ops.size()) return false;
    const Op& op = plan_.lanes[lane].ops[next_[lane]];
    if (op.kind == OpKind::wait && flags_[op.flag] < op.value) return false;
    if (op.kind == OpKind::signal) flags_[op.flag] = op.value;
    if (op.kind == OpKind::join && !join(op, plan_.lanes[lane].rank)) return false;
    if (op.kind == OpKind::copy) copy(op);
    if (op.kind == OpKind::reduce) origins_[lane][next_[lane]] = reduce(op);
    ++next_[lane];
    return true;
  }

  std::vector<std::pair<std::uint64_t, int>> runs(const Region& region) {
    if (region.space == Space::input) return {{0, region.rank}};
    return marks_[{region.space, region.rank}].runs(region.offset, region.offset + region.bytes);
  }

  void copy(const Op& op) {
    const auto found = runs(op.srcs[0]);
    Marks& marks = marks_[{op.dst.space, op.dst.rank}];
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::uint64_t end = i + 1 < found.size() ? found[i + 1].first : op.dst.bytes;
      if (found[i].first < end)
        marks.set(op.dst.offset + found[i].first, op.dst.offset + end, found[i].second);
    }
  }

  // A library's sum was scaled before; moved data keeps its origin.
  bool join(const Op& op, int rank) {
    const LibraryCall& call = plan_.calls[static_cast<std::size_t>(op.call)];
    std::map<int, std::vector<std::pair<std::uint64_t, int>>>& given =
        given_[static_cast<std::size_t>(op.call)];
    const int member = member_of(call, rank);
    if (!given.contains(member))
      given[member] = op.srcs.empty() ? decltype(runs({})){} : runs(op.srcs[0]);
    if (given.size() < call.ranks.size()) return false;
    Marks& marks = marks_[{op.dst.space, op.dst.rank}];
    for (const Given& one : given_by(request_of(plan_, call), member)) {
      const std::uint64_t begin = op.dst.offset + one.lo, end = op.dst.offset + one.hi;
      if (one.from < 0) marks.set(begin, end, kReduced);
      if (one.from < 0) continue;
      for (const auto& [at, origin] : given.at(one.from)) {
        const std::uint64_t from = std::max(at, one.origin) - one.origin;
        if (begin + from < end) marks.set(begin + from, end, origin);
      }
    }
    return true;
  }

  std::vector<int> reduce(const Op& op) {
    std::vector<int> origins;
    for (const Region& src : op.srcs) {
      const auto found = runs(src);
      for (const auto& run : found)
        if (run.second != found[0].second)
          throw Error(ErrorCode::unsupported,
                      text("premul_sum: source {} holds data of several ranks, so no single factor "
                           "applies; use another strategy",
                           print(src)));
      origins.push_back(found[0].second == kUnwritten ? kReduced : found[0].second);
    }
    if (op.dst.bytes != 0)
      marks_[{op.dst.space, op.dst.rank}].set(op.dst.offset, op.dst.offset + op.dst.bytes,
                                              kReduced);
    return origins;
  }

  const Plan& plan_;
  std::vector<std::size_t> next_;
  std::map<Flag, std::uint32_t> flags_;
  std::map<std::pair<Space, int>, Marks> marks_;
  // By call, member.
  std::vector<std::map<int, std::vector<std::pair<std::uint64_t, int>>>> given_;
  Origins origins_;
};

}  // namespace

Origins origins_of(const Plan& plan) { return Follower(plan).follow(); }

std::vector<double> scales_of(const std::vector<int>& origins, const std::vector<double>& scalars) {
  std::vector<double> scales;
  for (const int origin : origins)
    scales.push_back(
        origin == kReduced || scalars.empty() ? 1.0 : scalars.at(static_cast<std::size_t>(origin)));
  return scales;
}

}  // namespace plait
