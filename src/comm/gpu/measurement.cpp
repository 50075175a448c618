// A request takes two exchanges: the first says which ways are ready on all ranks, the second has
// the times. Calls run on the GPUs between the two exchanges alone, so preparing and freeing may
// wait for the GPU. NCCL's calls take the longest to prepare. If NCCL's times at other sizes show
// that plait is ahead, plait alone is timed: a larger message of NCCL takes at least as long as a
// smaller message, and a smaller message has at most the bandwidth of a larger message. If plait
// turns out not to be ahead, NCCL alone is timed next, and plait's times stay.
#include "comm/gpu/measurement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/env.hpp"
#include "base/error_reason.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/bootstrap/vote.hpp"
#include "comm/gpu/bench_launches.hpp"
#include "gpu/arena/arena.hpp"
#include "plan/blocks.hpp"

namespace plait {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Most of the time of the way that runs without a measurement that another way may take to win:
// noise must not decide.
constexpr double kMargin = 0.97;
constexpr double kNoise = 0.99;  // the first way within this share of the fastest way's speed wins
// Times over the fastest way's. A way far behind at one neighbouring size, or behind at both, is
// not timed.
constexpr double kFarBehind = 2.5, kBehind = 1.5;
// Most ratio of both neighbouring sizes, and of a request's size to one neighbouring size.
constexpr std::uint64_t kNear = 16, kClose = 4;
constexpr double kUnknownS = 0.05;  // expected time of the first request
// Two H200 had 1.08 times the time of a larger message and 1.05 times its bandwidth at most
// (E-0520).
constexpr double kNoFaster = 0.92, kNoBandwidth = 0.95;
constexpr double kOtherType = 0.9;  // NCCL's sums of other types
// From this size on a call's time grows about as the message does. Below, a larger message counts
// as moved by a fast link: a call that is expected to be too short is timed too often, not too
// seldom.
constexpr std::uint64_t kStreamFrom = 1 << 20;
constexpr double kFastBytesPerUs = 100e3;

struct Timed {
  Collective collective;
  DataType type;
};

std::vector<Timed> most_used() {
  return {{Collective::all_reduce, DataType::bf16},
          {Collective::all_gather, DataType::bf16},
          {Collective::reduce_scatter, DataType::bf16},
          {Collective::all_reduce, DataType::fp32},
          {Collective::reduce_scatter, DataType::fp32}};
}

std::vector<Timed> next_used(bool beside_nccl) {
  std::vector<Timed> found{{Collective::broadcast, DataType::bf16},
                           {Collective::all_to_all, DataType::bf16},
                           {Collective::reduce, DataType::bf16},
                           {Collective::reduce, DataType::fp32}};
  if (beside_nccl) found.push_back({Collective::send_recv, DataType::bf16});  // of messages
  return found;
}

std::vector<Timed> least_used(bool beside_nccl) {
  std::vector<Timed> found{{Collective::gather, DataType::bf16},
                           {Collective::scatter, DataType::bf16}};
  if (!beside_nccl) found.push_back({Collective::send_recv, DataType::bf16});
  return found;
}

// Sizes as powers of two, in order of use.
const std::vector<int> kFirst{10, 20, 24, 12, 16}, kAround{28, 22, 18, 14, 26},
    kBetween{23, 25, 21, 27, 19, 17, 15, 13, 11}, kLast{30, 29};

void add_requests(std::vector<Request>& all, const std::vector<Timed>& timed,
                  const std::vector<int>& sizes, int ranks) {
  for (const int size : sizes)
    for (const Timed& one : timed) {
      Request request;
      request.collective = one.collective;
      request.type = one.type;
      request.ranks = ranks;
      request.peer = 1;
      all.push_back(of_message_bytes(request, std::uint64_t{1} << size));
    }
}

double value_of(const CallTimes& times, const CallTimes& nccl) {
  if (times.captured_us <= 0) return kNever;
  if (nccl.captured_us <= 0) return times.captured_us + times.eager_us;
  const double captured = times.captured_us / nccl.captured_us;
  return nccl.eager_us <= 0 ? captured : std::max(captured, times.eager_us / nccl.eager_us);
}

/// Returns the index of the fastest way; none if no way was timed.
std::optional<std::size_t> fastest(const std::vector<double>& values) {
  const double least = *std::min_element(values.begin(), values.end());
  if (least == kNever) return std::nullopt;
  if (values[0] * kMargin <= least) return 0;
  return static_cast<std::size_t>(
      std::find_if(values.begin(), values.end(),
                   [&](double value) { return value * kNoise <= least; }) -
      values.begin());
}

/// Returns the value at `bytes` on the line through the nearest sizes; none above the largest size.
std::optional<double> on_line(const std::map<std::uint64_t, double>& by_bytes,
                              std::uint64_t bytes) {
  const auto above = by_bytes.lower_bound(bytes);
  if (above == by_bytes.end()) return std::nullopt;
  if (above == by_bytes.begin() || above->first == bytes) return above->second;
  const auto below = std::prev(above);
  return below->second + (above->second - below->second) *
                             static_cast<double>(bytes - below->first) /
                             static_cast<double>(above->first - below->first);
}

/// Returns the value of the largest size, times the ratio of the sizes.
double beyond(const std::map<std::uint64_t, double>& by_bytes, std::uint64_t bytes) {
  const auto& [most_bytes, most] = *by_bytes.rbegin();
  return most * static_cast<double>(bytes) / static_cast<double>(most_bytes);
}

std::string pack_times(const std::vector<CallTimes>& times, std::size_t next) {
  std::vector<std::string> fields{text("{}", next)};
  for (const CallTimes& one : times) {
    fields.push_back(text("{}", std::llround(one.captured_us * 1000)));
    fields.push_back(text("{}", std::llround(one.eager_us * 1000)));
  }
  return pack(fields);
}

double us_of(const std::string& field) {
  return static_cast<double>(parse_integer("ns of a call", field, 0, 1ll << 50)) / 1000;
}

/// Returns the slowest rank's times; 0 if a rank has no time.
std::vector<CallTimes> slowest(const std::vector<std::vector<std::string>>& records,
                               std::size_t ways) {
  std::vector<CallTimes> all(ways + 1);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto most = [&](std::size_t field) {
      double us = 0;
      for (const std::vector<std::string>& record : records) {
        const double mine = us_of(record[field]);
        if (mine <= 0) return 0.0;
        us = std::max(us, mine);
      }
      return us;
    };
    all[i] = {most(1 + 2 * i), most(2 + 2 * i)};
  }
  return all;
}

}  // namespace

