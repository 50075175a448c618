// Processes that make the same calls in the same order agree on a number for each call, in memory
// mapped by all, without a barrier. The first process to reach a call decides: the minimum of the
// process's own proposal and the peers' last proposals. The peers read that number. A process waits
// only when thousands of calls ahead of another.
#pragma once
#include <atomic>
#include <cstdint>

namespace plait::cuda {

class AgreedNumber {
 public:
  /// Most calls that a rank may be ahead of another.
  static constexpr std::uint64_t kCalls = 4096;
  static constexpr int kRanks = 16;  ///< At most.

  struct NumberPage {
    alignas(64) std::atomic<std::uint64_t> calls_done[kRanks];  ///< By rank: number of calls done.
    std::atomic<std::uint32_t> proposed[kRanks];  ///< By rank: 1 + last proposal; 0 = none yet.
    std::atomic<std::uint64_t> decided[kCalls];   ///< Call + 1 (32 bits), tag (24), number (8).
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  /// page: zeroed before the first rank starts; outlives this object.
  AgreedNumber(NumberPage& page, int rank, int ranks, double wait_s)
      : page_(page), rank_(rank), ranks_(ranks), wait_s_(wait_s) {}

  static constexpr std::uint32_t kAll = ~0u;
  /// Returns the number of the next call. proposal: 0 to 255. about: identifies the call. voters:
  /// ranks (bits) whose proposals count and are stored. `about` and `voters` are the same on all
  /// ranks. Until a voter has proposed, any rank's proposal counts. Error(mismatch) if another rank
  /// makes a different call, timeout if a rank stays kCalls behind for wait_s.
  int next(int proposal, std::uint64_t about, std::uint32_t voters = kAll);

 private:
  void await_others(std::uint64_t call) const;
  int least_proposal(int mine, std::uint32_t voters) const;

  NumberPage& page_;
  const int rank_, ranks_;
  const double wait_s_;
};

}  // namespace plait::cuda
