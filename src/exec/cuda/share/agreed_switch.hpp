// Ranks that make the same calls in the same order agree from which call on something is there that
// each of them makes by itself. None waits for another: whoever comes to a call first decides it
// for all, in memory that all map, and only once every rank has said that it is ready.
#pragma once
#include <atomic>
#include <cstdint>

namespace plait::cuda {

class AgreedSwitch {
 public:
  static constexpr int kRanks = 16;  ///< at most

  struct SwitchPage {
    /// kOn + the first call with it; else the last call that somebody has begun without it.
    alignas(64) std::atomic<std::uint64_t> state;
    std::atomic<std::uint32_t> ready[kRanks];  ///< attempt that made the rank ready; 0 = none
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  /// words: zeros when the first of all begins; they outlive this.
  AgreedSwitch(SwitchPage& page, int rank, int ranks) : page_(page), rank_(rank), ranks_(ranks) {}

  /// This rank is ready as of `attempt`. Attempts count from 1: after an attempt in which a rank
  /// failed, and so stayed silent, all ranks begin the next attempt. Any thread.
  void set_ready(std::uint32_t attempt = 1) {
    page_.ready[rank_].store(attempt, std::memory_order_release);
  }
  /// True once all ranks are ready as of the same attempt.
  bool all_ready() const;
  /// Of the next call: the same answer on all ranks. One thread at a time.
  bool next();
  /// The last call was not made after all: the next one takes its number.
  void cancel_last() { --calls_; }
  /// True once it is so for all calls from the next on.
  bool is_on() const { return first_ != 0 && calls_ + 1 >= first_; }

 private:
  static constexpr std::uint64_t kOn = 1ull << 63;
  SwitchPage& page_;
  const int rank_, ranks_;
  std::uint64_t calls_ = 0;
  std::uint64_t first_ = 0;  // call with it; 0 = not known yet
};

}  // namespace plait::cuda