std::string label(const CallWay& way) {
  if (way.by_messages) return cuda::kMessagesRow;
  if (way.engine == nullptr) return "";
  std::string words = way.engine->info().name;
  for (const auto& [name, value] : cuda::params_of(way.tuning))
    words += text(":{}={}", name, value);
  return words;
}

std::vector<Request> requests_by_use(int ranks, bool beside_nccl) {
  std::vector<Request> all;
  const std::vector<Timed> least = least_used(beside_nccl);
  add_requests(all, most_used(), kFirst, ranks);
  add_requests(all, next_used(beside_nccl), kFirst, ranks);
  add_requests(all, most_used(), kAround, ranks);
  add_requests(all, next_used(beside_nccl), kAround, ranks);
  add_requests(all, most_used(), kBetween, ranks);
  add_requests(all, next_used(beside_nccl), kBetween, ranks);
  add_requests(all, most_used(), kLast, ranks);
  add_requests(all, next_used(beside_nccl), kLast, ranks);
  add_requests(all, least, kFirst, ranks);
  add_requests(all, least, kAround, ranks);
  add_requests(all, least, {kLast.front()}, ranks);
  return all;
}

std::vector<std::string> agreed_step(const cuda::Exchange& exchange,
                                     const std::optional<Error>& failure, const std::string& mine) {
  constexpr std::size_t kMostReason = 512;
  const std::string code = failure ? text("{}", static_cast<int>(failure->code())) : "";
  const std::string reason = failure ? reason_of(*failure).substr(0, kMostReason) : "";
  std::vector<std::string> bodies;
  std::optional<MeasuringFailed> first;
  const std::vector<std::string> records = exchange(pack({code, reason, mine}));
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const std::vector<std::string> fields = unpack(records[rank]);
    if (fields.size() != 3)
      throw Error(ErrorCode::parse_error, "record of a measurement: wanted 3 fields");
    if (!fields[0].empty() && !first)
      first =
          MeasuringFailed(static_cast<ErrorCode>(parse_integer("error code", fields[0], 0, 1000)),
                          text("rank {}: {}", rank, fields[1]));
    bodies.push_back(fields[2]);
  }
  if (first) throw MeasuringFailed(*first);
  return bodies;
}

