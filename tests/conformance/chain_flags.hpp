// Checks the flags that signal threads of a chain in several pieces raise, against the times at
// which packets were cleared and stored: no rank may write a packet again before the receiver has
// signalled, and no rank may leave before all ranks have only the last piece left.
#pragma once
#include "base/text.hpp"
#include "conformance/ll_runs.hpp"

namespace plait_test {

class ChainFlagsCheck {
 public:
  ChainFlagsCheck(const LlRun& run, const LlTraces& traces)
      : run_(run),
        traces_(traces),
        shape_(chain_shape(run.request)),
        pieces_(traces.accesses[0].size()) {}

  /// Returns the first fault; empty = none, or a chain in a single piece.
  std::string fault() const {
    if (run_.kernel != LlKernel::ll_chain || pieces_ == 1) return "";
    for (int rank = 0; rank < run_.request.ranks; ++rank) {
      const unsigned calls = run_.calls_before + static_cast<unsigned>(pieces_);
      if (traces_.calls[index(rank)] != calls)
        return text("rank {} wanted a call counted for each piece", rank);
      const ChainFlags& own = *traces_.chain_flags[index(rank)];
      if (own.calls != run_.calls_before + 1 || own.nearly_done_blocks != 0 || own.done_blocks != 0)
        return text("rank {}: wanted its own flags as the next call needs them", rank);
      for (unsigned block = 0; block < run_.blocks; ++block)
        if (const std::string wrong = fault_of_room(rank, block); !wrong.empty())
          return text("rank {}, block {}: {}", rank, block, wrong);
      if (const std::string wrong = fault_of_end(rank); !wrong.empty())
        return text("rank {}: {}", rank, wrong);
    }
    return "";
  }

 private:
  using Turn = unsigned long long;
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  /// Turns at which a flag got its values.
  std::vector<std::pair<unsigned, Turn>> raised(int by, unsigned block,
                                                const unsigned* flag) const {
    std::vector<std::pair<unsigned, Turn>> values;
    for (const MemoryAccess& one : traces_.raised[index(by)][block])
      if (one.at == reinterpret_cast<const char*>(flag))
        values.emplace_back(static_cast<unsigned>(one.value[0]), one.turn);
    return values;
  }
  /// First and last store of a rank's block into an inbox, for a piece; {~0, 0} = none.
  std::pair<Turn, Turn> stores(int rank, unsigned block, std::size_t piece, bool to_own) const {
    std::pair<Turn, Turn> found{~Turn{0}, 0};
    for (unsigned thread = 0; thread < run_.threads; ++thread)
      for (const MemoryAccess& one :
           traces_.accesses[index(rank)][piece][block * run_.threads + thread]) {
        if (one.touch != Touch::store) continue;
        for (std::size_t owner = 0; owner < traces_.inboxes.size(); ++owner) {
          const auto& inbox = traces_.inboxes[owner];
          const std::ptrdiff_t at = one.at - reinterpret_cast<const char*>(inbox.data());
          if (at < 0 || at >= static_cast<std::ptrdiff_t>(inbox.size() * 16)) continue;
          if ((owner == index(rank)) != to_own) continue;
          found = {std::min(found.first, one.turn), std::max(found.second, one.turn)};
        }
      }
    return found;
  }

  std::string fault_of_room(int sender, unsigned block) const {
    const int reader = receiver_of(shape_, run_.request.ranks, sender);
    const unsigned* const flag = &traces_.chain_flags[index(sender)]->room[block];
    if (*flag != 0) return text("wanted its word of room 0 in the end, found {}", *flag);
    if (reader < 0) return "";
    const auto values = raised(reader, block, flag);
    if (values.size() != pieces_ - 1)
      return text("wanted the room flag raised {} times, found {}", pieces_ - 1, values.size());
    for (std::size_t piece = 1; piece < pieces_; ++piece) {
      const auto& [value, turn] = values[piece - 1];
      if (value != piece) return text("wanted room signalled for piece {}, found {}", piece, value);
      if (piece >= 2 && turn < stores(reader, block, piece - 2, true).second)
        return text("wanted room signalled for piece {} once its packets were cleared", piece);
      if (stores(sender, block, piece, false).first < turn)
        return text("wanted nothing sent of piece {} before there is room", piece);
    }
    return "";
  }
  std::string fault_of_end(int rank) const {
    Turn through = 0;
    for (unsigned block = 0; block < run_.blocks; ++block) {
      for (const bool to_own : {false, true})
        through = std::max(through, stores(rank, block, pieces_ - 2, to_own).second);
      // A rank that sees this flag may write the room flag for the next call.
      for (const auto& [value, turn] :
           raised(rank, block, &traces_.chain_flags[index(rank)]->room[block]))
        through = std::max(through, turn);
    }
    for (int peer = 0; peer < run_.request.ranks; ++peer) {
      if (peer == rank) continue;
      const unsigned* const flag = &traces_.chain_flags[index(peer)]->nearly_done[rank];
      std::vector<std::pair<unsigned, Turn>> all;
      for (unsigned block = 0; block < run_.blocks; ++block)
        for (const auto& one : raised(rank, block, flag)) all.push_back(one);
      if (all.size() != 1 || all[0].first != run_.calls_before + 1)
        return text("wanted rank {} signalled once that the last piece is left", peer);
      if (all[0].second < through) return "wanted to be through with all pieces but the last";
      if (traces_.ended[index(peer)] < all[0].second)
        return text("wanted rank {} to wait until the last piece is left for all", peer);
    }
    return "";
  }

  const LlRun& run_;
  const LlTraces& traces_;
  const ChainShape shape_;
  const std::size_t pieces_;
};

}  // namespace plait_test
