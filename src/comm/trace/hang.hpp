// Explains a long wait from the flight recorders of a communicator's ranks: the call, the ranks
// that have not entered it, unlike calls, and ranks that are dead or stopped. HangWatch decides
// when a rank says so, in a line a call.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/trace/flight.hpp"

namespace plait {

/// Returns for example "all_reduce of 1024 fp32, sum" or "receive of 4096 bytes from rank 3".
std::string call_text(const FlightCall& call);

/// Why a rank waits.
struct Hang {
  std::uint64_t number = 0;  ///< of the call; 0 = the rank waits for messages alone, or not at all
  std::string call;          ///< "call 17 (all_reduce of 1024 fp32, sum)"; empty = no open call
  std::string reason;        ///< which ranks have entered the call, and what the others do
  bool has_cause = false;    ///< a rank is missing, dead or stopped, or calls are unlike
};
/// ranks: flights_of() of a communicator. now_ns: CLOCK_MONOTONIC.
Hang explain_hang(const std::vector<RankFlight>& ranks, int rank, int all_ranks,
                  std::int64_t now_ns);

/// Returns for example "the rank was last in call 16 (barrier), 3.1 s ago", for a rank of this
/// host; empty without a recorded call.
std::string last_call_text(const FlightInfo& info, int rank);
/// Whether this rank is the lowest on this host whose process runs: one of them reports what all
/// see. is_out: whether a rank does not report.
bool is_spokesman(const FlightInfo& info, const std::function<bool(const FlightRank&)>& is_out);

/// Whether a rank's calls have ended; unknown: a graph may be replayed.
enum class CallsEnded { no, yes, unknown };

/// Says in a line why a rank has waited for PLAIT_WARN_S in a call. The lowest waiting rank speaks.
/// After 10 lines no more come. All calls by one thread at a time, except is_due().
class HangWatch {
 public:
  explicit HangWatch(const FlightInfo& info);
  HangWatch(const FlightInfo& info, double after_s);
  /// Whether a look() may have something to say, or calls that had not ended may have. A few loads.
  bool is_due() const;
  /// Whether the last look() found that the rank's last call had not ended. Any thread; two loads.
  bool has_open() const;
  /// Returns the line to write, or an empty text. waits: a sentence in place of the call's, for
  /// waits that know more ("rank 0 waits for rank 2 to enter call 17"); may be empty.
  std::string look(CallsEnded ended, const std::string& waits = {});
  /// Likewise, of calls on a GPU. ask: asks the driver, which may take long. Calls end that were
  /// enqueued before the question.
  std::string look(const std::function<CallsEnded()>& ask);

 private:
  static constexpr int kMostLines = 10;
  /// A wait without a visible cause may be a long computation on the GPU.
  static constexpr double kNoCauseTimes = 6;
  std::string say(CallsEnded ended, std::uint64_t written, const std::string& waits);
  std::int64_t turn_ns(const std::vector<RankFlight>& ranks, const Hang& hang) const;

  const FlightInfo& info_;
  const double after_s_;
  std::atomic<std::uint64_t> done_{0};    ///< records about which nothing is left to say
  std::atomic<std::uint64_t> open_{0};    ///< last record at a look, if that had not ended; else 0
  std::atomic<std::int64_t> next_ns_{0};  ///< no look before
  std::uint64_t claimed_ = 0;             ///< number of the call that this rank has claimed
  int lines_ = 0;
};

}  // namespace plait