cuda::Exchange MeasuringSteps::exchange() {
  return [this](const std::string& mine) {
    is_exchanging_ = true;
    try {
      std::vector<std::string> all = agreed_step(exchange_, std::nullopt, mine);
      is_exchanging_ = false;
      return all;
    } catch (const MeasuringFailed&) {
      is_exchanging_ = false;
      throw;
    }
  };
}

void MeasuringSteps::together(const std::function<void()>& part) {
  std::optional<Error> failure;
  try {
    part();
  } catch (const MeasuringFailed&) {
    throw;
  } catch (const cuda::NoDirectAccess&) {
    throw;
  } catch (const std::exception& caught) {
    if (is_exchanging_) throw;
    failure = as_error(caught);
  }
  agreed_step(exchange_, failure, "");
}

Measurement::Measurement(CallBench& bench, const cuda::Exchange& exchange, MeasuringTerms terms)
    : bench_(bench), exchange_(exchange), terms_(std::move(terms)) {}

std::vector<cuda::MeasuredCall> Measurement::run(std::vector<Request> requests) {
  std::erase_if(requests, [this](const Request& request) {
    return message_bytes(request) > bench_.most_bytes();
  });
  // Clocks differ between ranks, so rank 0 alone decides which request is first.
  const bool is_first = terms_.rank == 0;
  const std::size_t first = is_first ? next_of(requests, 0) : 0;
  at_ = static_cast<std::size_t>(parse_integer(
      "first request", agreed_step(exchange_, std::nullopt, text("{}", first))[0], 0, 1 << 20));
  std::size_t skipped = 0, skipped_messages = 0;
  const auto skip = [&](std::size_t from) {
    for (std::size_t i = from; i < at_; ++i)
      ++(requests[i].collective == Collective::send_recv ? skipped_messages : skipped);
  };
  skip(0);
  while (at_ < requests.size()) {
    if (is_first && terms_.progress) terms_.progress(done_, requests.size());
    const std::size_t here = at_;
    time_request(requests[here], [&] { return next_of(requests, here + 1); });
    ++done_;
    skip(here + 1);
  }
  left_out_ = skipped + (are_messages_behind_ ? 0 : skipped_messages);
  return std::move(found_);
}

/// Times plait alone if NCCL's times at other sizes may decide. If they do not, times NCCL too.
void Measurement::time_request(const Request& request, const std::function<std::size_t()>& next) {
  const CallTimes floor = nccl_at_least(request);
  TimedRequest made;
  if (floor.captured_us > 0 && may_be_ahead(request, floor)) {
    made = timed(request, true, false, next);
    std::vector<cuda::MeasuredCall> calls = calls_of(request, made, floor);
    for (cuda::MeasuredCall& call : calls) call.is_nccl_inferred = true;
    const auto is_ahead = [](const cuda::MeasuredCall& call) {
      return cuda::beats_nccl(call.us, call.nccl_us) == true;
    };
    if (!calls.empty() && std::all_of(calls.begin(), calls.end(), is_ahead)) {
      ++alone_;
      return keep(request, made, calls);
    }
    made.times.back() = timed(request, false, true, next).times.back();
  } else {
    made = timed(request, true, true, next);
  }
  const CallTimes& nccl = made.times.back();
  if (nccl.captured_us > 0)
    nccl_[request.collective].push_back({request.type, message_bytes(request), nccl});
  const std::vector<cuda::MeasuredCall> calls = calls_of(request, made, nccl);
  note_messages(calls);
  keep(request, made, calls);
}

/// Messages serve all sizes or none, so one size with a lead of NCCL decides.
void Measurement::note_messages(const std::vector<cuda::MeasuredCall>& calls) {
  for (const cuda::MeasuredCall& call : calls)
    if (call.engine == cuda::kMessagesRow && cuda::beats_nccl(call.us, call.nccl_us) == false)
      are_messages_behind_ = true;
}

