// Checks the flags that signal threads of a two_shot with reused packets raise, against the times
// at which packets were cleared and stored: no rank may write a packet again before the receiver
// has signalled.
#pragma once
#include "base/text.hpp"
#include "conformance/ll_runs.hpp"

namespace plait_test {

class ShotFlagsCheck {
 public:
  ShotFlagsCheck(const LlRun& run, const LlTraces& traces)
      : run_(run), traces_(traces), steps_(traces.accesses[0].size()) {}

  /// Returns the first fault; empty = none, or packets that are used once.
  std::string fault() const {
    if (!run_.is_long_shot()) return "";
    for (int rank = 0; rank < run_.request.ranks; ++rank) {
      for (int peer = 0; peer < run_.request.ranks; ++peer)
        for (unsigned block = 0; block < run_.blocks && peer != rank; ++block)
          if (const std::string wrong = fault_of(rank, peer, block); !wrong.empty())
            return text("rank {} of rank {}, block {}: {}", rank, peer, block, wrong);
    }
    return "";
  }

 private:
  using Turn = unsigned long long;
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  std::size_t ring() const { return static_cast<std::size_t>(shot_ring(run_.ahead)); }

  /// First and last store of a rank's block into `owner`'s inbox, for a step; {~0, 0} = none.
  std::pair<Turn, Turn> stores(int rank, unsigned block, std::size_t step, int owner) const {
    std::pair<Turn, Turn> found{~Turn{0}, 0};
    const auto& inbox = traces_.inboxes[index(owner)];
    const auto* const begin = reinterpret_cast<const char*>(inbox.data());
    for (unsigned thread = 0; thread < run_.threads; ++thread)
      for (const MemoryAccess& one :
           traces_.accesses[index(rank)][step][block * run_.threads + thread])
        if (one.touch == Touch::store && one.at >= begin && one.at < begin + inbox.size() * 16)
          found = {std::min(found.first, one.turn), std::max(found.second, one.turn)};
    return found;
  }
  /// Checks the stores of `by` to the flag at `rank`.
  std::string fault_of(int rank, int by, unsigned block) const {
    const unsigned* const flag = &traces_.shot_flags[index(rank)]->through[block][by];
    if (*flag != 0) return text("wanted the word 0 in the end, found {}", *flag);
    std::vector<std::pair<unsigned, Turn>> raised;
    for (const MemoryAccess& one : traces_.raised[index(by)][block])
      if (one.at == reinterpret_cast<const char*>(flag))
        raised.emplace_back(static_cast<unsigned>(one.value[0]), one.turn);
    if (raised.size() != steps_ - ring())
      return text("wanted the flag raised {} times, found {}", steps_ - ring(), raised.size());
    for (std::size_t step = 0; step < raised.size(); ++step) {
      const auto& [value, turn] = raised[step];
      if (value != step + 1) return text("wanted {} steps signalled, found {}", step + 1, value);
      if (turn < stores(by, block, step, by).second)
        return text("wanted step {} signalled once its packets were cleared", step);
      if (stores(rank, block, step + ring(), by).first < turn)
        return text("wanted nothing sent of step {} before there is room", step + ring());
    }
    return "";
  }

  const LlRun& run_;
  const LlTraces& traces_;
  const std::size_t steps_;
};

}  // namespace plait_test
