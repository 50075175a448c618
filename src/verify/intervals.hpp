// A map from byte ranges to values, split only where accesses begin or end. The checks of hazards
// and contract use it.
#pragma once
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

namespace plait {

/// Covers all of [0, 2^64); each interval starts at a key and ends at the next key. `Value` has
/// `Value later(uint64_t bytes) const`: the value as seen that many bytes further on.
template <class Value>
class Intervals {
 public:
  Intervals() { starts_[0] = Value{}; }

  /// Calls visit(lo, hi, value) over [lo, hi), cutting at both ends.
  template <class Visit>
  void visit(std::uint64_t lo, std::uint64_t hi, Visit visit) {
    auto at = cut(lo);
    const auto end = cut(hi);
    while (at != end) {
      const auto next = std::next(at);
      visit(at->first, next->first, at->second);
      at = next;
    }
  }

  /// Calls visit(lo, hi, value) without cutting; `value` is as seen at `lo`.
  template <class Visit>
  void read(std::uint64_t lo, std::uint64_t hi, Visit visit) const {
    auto at = std::prev(starts_.upper_bound(lo));
    while (at != starts_.end() && at->first < hi) {
      const auto next = std::next(at);
      const std::uint64_t from = at->first < lo ? lo : at->first;
      const std::uint64_t to = next == starts_.end() || next->first > hi ? hi : next->first;
      visit(from, to, at->second.later(from - at->first));
      at = next;
    }
  }

  /// Sets a single value for all of [lo, hi).
  void write(std::uint64_t lo, std::uint64_t hi, Value value) {
    const auto at = cut(lo);
    const auto end = cut(hi);
    at->second = std::move(value);
    starts_.erase(std::next(at), end);
  }

 private:
  auto cut(std::uint64_t at) {
    const auto after = starts_.lower_bound(at);
    if (after != starts_.end() && after->first == at) return after;
    const auto before = std::prev(after);
    return starts_.emplace_hint(after, at, before->second.later(at - before->first));
  }

  std::map<std::uint64_t, Value> starts_;
};

}  // namespace plait