/// Times plait's likely ways if `by_plait`, and NCCL's call behind them if `beside_nccl`.
Measurement::TimedRequest Measurement::timed(const Request& request, bool by_plait,
                                             bool beside_nccl,
                                             const std::function<std::size_t()>& next) {
  const double began_s = terms_.elapsed_s();
  std::vector<CallWay> ways;
  std::vector<bool> ready;
  const auto unready = attempt([&] {
    if (by_plait) ways = likely(request);
    ready = bench_.prepare(request, ways, beside_nccl, expected_us(request));
  });
  const double prepared_s = terms_.elapsed_s();
  std::string bits;
  for (const bool one : ready) bits += one ? '1' : '0';
  for (const std::string& others : agreed_step(exchange_, unready, bits))
    for (std::size_t i = 0; i < ready.size(); ++i)
      ready[i] = ready[i] && i < others.size() && others[i] == '1';
  const double ready_s = terms_.elapsed_s();
  std::vector<CallTimes> times(ways.size() + 1);
  const auto failure = attempt([&] { times = bench_.run(ready); });
  const double ended_s = terms_.elapsed_s();
  std::map<std::uint64_t, double>& runs = run_s_[request.collective];
  if (runs.empty())
    connect_s_ = std::max(connect_s_, ready_s - began_s);
  else
    ready_s_.push_back(ready_s - began_s);
  double& run_s = runs[message_bytes(request)];
  run_s = (by_plait ? 0 : run_s) + ended_s - ready_s;
  if (terms_.rank == 0)
    log(LogLevel::explain, 0,
        text("timed {} ways of {} of {} bytes {}: {} us to prepare, {} us until all ranks had, "
             "{} us to run",
             ways.size(), name_of(request.collective), message_bytes(request),
             beside_nccl ? "beside NCCL" : "alone", std::llround((prepared_s - began_s) * 1e6),
             std::llround((ready_s - prepared_s) * 1e6), std::llround((ended_s - ready_s) * 1e6)));
  const std::size_t then = terms_.rank == 0 ? next() : 0;
  std::vector<std::vector<std::string>> records;
  for (const std::string& record : agreed_step(exchange_, failure, pack_times(times, then))) {
    records.push_back(unpack(record));
    if (records.back().size() != 2 * ways.size() + 3)
      throw Error(ErrorCode::parse_error, "times of another rank: wanted two a way, and NCCL's");
  }
  at_ = static_cast<std::size_t>(parse_integer("next request", records[0][0], 0, 1 << 20));
  std::vector<CallTimes> slowest_us = slowest(records, ways.size());
  return {std::move(ways), std::move(slowest_us)};
}

/// Returns the request's ways, except ways that were far behind at neighbouring sizes.
std::vector<CallWay> Measurement::likely(const Request& request) const {
  std::vector<CallWay> all = bench_.ways(request);
  if (are_messages_behind_) std::erase_if(all, [](const CallWay& way) { return way.by_messages; });
  const auto series = timed_.find({request.collective, request.type});
  if (series == timed_.end() || all.empty()) return all;
  const std::uint64_t bytes = message_bytes(request);
  const auto above = series->second.lower_bound(bytes);
  const bool has_above = above != series->second.end(), has_below = above != series->second.begin();
  const auto ratio = [&](const TimesByWay& times, const CallWay& way) {
    const auto found = times.find(label(way));
    return found == times.end() ? 1.0 : found->second;
  };
  // A single neighbouring size says less: a way may fall behind or catch up within a few doublings.
  const auto is_behind = [&](const CallWay& way) {
    if (has_above && has_below && above->first <= kNear * std::prev(above)->first)
      return ratio(above->second, way) > kBehind && ratio(std::prev(above)->second, way) > kBehind;
    return (has_above && above->first <= kClose * bytes &&
            ratio(above->second, way) > kFarBehind) ||
           (has_below && bytes <= kClose * std::prev(above)->first &&
            ratio(std::prev(above)->second, way) > kFarBehind);
  };
  all.erase(std::remove_if(all.begin() + 1, all.end(), is_behind), all.end());
  return all;
}

