// Two processes that make the same calls in the same order settle a number for each call without
// meeting: whoever comes to a call first says the less of what it wishes and what the other wished
// last, and the other takes that. In memory that both map; nobody waits, unless one is thousands of
// calls ahead.
#pragma once
#include <atomic>
#include <cstdint>

namespace plait::cuda {

class Settled {
 public:
  static constexpr std::uint64_t kCalls = 4096;  ///< that one may be ahead of the other

  struct Words {
    alignas(64) std::atomic<std::uint64_t> passed[2];  ///< by rank: calls
    std::atomic<std::uint32_t> wished[2];              ///< by rank: 1 + the last wish; 0 = none yet
    std::atomic<std::uint64_t> said[kCalls];  ///< call + 1 (32 bits), what about (24), the number
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  /// words: zeros when the first of the two begins; they outlive this.
  Settled(Words& words, int rank, double wait_s) : words_(words), rank_(rank), wait_s_(wait_s) {}

  /// The number of the next call; wish: 0 to 255. about: what the call is, the same on both ranks.
  /// Error(mismatch) where the other rank's call is another one, timeout where it did not come to
  /// within kCalls of this one in wait_s.
  int next(int wish, std::uint64_t about);

 private:
  Words& words_;
  int rank_;
  double wait_s_;
};

}  // namespace plait::cuda
