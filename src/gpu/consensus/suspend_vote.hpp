// Ranks agree on whether a communicator is suspended now: each votes on a page that all map, and a
// rank that can suspend waits for the others' votes. A rank that cannot returns at once.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

namespace plait::cuda {

class SuspendVote {
 public:
  static constexpr int kRanks = 16;  ///< At most.
  /// Mapped by all ranks; zeroed before the first vote. Votes of two turns lie side by side: no
  /// rank ends turn n + 1 before all have read turn n.
  struct VotesPage {
    std::atomic<std::uint64_t> votes[2][kRanks];  ///< 4 * turn, plus kCan and kHasArena.
  };
  /// A rank's vote, or all votes together.
  struct Vote {
    bool can = false;        ///< The rank can suspend; of all: each rank can.
    bool has_arena = false;  ///< The rank has an arena or makes one; of all: some rank does.
  };

  /// Returns the votes of all ranks together; has_arena counts only if all can. All ranks vote once
  /// for each suspend, in any thread. give_up: called while waiting, throws if waiting is
  /// pointless.
  Vote agree(VotesPage& page, int rank, int ranks, Vote mine,
             const std::function<void()>& give_up) {
    const std::uint64_t turn = ++turn_;
    page.votes[turn % 2][rank].store(4 * turn + (mine.can ? kCan : 0) +
                                     (mine.has_arena ? kHasArena : 0));
    Vote all = mine;
    for (int other = 0; other < ranks && all.can; ++other) {
      const std::atomic<std::uint64_t>& vote = page.votes[turn % 2][other];
      for (; vote.load() / 4 < turn; give_up())
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      const std::uint64_t found = vote.load();
      all.can = found / 4 == turn && (found & kCan) != 0;
      all.has_arena = all.has_arena || (found & kHasArena) != 0;
    }
    return all;
  }

 private:
  static constexpr std::uint64_t kCan = 1, kHasArena = 2;
  std::uint64_t turn_ = 0;
};

}  // namespace plait::cuda
