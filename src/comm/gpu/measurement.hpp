// Times calls on all ranks together until time is up, the calls most used by programs first. Rank
// 0's clock decides which request is timed next, and the slowest rank's times count, so that all
// ranks measure the same.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "comm/gpu/call_bench.hpp"
#include "gpu/select/tuning_rows.hpp"
#include "plait/error.hpp"

namespace plait {

/// Returns the requests that a measurement times, the most used first: all_reduce, all_gather and
/// reduce_scatter from 1 KiB to 16 MiB, then sizes around and between these sizes, and other
/// collectives behind. Both ends of a range come first, since their times bound NCCL's times in
/// between. beside_nccl: send_recv stands for messages to the next rank.
std::vector<Request> requests_by_use(int ranks, bool beside_nccl);

/// A rank's failure that has ended a measurement early. All ranks throw the error together.
class MeasuringFailed : public Error {
 public:
  using Error::Error;
};
/// Exchanges bytes of a step. failure: of this rank's step. All ranks throw MeasuringFailed if any
/// rank has a failure.
std::vector<std::string> agreed_step(const cuda::Exchange& exchange,
                                     const std::optional<Error>& failure, const std::string& mine);

/// Steps that fail on all ranks together if a rank's part fails.
class MeasuringSteps {
 public:
  explicit MeasuringSteps(const cuda::Exchange& exchange) : exchange_(exchange) {}
  /// Runs this rank's part of a step. If a part fails on any rank, all ranks throw MeasuringFailed,
  /// also ranks whose part waits in exchange(). An error of the exchange itself passes, as does
  /// NoDirectAccess, which all ranks throw alike.
  void together(const std::function<void()>& part);
  /// Returns the exchange that parts of steps use. This object outlives the result.
  cuda::Exchange exchange();

 private:
  const cuda::Exchange& exchange_;
  bool is_exchanging_ = false;  ///< stays true after an error of the exchange
};

struct MeasuringTerms {
  int rank = 0;
  cuda::RowUse when = cuda::RowUse::alone;
  double budget_s = 3.0;
  std::function<double()> elapsed_s;  ///< since the measurement began
  /// Called on rank 0 before each request, with the number of requests done and of all requests.
  std::function<void(std::size_t, std::size_t)> progress;
};

class Measurement {
 public:
  Measurement(CallBench& bench, const cuda::Exchange& exchange, MeasuringTerms terms);
  /// Returns the fastest way of each request timed. Throws MeasuringFailed alike on all ranks, or
  /// what the exchange throws.
  std::vector<cuda::MeasuredCall> run(std::vector<Request> requests);
  /// Number of requests that were timed.
  std::size_t timed() const { return done_; }
  /// Number of requests left out when time was up.
  std::size_t left_out() const { return left_out_; }
  /// Number of requests timed without NCCL, since NCCL's times at other sizes decided.
  std::size_t timed_alone() const { return alone_; }

 private:
  /// Times of a size's ways over the fastest way's time, by label.
  using TimesByWay = std::map<std::string, double>;
  using Series = std::pair<Collective, DataType>;
  struct NcclTime {
    DataType type;
    std::uint64_t bytes;
    CallTimes us;
  };
  /// A request's ways, and the slowest rank's times; NCCL's stand last.
  struct TimedRequest {
    std::vector<CallWay> ways;
    std::vector<CallTimes> times;
  };

  std::vector<CallWay> likely(const Request& request) const;
  void time_request(const Request& request, const std::function<std::size_t()>& next);
  TimedRequest timed(const Request& request, bool by_plait, bool beside_nccl,
                     const std::function<std::size_t()>& next);
  std::vector<cuda::MeasuredCall> calls_of(const Request& request, const TimedRequest& made,
                                           const CallTimes& nccl) const;
  void keep(const Request& request, const TimedRequest& made,
            const std::vector<cuda::MeasuredCall>& calls);
  cuda::MeasuredCall measured(const Request& request, const CallWay& way, const CallTimes& mine,
                              const CallTimes& nccl) const;
  void note_messages(const std::vector<cuda::MeasuredCall>& calls);
  CallTimes nccl_at_least(const Request& request) const;
  bool may_be_ahead(const Request& request, const CallTimes& nccl) const;
  double expected_us(const Request& request) const;
  std::size_t next_of(const std::vector<Request>& requests, std::size_t from) const;
  double expected_s(const Request& request) const;

  CallBench& bench_;
  const cuda::Exchange& exchange_;
  const MeasuringTerms terms_;
  std::map<Series, std::map<std::uint64_t, TimesByWay>> timed_;
  std::map<Collective, std::map<std::uint64_t, double>> run_s_;  ///< s of a request, by bytes
  std::vector<double> ready_s_;  ///< of requests whose collective was timed before
  double connect_s_ = 0;         ///< longest preparation of a collective's first request
  std::map<Collective, std::map<std::uint64_t, double>> own_us_;  ///< the fastest way, by bytes
  std::map<Collective, std::vector<NcclTime>> nccl_;
  std::vector<cuda::MeasuredCall> found_;
  bool are_messages_behind_ = false;  ///< at a size; then NCCL's serve at all sizes
  std::size_t at_ = 0, done_ = 0, left_out_ = 0, alone_ = 0;
};

}  // namespace plait
