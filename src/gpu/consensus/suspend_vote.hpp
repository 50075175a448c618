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
    std::atomic<std::uint64_t> votes[2][kRanks];  ///< 2 * turn, plus 1 if the rank can suspend.
  };

  /// Returns whether all ranks can suspend. All ranks vote once for each suspend, in any thread.
  /// give_up: called while waiting, throws if waiting is pointless.
  bool agree(VotesPage& page, int rank, int ranks, bool can, const std::function<void()>& give_up) {
    const std::uint64_t turn = ++turn_;
    page.votes[turn % 2][rank].store(2 * turn + (can ? 1 : 0));
    bool all = can;
    for (int other = 0; other < ranks && all; ++other) {
      const std::atomic<std::uint64_t>& vote = page.votes[turn % 2][other];
      for (; vote.load() / 2 < turn; give_up())
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      all = vote.load() == 2 * turn + 1;
    }
    return all;
  }

 private:
  std::uint64_t turn_ = 0;
};

}  // namespace plait::cuda
