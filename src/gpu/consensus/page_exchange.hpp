// Allgather through memory mapped by all ranks, for set-up beside the program's calls, when neither
// the rendezvous nor another library may be used. A failure on a rank fails the attempt on all
// ranks; then all may begin the next attempt.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plait/error.hpp"

namespace plait::cuda {

class PageExchange {
 public:
  static constexpr int kRanks = 16;  ///< At most.
  static constexpr std::size_t kRecordBytes = 960;
  static constexpr std::uint32_t kMostRounds = 256;  ///< Rounds of an attempt.

  struct ExchangePage {
    struct RankSlot {
      /// Last round this rank has reached, counted over all attempts.
      alignas(64) std::atomic<std::uint32_t> round;
      std::atomic<std::uint32_t> failed;  ///< Last attempt this rank gave up; 0 = none.
      std::atomic<char> reason[256];      ///< Reason of that failure.
      std::atomic<std::uint32_t> code;    ///< ErrorCode of that failure.
      std::uint32_t bytes[2];             ///< By parity of the round.
      char records[2][kRecordBytes];
    };
    RankSlot slots[kRanks];
  };

  /// page: zeroed before the first rank starts; outlives this object.
  PageExchange(ExchangePage& page, int rank, int ranks) : page_(page), rank_(rank), ranks_(ranks) {}

  /// Starts this attempt (1 or more; the first is 1). A later attempt may start only after the
  /// previous attempt failed on some rank.
  void begin(std::uint32_t attempt);
  /// Returns every rank's bytes in rank order once all have come; called by all ranks alike.
  /// give_up is called first, before other ranks see the record, then while waiting, and throws to
  /// end the exchange. Throws a failed rank's error.
  std::vector<std::string> exchange(const std::string& mine, const std::function<void()>& give_up);
  /// Ends the attempt for this rank: for this reason, or for another rank's earlier reason. Other
  /// ranks' exchange() throws Error(code). Any thread.
  void fail(const std::string& reason, ErrorCode code = ErrorCode::mismatch) noexcept;
  /// Reason why a rank failed in this attempt or a later attempt; "" if none did.
  std::string failure() const { return found_failure().reason; }

 private:
  struct Failure {
    std::string reason;  ///< Empty = no rank has failed.
    ErrorCode code = ErrorCode::mismatch;
  };
  Failure found_failure() const;
  void throw_failure() const;

  ExchangePage& page_;
  const int rank_, ranks_;
  std::atomic<std::uint32_t> attempt_{1};
  std::uint32_t round_ = kMostRounds;  // Counted over all attempts.
};

}  // namespace plait::cuda
