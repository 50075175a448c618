// A first start on times that two H200 had through host memory, by a clock of the test: whether the
// measurement ends in time, and how near its table comes to the fastest ways.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "comm/gpu/bench_launches.hpp"
#include "comm/gpu/measurement.hpp"
#include "gpu/select/engines.hpp"
#include "plan/blocks.hpp"
#include "unit/requests.hpp"

using namespace plait;

namespace {

/// Sizes in KiB. Between two sizes, logarithms of times lie on a line.
constexpr double kSizes[] = {4,    16,        64,        256,       512,        1024,
                             4096, 16 * 1024, 32 * 1024, 64 * 1024, 256 * 1024, 1024 * 1024};
constexpr std::size_t kCount = std::size(kSizes);
struct Times {
  const char* way;    ///< "" = NCCL
  double us[kCount];  ///< times of a call in a graph; 0 = no such way at this size
};
// Source: gpu_chunks_again_h200x2.csv, gpu_through_host_again_h200x2.csv and
// gpu_first_start_host_h200x2.csv; guesses where a way is far behind.
const std::vector<Times> kSums{
    {"one_shot", {3.8, 4.2, 5.9, 13.5, 26.5, 51, 205, 0, 0, 0, 0, 0}},
    {"two_shot", {5.6, 6.2, 8.9, 19, 33, 62, 240, 0, 0, 0, 0, 0}},
    {"direct_ll", {4.1, 4.6, 7.2, 15, 26.9, 51, 200, 800, 0, 0, 0, 0}},
    {"direct_chunks", {9, 9.5, 11, 17.6, 25.2, 39.2, 125, 454, 907, 1815, 7260, 29000}},
    {"tiled", {14, 15, 17, 24, 37, 58, 170, 600, 1100, 1894, 6963, 27700}},
    {"copy_exchange", {0, 0, 0, 0, 0, 0, 218, 515, 890, 1650, 5956, 24200}},
    {"", {9.9, 11.3, 15.7, 35.6, 47, 62.7, 171, 617, 1241, 2447, 9673, 39491}}};
const std::vector<Times> kExchanges{
    {"direct_ll", {3.6, 4.0, 4.9, 8.3, 13.4, 26.9, 108, 430, 0, 0, 0, 0}},
    {"direct_chunks", {8, 8.5, 9.5, 13, 16.5, 25, 68.3, 228.5, 455, 930, 3700, 14800}},
    {"tiled", {12, 12, 14, 20, 25, 37, 94, 283, 527, 1000, 3563, 13900}},
    {"copy_exchange", {0, 0, 0, 0, 0, 0, 144, 296, 475, 880, 2980, 11650}},
    {"", {8.4, 9.3, 11.7, 22.5, 31, 41, 101, 346, 682, 1353, 5362, 21411}}};
const std::vector<Times> kRooted{
    {"direct_ll", {4.2, 4.5, 5, 9.4, 18.7, 34, 130, 520, 0, 0, 0, 0}},
    {"direct_chunks", {8, 8.5, 9.5, 12, 15.4, 26, 87.2, 339, 680, 1356, 5420, 21700}},
    {"tiled", {12, 12, 14, 20, 28, 38, 110, 386, 756, 1430, 5500, 22000}},
    {"copy_exchange", {0, 0, 0, 0, 0, 0, 183, 434, 758, 1420, 5200, 21200}},
    {"", {7.5, 9, 11.5, 19, 24, 34.5, 99, 355, 700, 1375, 5380, 21600}}};
const std::vector<Times> kMessages{
    {"messages", {12, 14, 30, 90, 95, 105, 260, 730, 1000, 1800, 7000, 28000}},
    {"", {9, 12, 18, 30, 42, 58, 191, 721, 1434, 2882, 11336, 45000}}};

const std::vector<Times>& times_of(Collective collective) {
  if (collective == Collective::all_reduce) return kSums;
  if (collective == Collective::send_recv) return kMessages;
  return has_root(collective) ? kRooted : kExchanges;
}

double us_of(const Times& times, std::uint64_t bytes) {
  const double kib = static_cast<double>(bytes) / 1024;
  if (kib <= kSizes[0]) return times.us[0];
  for (std::size_t i = 1; i < kCount; ++i) {
    if (kib > kSizes[i]) continue;
    if (times.us[i - 1] == 0 || times.us[i] == 0) return kib == kSizes[i] ? times.us[i] : 0;
    const double at = std::log(kib / kSizes[i - 1]) / std::log(kSizes[i] / kSizes[i - 1]);
    return times.us[i - 1] * std::pow(times.us[i] / times.us[i - 1], at);
  }
  return 0;
}

/// us of the way, "" for NCCL; 0 = no such way at this size.
double us_of(Collective collective, const std::string& way, std::uint64_t bytes) {
  for (const Times& times : times_of(collective))
    if (way == times.way) return us_of(times, bytes);
  return 0;
}

/// Times differ by up to 2 % from launch to launch.
class Noise {
 public:
  double operator()(double us) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    const double share = static_cast<double>(state_ >> 40) / static_cast<double>(1 << 24);
    return us * (0.99 + 0.03 * share * share);
  }

 private:
  std::uint64_t state_ = 69;
};

