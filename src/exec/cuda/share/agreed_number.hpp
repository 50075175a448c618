// Processes that make the same calls in the same order settle a number for each call without
// meeting, in memory that all of them map. The first process at a call settles the least of two
// numbers: what it wishes, and what the others wished last. The others take that number. A process
// waits only where it is thousands of calls ahead of another.
#pragma once
#include <atomic>
#include <cstdint>

namespace plait::cuda {

class AgreedNumber {
 public:
  static constexpr std::uint64_t kCalls = 4096;  ///< that one may be ahead of another
  static constexpr int kRanks = 16;              ///< at most

  struct NumberPage {
    alignas(64) std::atomic<std::uint64_t> calls_done[kRanks];  ///< by rank: calls
    std::atomic<std::uint32_t> proposed[kRanks];  ///< by rank: 1 + the last wish; 0 = none yet
    std::atomic<std::uint64_t>
        decided[kCalls];  ///< call + 1 (32 bits), what about (24), the number
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  /// words: zeros when the first of all begins; they outlive this.
  AgreedNumber(NumberPage& page, int rank, int ranks, double wait_s)
      : page_(page), rank_(rank), ranks_(ranks), wait_s_(wait_s) {}

  static constexpr std::uint32_t kAll = ~0u;
  /// The number of the next call; wish: 0 to 255. about: what the call is, judges: the ranks (bits)
  /// whose wishes count and are remembered, both the same on all ranks; where no judge has wished
  /// anything yet, any rank's counts.
  /// Error(mismatch) where another rank's call is another one, timeout where one did not come to
  /// within kCalls of this one in wait_s.
  int next(int proposal, std::uint64_t about, std::uint32_t voters = kAll);

 private:
  void await_others(std::uint64_t call) const;
  int least_proposal(int mine, std::uint32_t voters) const;

  NumberPage& page_;
  const int rank_, ranks_;
  const double wait_s_;
};

}  // namespace plait::cuda