/// Returns calls by messages, then the fastest way's call.
std::vector<cuda::MeasuredCall> Measurement::calls_of(const Request& request,
                                                      const TimedRequest& made,
                                                      const CallTimes& nccl) const {
  std::vector<cuda::MeasuredCall> calls;
  std::vector<double> values;
  for (std::size_t i = 0; i < made.ways.size(); ++i) {
    const bool by_messages = made.ways[i].by_messages;
    if (by_messages && made.times[i].captured_us > 0)
      calls.push_back(measured(request, made.ways[i], made.times[i], nccl));
    values.push_back(by_messages ? kNever : value_of(made.times[i], nccl));
  }
  const std::optional<std::size_t> best = values.empty() ? std::nullopt : fastest(values);
  if (best) calls.push_back(measured(request, made.ways[*best], made.times[*best], nccl));
  return calls;
}

void Measurement::keep(const Request& request, const TimedRequest& made,
                       const std::vector<cuda::MeasuredCall>& calls) {
  std::vector<double> values;
  for (std::size_t i = 0; i < made.ways.size(); ++i)
    values.push_back(made.ways[i].by_messages ? kNever
                                              : value_of(made.times[i], made.times.back()));
  const double least = values.empty() ? kNever : *std::min_element(values.begin(), values.end());
  if (least != kNever) {
    TimesByWay& by_way = timed_[{request.collective, request.type}][message_bytes(request)];
    for (std::size_t i = 0; i < made.ways.size(); ++i)
      if (values[i] != kNever) by_way[label(made.ways[i])] = values[i] / least;
  }
  if (!calls.empty()) own_us_[request.collective][message_bytes(request)] = calls.back().us;
  found_.insert(found_.end(), calls.begin(), calls.end());
}

/// Returns the call with its times in a graph or one by one: the worse of both beside NCCL's.
cuda::MeasuredCall Measurement::measured(const Request& request, const CallWay& way,
                                         const CallTimes& mine, const CallTimes& nccl) const {
  const bool by_eager =
      nccl.eager_us > 0 && mine.eager_us / nccl.eager_us > mine.captured_us / nccl.captured_us;
  const bool is_plan = way.engine == nullptr && !way.by_messages;
  return {.when = terms_.when,
          .collective = request.collective,
          .type = request.type,
          .ranks = request.ranks,
          .bytes = message_bytes(request),
          .engine = is_plan           ? ""
                    : way.by_messages ? cuda::kMessagesRow
                                      : way.engine->info().name,
          .params = cuda::params_of(way.tuning),
          .us = by_eager ? mine.eager_us : mine.captured_us,
          .nccl_us = by_eager ? nccl.eager_us : nccl.captured_us};
}

/// Returns the least times that NCCL's calls at other sizes leave possible. Returns zeros if NCCL's
/// calls of the collective were not timed, or if their times do not grow as expected.
CallTimes Measurement::nccl_at_least(const Request& request) const {
  const auto found = nccl_.find(request.collective);
  if (found == nccl_.end()) return {};
  // Returns the shortest time of `bytes` if `from` bytes take `us`.
  const auto least = [](double us, std::uint64_t from, std::uint64_t bytes) {
    return bytes >= from
               ? kNoFaster * us
               : kNoBandwidth * us * static_cast<double>(bytes) / static_cast<double>(from);
  };
  // The same from cuda::kFullFrom on, where bandwidth hardly grows. Not for the check of growth
  // below.
  const auto least_of_large = [&least](double us, std::uint64_t from, std::uint64_t bytes) {
    const double low = least(us, from, bytes);
    if (from < cuda::kFullFrom || bytes < from) return low;
    const double ratio = static_cast<double>(bytes) / static_cast<double>(from);
    return std::max(low, us * ratio / cuda::kFullBandwidth);
  };
  CallTimes floor;
  const std::uint64_t bytes = message_bytes(request);
  for (const NcclTime& one : found->second) {
    for (const NcclTime& other : found->second)
      if (one.type == other.type &&
          other.us.captured_us < least(one.us.captured_us, one.bytes, other.bytes))
        return {};
    const double share =
        one.type == request.type || !reduces(request.collective) ? 1.0 : kOtherType;
    const double eager_us = one.us.eager_us > 0 ? one.us.eager_us : one.us.captured_us;
    floor.captured_us =
        std::max(floor.captured_us, share * least_of_large(one.us.captured_us, one.bytes, bytes));
    floor.eager_us = std::max(floor.eager_us, share * least_of_large(eager_us, one.bytes, bytes));
  }
  return floor;
}