/// Takes the time of its launches on the test's clock.
class ReplayBench : public CallBench {
 public:
  explicit ReplayBench(double& clock_s) : clock_s_(clock_s) {}
  std::uint64_t most_bytes() const override { return 1ull << 30; }
  std::vector<CallWay> ways(const Request& request) override {
    std::vector<CallWay> all;
    for (const Times& times : times_of(request.collective)) {
      const std::string way = times.way;
      if (way.empty() || us_of(times, message_bytes(request)) == 0) continue;
      if (way == cuda::kMessagesRow)
        all.push_back({nullptr, {}, true});
      else
        all.push_back({cuda::engine_named(way, request), {}});
    }
    return all;
  }
  std::vector<bool> prepare(const Request& request, const std::vector<CallWay>& ways,
                            bool beside_nccl, double call_us) override {
    request_ = request;
    ways_ = ways;
    beside_nccl_ = beside_nccl;
    launches_ = bench_launches(call_us);
    clock_s_ += 0.2e-3 + 0.15e-3 * static_cast<double>(ways.size()) + (beside_nccl ? 0.4e-3 : 0);
    // The first call connects NCCL's ranks; sends and receives connect others.
    const bool sends = request.collective == Collective::all_to_all;
    if (beside_nccl && connected_.insert(sends).second) clock_s_ += sends ? 0.033 : 0.072;
    return std::vector<bool>(ways.size(), true);
  }
  std::vector<CallTimes> run(const std::vector<bool>&) override {
    clock_s_ += 0.3e-3;  // until all ranks are ready
    std::vector<CallTimes> found;
    for (const CallWay& way : ways_) found.push_back(timed(label(way), launches_.turns));
    if (!beside_nccl_) {
      found.emplace_back();
      return found;
    }
    found.push_back(timed("", launches_.nccl_turns));
    clock_s_ += us_of(request_.collective, "", message_bytes(request_)) / 1e6;  // the first call
    return found;
  }

 private:
  CallTimes timed(const std::string& way, int turns) {
    CallTimes made;
    made.captured_us = launched(way, turns);
    if (message_bytes(request_) >= 1 << 20) made.eager_us = launched(way, turns);
    return made;
  }
  double launched(const std::string& way, int turns) {
    const double us = us_of(request_.collective, way, message_bytes(request_));
    clock_s_ += us * launches_.calls * (launches_.warms + turns) / 1e6;
    std::vector<double> all;
    for (int turn = 0; turn < turns; ++turn) all.push_back(noise_(us));
    std::sort(all.begin(), all.end());
    return launches_.least ? all.front() : all[all.size() / 2];
  }

  double& clock_s_;
  Noise noise_;
  std::set<bool> connected_;
  Request request_;
  BenchLaunches launches_;
  std::vector<CallWay> ways_;
  bool beside_nccl_ = false;
};

struct Replay {
  double ended_s = 0;
  std::size_t timed = 0, left_out = 0;
  int points = 0, near = 0, slower_than_nccl = 0;
  std::vector<std::string> far;
};

Replay replayed(double budget_s) {
  double clock_s = 0.23;  // to open the bench
  ReplayBench bench(clock_s);
  const cuda::Exchange exchange = [](const std::string& mine) {
    return std::vector<std::string>{mine, mine};
  };
  MeasuringTerms terms;
  terms.budget_s = budget_s;
  terms.elapsed_s = [&] { return clock_s; };
  Measurement measurement(bench, exchange, terms);
  const std::vector<cuda::MeasuredCall> calls = measurement.run(requests_by_use(2, true));
  cuda::MeasuredFacts facts;
  facts.name = "two GPUs";
  facts.kind = "Some GPU, 132 multiprocessors, no NVLink";
  facts.nccl = "2.28.9";
  facts.source = "first start";
  const cuda::TuningTable table(cuda::table_of_calls(facts, calls));
  Replay made;
  made.ended_s = clock_s;
  made.timed = measurement.timed();
  made.left_out = measurement.left_out();
  for (const Request& request : plait_test::first_start_points(2)) {
    const std::uint64_t bytes = message_bytes(request);
    const double nccl_us = us_of(request.collective, "", bytes);
    const cuda::TuningRow* const row = table.find(request, cuda::RowUse::alone);
    const bool by_plait = row != nullptr && row->ahead_of_nccl == true;
    const double us =
        by_plait ? us_of(request.collective, row->engine->info().name, bytes) : nccl_us;
    double least_us = nccl_us;
    for (const Times& times : times_of(request.collective))
      if (const double way_us = us_of(times, bytes); way_us > 0)
        least_us = std::min(least_us, way_us);
    ++made.points;
    made.near += us > 0 && us <= 1.05 * least_us ? 1 : 0;
    made.slower_than_nccl += us > 1.03 * nccl_us ? 1 : 0;
    if (us > 1.05 * least_us)
      made.far.push_back(text("{} of {} bytes by {}: {} us, wanted {}", name_of(request.collective),
                              bytes, by_plait ? row->engine->info().name : "NCCL", us, least_us));
  }
  return made;
}

}  // namespace

TEST_CASE("a first start on times through host memory ends in time near the fastest ways") {
  constexpr double kBudgetS = 2.42;
  const Replay made = replayed(kBudgetS);
  INFO(made.ended_s, " s, ", made.timed, " sizes, ", made.left_out, " left out");
  std::string far;
  for (const std::string& one : made.far) far += one + "; ";
  INFO(far);
  CHECK(made.ended_s <= kBudgetS + 0.02);
  CHECK(made.points == 180);
  CHECK(made.near >= 0.95 * made.points);
  CHECK(made.slower_than_nccl == 0);
}

TEST_CASE("a first start of half the time leaves no call slower than NCCL's") {
  const Replay made = replayed(1.3);
  CHECK(made.ended_s <= 1.32);
  CHECK(made.left_out > 20);
  CHECK(made.slower_than_nccl == 0);
}
