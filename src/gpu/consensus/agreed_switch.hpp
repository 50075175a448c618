// Ranks that make the same calls in the same order agree on the first call that uses a resource
// prepared by each rank separately. No rank waits: the first rank to reach a call decides for all,
// in memory mapped by all, and switches only once every rank is ready.
#pragma once
#include <atomic>
#include <cstdint>

namespace plait::cuda {

class AgreedSwitch {
 public:
  static constexpr int kRanks = 16;  ///< At most.

  struct SwitchPage {
    /// kOn + first call with the resource; until then the last call that some rank began without
    /// the resource.
    alignas(64) std::atomic<std::uint64_t> state;
    /// Attempt that made the rank ready; 0 = none.
    std::atomic<std::uint32_t> ready[kRanks];
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  /// page: zeroed before the first rank starts; outlives this object.
  AgreedSwitch(SwitchPage& page, int rank, int ranks) : page_(page), rank_(rank), ranks_(ranks) {}

  /// Marks this rank ready as of `attempt`. Attempts count from 1; after an attempt with a failed
  /// rank, all ranks begin the next attempt. Any thread.
  void set_ready(std::uint32_t attempt = 1) {
    page_.ready[rank_].store(attempt, std::memory_order_release);
  }
  /// True once all ranks are ready as of the same attempt.
  bool all_ready() const;
  /// Returns whether the next call uses the resource; the same on all ranks. A single thread at a
  /// time.
  bool next();
  /// Rolls back the last next(): the following call takes its number.
  void cancel_last() { --calls_; }
  /// True once all later calls use the resource.
  bool is_on() const { return first_ != 0 && calls_ + 1 >= first_; }

 private:
  static constexpr std::uint64_t kOn = 1ull << 63;
  SwitchPage& page_;
  const int rank_, ranks_;
  std::uint64_t calls_ = 0;
  std::uint64_t first_ = 0;  // First call with the resource; 0 = not known yet.
};

}  // namespace plait::cuda