/// Returns whether plait's times at neighbouring sizes suggest a lead over NCCL's times. Up to
/// kClose times the largest timed size, plait's bandwidth counts as that of the largest size.
bool Measurement::may_be_ahead(const Request& request, const CallTimes& nccl) const {
  const auto found = own_us_.find(request.collective);
  if (found == own_us_.end()) return false;
  const std::uint64_t bytes = message_bytes(request);
  std::optional<double> us = on_line(found->second, bytes);
  if (!us && bytes <= kClose * found->second.rbegin()->first) us = beyond(found->second, bytes);
  return us && cuda::beats_nccl(*us, nccl.captured_us) == true;
}

/// Returns the expected time of plait's call, from the nearest sizes; 0 = unknown. The same on all
/// ranks. Below kStreamFrom, where latency counts, other collectives' larger sizes say more than
/// the collective's smaller sizes.
double Measurement::expected_us(const Request& request) const {
  const std::uint64_t bytes = message_bytes(request);
  double others_us = 0;
  for (const auto& [collective, by_bytes] : own_us_)
    if (const auto us = on_line(by_bytes, bytes)) {
      if (collective == request.collective) return *us;
      others_us = std::max(others_us, *us);
    }
  const auto same = own_us_.find(request.collective);
  if (same != own_us_.end() && same->second.rbegin()->first >= kStreamFrom)
    return beyond(same->second, bytes);
  if (others_us > 0 || same == own_us_.end()) return others_us;
  const auto& [most_bytes, most_us] = *same->second.rbegin();
  return most_us + static_cast<double>(bytes - most_bytes) / kFastBytesPerUs;
}

/// Returns the index of the next request that can end in time and whose result is open; the number
/// of requests if there is none.
std::size_t Measurement::next_of(const std::vector<Request>& requests, std::size_t from) const {
  const double left_s = terms_.budget_s - terms_.elapsed_s();
  for (std::size_t i = from; i < requests.size() && left_s > 0; ++i) {
    const bool is_decided = are_messages_behind_ && requests[i].collective == Collective::send_recv;
    if (!is_decided && expected_s(requests[i]) <= left_s) return i;
  }
  return requests.size();
}

/// Returns the time in seconds that the request is expected to take, from requests of near size.
/// Preparing takes equally long at all sizes, except that a collective's first request connects
/// NCCL's ranks.
double Measurement::expected_s(const Request& request) const {
  const std::uint64_t bytes = message_bytes(request);
  const double call_us = expected_us(request);
  const double all_us = bench_launches(call_us).all_us(call_us);
  const auto scaled = [&](Collective collective, const std::map<std::uint64_t, double>& runs) {
    auto near = runs.lower_bound(bytes);
    if (near == runs.end()) near = std::prev(near);
    double ratio = static_cast<double>(bytes) / static_cast<double>(near->first);
    if (const auto us = own_us_.find(collective); us != own_us_.end() && all_us > 0)
      if (const auto known = us->second.find(near->first); known != us->second.end())
        ratio = all_us / bench_launches(known->second).all_us(known->second);
    return near->second * std::max(1.0, ratio);
  };
  if (run_s_.empty()) return kUnknownS;
  if (const auto same = run_s_.find(request.collective); same != run_s_.end()) {
    std::vector<double> ready = ready_s_;
    if (ready.empty()) ready.push_back(connect_s_);
    const auto middle = ready.begin() + static_cast<std::ptrdiff_t>(ready.size() / 2);
    std::nth_element(ready.begin(), middle, ready.end());
    return *middle + scaled(same->first, same->second);
  }
  double most = 0;
  for (const auto& [collective, runs] : run_s_) most = std::max(most, scaled(collective, runs));
  return connect_s_ + most;
}

}  // namespace plait
