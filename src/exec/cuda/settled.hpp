// Two processes that make the same calls in the same order settle a number for each call without
// meeting: whoever comes to a call first says what it would have, and the other takes that. In
// memory that both map; nobody waits, unless one is thousands of calls ahead.
#pragma once
#include <atomic>
#include <cstdint>

namespace plait::cuda {

class Settled {
 public:
  static constexpr std::uint64_t kCalls = 4096;  ///< that one may be ahead of the other

  struct Words {
    alignas(64) std::atomic<std::uint64_t> passed[2];  ///< by rank: calls
    std::atomic<std::uint64_t> said[kCalls];           ///< call + 1 and the number, in 8 bits
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  /// words: zeros when the first of the two begins; they outlive this.
  Settled(Words& words, int rank, double wait_s) : words_(words), rank_(rank), wait_s_(wait_s) {}

  /// The number of the next call; mine: 0 to 255. Error(timeout) where the other rank did not come
  /// to within kCalls of it in wait_s.
  int next(int mine);

 private:
  Words& words_;
  int rank_;
  double wait_s_;
};

}  // namespace plait::cuda
