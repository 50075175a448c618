// Ranks that make the same calls in the same order agree on the first call that uses a resource
// prepared by each rank separately, and on the last before all give the resource up. No rank waits:
// the first rank to reach a call decides for all, in memory mapped by all, and switches on only
// once every rank is ready. Off is a vote: each rank offers it while it makes no call, and a call
// takes the offer back.
#pragma once
#include <atomic>
#include <cstdint>

namespace plait::cuda {

class AgreedSwitch {
 public:
  static constexpr int kRanks = 16;  ///< At most.

  struct SwitchPage {
    /// Bits 0 to 39: while on, the first call with the resource; while off, the last call that some
    /// rank began without it. Then a count of offers taken back, a bit for each rank's offer, and
    /// kOn.
    alignas(64) std::atomic<std::uint64_t> state;
    /// Attempt that made the rank ready; 0 = none.
    std::atomic<std::uint32_t> ready[kRanks];
    /// Last attempt whose resource the ranks may have given up; valid while off.
    std::atomic<std::uint32_t> spent;
    std::atomic<std::uint64_t> begun[kRanks];  ///< Calls of a rank that offers to switch off.
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  /// page: zeroed before the first rank starts; outlives this object.
  AgreedSwitch(SwitchPage& page, int rank, int ranks) : page_(page), rank_(rank), ranks_(ranks) {}

  /// Marks this rank ready as of `attempt`. Attempts count from 1; after an attempt with a failed
  /// rank, and after a switch off, all ranks begin the next attempt. Any thread.
  void set_ready(std::uint32_t attempt = 1) {
    page_.ready[rank_].store(attempt, std::memory_order_release);
  }
  /// True if all ranks have the resource, from the same attempt. Any thread.
  bool all_ready() const;
  /// True if all ranks have given up what `attempt` made, or do so now. Any thread.
  bool is_spent(std::uint32_t attempt) const;
  /// Returns whether the next call uses the resource; the same on all ranks. A single thread at a
  /// time, like all below.
  bool next();
  /// Rolls back the last next(): the following call takes its number. Returns next()'s answer.
  bool cancel_last();
  /// True once all later calls use the resource, until a switch off. Any thread.
  bool is_on() const;
  /// Number of calls so far. Any thread.
  std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  /// Offers to switch off. Returns true if all ranks have offered after the same call: the switch
  /// is off, and each rank may give the resource up. Needs that no work of this rank uses it.
  bool offer_off();

 private:
  static constexpr std::uint64_t kOn = 1ull << 63;
  static constexpr int kOffersAt = 47, kTakenBackAt = 40;
  static constexpr std::uint64_t kNumber = (1ull << kTakenBackAt) - 1;
  static constexpr std::uint64_t kOffers = ((1ull << kRanks) - 1) << kOffersAt;
  static constexpr std::uint64_t kTakenBack = ((1ull << (kOffersAt - kTakenBackAt)) - 1)
                                              << kTakenBackAt;
  std::uint64_t offer() const { return 1ull << (kOffersAt + rank_); }
  /// Counts on, so that a rank that has read the offers sees that they have changed.
  static std::uint64_t counted(std::uint64_t state) {
    return (state & ~kTakenBack) | ((state + (1ull << kTakenBackAt)) & kTakenBack);
  }
  SwitchPage& page_;
  const int rank_, ranks_;
  std::atomic<std::uint64_t> calls_{0};
};

}  // namespace plait::cuda
