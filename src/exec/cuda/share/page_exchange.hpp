// Cards that ranks show each other in memory that all of them map: an Exchange for what is made
// beside the program's calls, when no rendezvous and no other library may be asked. Where a rank
// fails, all do; then they may begin the next attempt.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace plait::cuda {

class PageExchange {
 public:
  static constexpr int kRanks = 16;  ///< at most
  static constexpr std::size_t kRecordBytes = 960;
  static constexpr std::uint32_t kMostRounds = 256;  ///< of an attempt

  struct ExchangePage {
    struct RankSlot {
      alignas(
          64) std::atomic<std::uint32_t> round;  ///< that this rank has come to, of all attempts
      std::atomic<std::uint32_t> failed;         ///< the last attempt that it gave up, as
      std::atomic<char> reason[256];             ///< this says; 0 = none
      std::uint32_t bytes[2];                    ///< of rounds by turns
      char records[2][kRecordBytes];
    };
    RankSlot slots[kRanks];
  };

  /// words: zeros when the first of all begins; they outlive this.
  PageExchange(ExchangePage& page, int rank, int ranks) : page_(page), rank_(rank), ranks_(ranks) {}

  /// From here on of that attempt, 1 or more; at first it is 1. A later one is begun only where the
  /// one before has failed on some rank.
  void begin(std::uint32_t attempt);
  /// Every rank's bytes in rank order, once all have come; called alike by all. give_up is asked
  /// meanwhile, and throws where waiting is over. Error(mismatch) where a rank has failed.
  std::vector<std::string> exchange(const std::string& mine, const std::function<void()>& give_up);
  /// This rank comes to no further round of the attempt, for that reason or for an earlier one of
  /// another. Any thread.
  void fail(const std::string& reason) noexcept;
  /// Why some rank failed in this attempt, or a later one; "" where none did.
  std::string failure() const;

 private:
  ExchangePage& page_;
  const int rank_, ranks_;
  std::atomic<std::uint32_t> attempt_{1};
  std::uint32_t round_ = kMostRounds;  // of the attempt, and all rounds of those before it
};

}  // namespace plait::cuda
