// Measurements on benches with made-up times: order, budget, agreement of ranks, choice, failures.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/text.hpp"
#include "comm/gpu/bench_launches.hpp"
#include "comm/gpu/first_start.hpp"
#include "comm/gpu/measurement.hpp"
#include "comm/gpu/tuning_machine.hpp"
#include "gpu/select/engines.hpp"
#include "plait/error.hpp"

using namespace plait;

namespace {

/// Exchanges of ranks that are threads.
class Table {
 public:
  explicit Table(int ranks) : records_(static_cast<std::size_t>(ranks)) {}
  std::vector<std::string> exchange(int rank, const std::string& mine) {
    std::unique_lock<std::mutex> hold(guard_);
    all_left_.wait(hold, [&] { return left_ == 0; });
    records_[static_cast<std::size_t>(rank)] = mine;
    if (++arrived_ == records_.size())
      left_ = arrived_, arrived_ = 0, all_came_.notify_all();
    else
      all_came_.wait(hold, [&] { return left_ != 0; });
    std::vector<std::string> all = records_;
    if (--left_ == 0) all_left_.notify_all();
    return all;
  }

 private:
  std::mutex guard_;
  std::condition_variable all_came_, all_left_;
  std::vector<std::string> records_;
  std::size_t arrived_ = 0, left_ = 0;
};

/// Times of a rank's bench, by engine: captured and eager us; "" = NCCL.
struct MadeUp {
  std::map<std::string, CallTimes> times;
  double request_s = 0.001;  ///< by the test's clock
  double connect_s = 0;      ///< more for a collective's first request beside NCCL
  /// Times by size instead of `times`.
  std::function<CallTimes(const std::string& way, std::uint64_t bytes)> by_size = nullptr;
  int fails_at = -1;
  std::uint64_t most_bytes = 64 << 20;  ///< of a message
  bool has_messages = false;
  std::set<std::string> cannot;  ///< on this rank
};

class MadeUpBench : public CallBench {
 public:
  MadeUpBench(const MadeUp& said, double& clock_s) : said_(said), clock_s_(clock_s) {}
  std::uint64_t most_bytes() const override { return said_.most_bytes; }
  std::vector<CallWay> ways(const Request&) override {
    std::vector<CallWay> all{{&cuda::tiled_engine(), {}},
                             {&cuda::two_shot_engine(), {}},
                             {&cuda::direct_ll_engine(), {}}};
    if (said_.has_messages) all.insert(all.begin(), {nullptr, {}, true});
    return all;
  }
  std::vector<bool> prepare(const Request& request, const std::vector<CallWay>& ways,
                            bool beside_nccl, double call_us) override {
    asked.push_back(request);
    beside.push_back(beside_nccl);
    told_us.push_back(call_us);
    if (beside_nccl && connected_.insert(request.collective).second) clock_s_ += said_.connect_s;
    tried.push_back({});
    ways_ = ways;
    std::vector<bool> ready;
    for (const CallWay& way : ways) {
      tried.back().insert(label(way));
      ready.push_back(!said_.cannot.contains(label(way)));
    }
    return ready;
  }
  std::vector<CallTimes> run(const std::vector<bool>& ready) override {
    clock_s_ += said_.request_s;
    if (static_cast<int>(asked.size()) == said_.fails_at)
      throw Error(ErrorCode::timeout, "the test wants a failure");
    std::vector<CallTimes> found;
    for (std::size_t i = 0; i < ways_.size(); ++i)
      found.push_back(ready[i] ? of(label(ways_[i])) : CallTimes{});
    found.push_back(beside.back() ? of("") : CallTimes{});
    return found;
  }
  std::vector<Request> asked;
  std::vector<bool> beside;  ///< NCCL was asked for too
  std::vector<double> told_us;
  std::vector<std::set<std::string>> tried;

 private:
  CallTimes of(const std::string& way) const {
    return said_.by_size ? said_.by_size(way, message_bytes(asked.back())) : said_.times.at(way);
  }

  const MadeUp said_;
  double& clock_s_;
  std::set<Collective> connected_;
  std::vector<CallWay> ways_;
};

struct Outcome {
  std::vector<cuda::MeasuredCall> calls;
  std::vector<Request> asked;
  std::vector<bool> beside;
  std::vector<double> told_us;
  std::vector<std::set<std::string>> tried;
  std::optional<MeasuringFailed> failed;
  std::size_t timed = 0, left_out = 0, timed_alone = 0;
};

/// Measures on a thread per rank.
std::vector<Outcome> measured(const std::vector<MadeUp>& ranks, std::vector<Request> requests) {
  Table table(static_cast<int>(ranks.size()));
  std::vector<Outcome> all(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    threads.emplace_back([&, rank] {
      double clock_s = 0;
      MadeUpBench bench(ranks[rank], clock_s);
      const cuda::Exchange exchange = [&](const std::string& mine) {
        return table.exchange(static_cast<int>(rank), mine);
      };
      MeasuringTerms terms;
      terms.rank = static_cast<int>(rank);
      terms.elapsed_s = [&] { return clock_s; };
      Measurement measurement(bench, exchange, terms);
      try {
        all[rank].calls = measurement.run(requests);
      } catch (const MeasuringFailed& error) {
        all[rank].failed = error;
      }
      all[rank].timed = measurement.timed();
      all[rank].left_out = measurement.left_out();
      all[rank].timed_alone = measurement.timed_alone();
      all[rank].asked = bench.asked;
      all[rank].beside = bench.beside;
      all[rank].told_us = bench.told_us;
      all[rank].tried = bench.tried;
    });
  for (std::thread& thread : threads) thread.join();
  return all;
}

MadeUp made_up(double tiled, double two_shot, double direct_ll, double nccl) {
  return {.times = {{"tiled", {tiled, tiled}},
                    {"two_shot", {two_shot, two_shot}},
                    {"direct_ll", {direct_ll, direct_ll}},
                    {"", {nccl, nccl}}},
          .cannot = {}};
}

std::vector<Request> first_requests(std::size_t count) {
  std::vector<Request> all = requests_by_use(2, true);
  all.resize(count);
  return all;
}

bool are_same(const std::vector<Request>& one, const std::vector<Request>& other) {
  if (one.size() != other.size()) return false;
  for (std::size_t i = 0; i < one.size(); ++i)
    if (one[i].collective != other[i].collective || one[i].type != other[i].type ||
        message_bytes(one[i]) != message_bytes(other[i]))
      return false;
  return true;
}

}  // namespace

TEST_CASE("the most used collectives come first, and each request once") {
  const std::vector<Request> all = requests_by_use(4, true);
  CHECK(all[0].collective == Collective::all_reduce);
  CHECK(all[1].collective == Collective::all_gather);
  CHECK(all[2].collective == Collective::reduce_scatter);
  std::set<std::string> seen;
  for (const Request& request : all) {
    CHECK(seen.insert(text("{}{}{}", name_of(request.collective), name_of(request.type),
                           message_bytes(request)))
              .second);
    CHECK(message_bytes(request) % 1024 == 0);
  }
  CHECK(requests_by_use(4, false).back().collective == Collective::send_recv);
  CHECK(requests_by_use(3, true).size() == all.size());
}

TEST_CASE("the slowest rank's time counts, and the fastest way is kept") {
  const std::vector<Outcome> all =
      measured({made_up(9, 6, 8, 10), made_up(9, 12, 7, 10)}, first_requests(1));
  for (const Outcome& one : all) {
    REQUIRE(one.calls.size() == 1);
    CHECK(one.calls[0].engine == "direct_ll");
    CHECK(one.calls[0].us == 8);
    CHECK(one.calls[0].nccl_us == 10);
  }
}

TEST_CASE("what runs without a measurement stays unless another way is 3 % faster") {
  CHECK(measured({made_up(10, 9.8, 9.9, 20), made_up(1, 1, 1, 1)}, first_requests(1))[1]
            .calls[0]
            .engine == "tiled");
  CHECK(measured({made_up(10, 9.6, 9.62, 20), made_up(1, 1, 1, 1)}, first_requests(1))[0]
            .calls[0]
            .engine == "two_shot");
}

TEST_CASE("a way must be ahead in graphs and enqueued one by one") {
  MadeUp said = made_up(9, 20, 20, 10);
  said.times["tiled"] = {9, 11};
  const std::vector<Outcome> all = measured({said, said}, first_requests(1));
  CHECK(all[0].calls[0].us == 11);
  CHECK(all[0].calls[0].nccl_us == 10);
}

TEST_CASE("a way that one rank cannot go is timed on none") {
  MadeUp lacks = made_up(9, 2, 8, 10);
  lacks.cannot = {"two_shot"};
  const std::vector<Outcome> all = measured({made_up(9, 2, 8, 10), lacks}, first_requests(1));
  CHECK(all[0].calls[0].engine == "direct_ll");
  MadeUp cannot = lacks;
  cannot.cannot = {"two_shot", "tiled", "direct_ll"};
  CHECK(measured({lacks, cannot}, first_requests(1))[0].calls.empty());
}

TEST_CASE("rank 0's clock ends the measurement of all ranks after the same request") {
  MadeUp quick = made_up(9, 8, 7, 10), slow = quick;
  quick.request_s = 0.1;
  slow.request_s = 10;  // this rank's clock does not count
  const std::vector<Outcome> all = measured({quick, slow, quick}, requests_by_use(3, true));
  CHECK(all[0].asked.size() > 10);
  CHECK(all[0].asked.size() <= 30);
  for (const Outcome& one : all) {
    CHECK(are_same(one.asked, all[0].asked));
    CHECK(one.calls.size() == all[0].calls.size());
    CHECK(one.left_out > 0);
  }
}

TEST_CASE("large requests that cannot end in time are left out") {
  MadeUp said = made_up(9, 8, 7, 10);
  said.request_s = 0.5;
  const std::vector<Outcome> all = measured({said, said}, requests_by_use(2, true));
  CHECK(all[0].asked.size() <= 6);
  // 1 MiB may take 16 times as long as 64 KiB.
  for (const Request& request : all[0].asked) CHECK(message_bytes(request) <= 64 << 10);
}

TEST_CASE("requests left out do not count messages that another size has decided") {
  const std::vector<Request> requests = requests_by_use(2, true);
  const auto is_timed = [](const Request& request) { return message_bytes(request) <= 64 << 20; };
  const auto is_message = [](const Request& request) {
    return request.collective == Collective::send_recv;
  };
  const auto all = static_cast<std::size_t>(std::ranges::count_if(requests, is_timed));
  const auto messages = static_cast<std::size_t>(std::ranges::count_if(
      requests, [&](const Request& one) { return is_timed(one) && is_message(one); }));
  for (const bool are_ahead : {true, false})
    for (const double request_s : {0.001, 0.1}) {
      MadeUp said = made_up(9, 8, 7, 10);
      said.request_s = request_s;
      said.times["messages"] = {are_ahead ? 3.0 : 40.0, 3.0};
      said.has_messages = true;
      const Outcome one = measured({said, said}, requests)[0];
      CAPTURE(are_ahead);
      CAPTURE(request_s);
      // An all_reduce by messages comes first, so no send is timed where NCCL is ahead.
      CHECK(one.timed + one.left_out == (are_ahead ? all : all - messages));
      CHECK((one.left_out > 0) == (request_s == 0.1));
    }
}

TEST_CASE("the first connection of a collective does not keep its other sizes from being timed") {
  MadeUp said = made_up(12, 12, 12, 10);
  said.connect_s = 0.3;
  said.request_s = 0.004;
  const std::vector<Outcome> all = measured({said, said}, requests_by_use(2, true));
  std::map<Collective, std::set<std::uint64_t>> sizes;
  for (const Request& request : all[0].asked)
    sizes[request.collective].insert(message_bytes(request));
  for (const Collective used : {Collective::all_reduce, Collective::all_gather,
                                Collective::broadcast, Collective::all_to_all, Collective::reduce})
    CHECK(sizes[used].size() >= 4);
}

namespace {

/// plait is `lead` times as fast as NCCL at 4 KiB and large messages; NCCL takes 10 us and 1 us for
/// 8 KiB more, plait grows alike.
MadeUp growing(double lead, double large_lead) {
  MadeUp said = made_up(1, 1, 1, 1);
  said.by_size = [=](const std::string& way, std::uint64_t bytes) {
    const double stream_us = static_cast<double>(bytes) / 8192;
    const double us = way.empty() ? 10 + stream_us : 10 / lead + stream_us / large_lead;
    return CallTimes{us, us};
  };
  return said;
}

}  // namespace

TEST_CASE("where NCCL's other sizes show that plait is ahead, plait alone is timed") {
  const MadeUp said = growing(2.5, 1.6);
  const std::vector<Outcome> all = measured({said, said}, requests_by_use(2, true));
  CHECK(all[0].timed_alone > 40);
  CHECK(all[0].beside == all[1].beside);
  CHECK(are_same(all[0].asked, all[1].asked));
  std::size_t inferred = 0;
  for (const cuda::MeasuredCall& call : all[0].calls) {
    inferred += call.is_nccl_inferred ? 1 : 0;
    const double nccl_us = 10 + static_cast<double>(call.bytes) / 8192;
    CHECK(call.us <= 0.99 * call.nccl_us);  // served
    if (call.is_nccl_inferred) CHECK(call.nccl_us <= nccl_us);
    if (!call.is_nccl_inferred) CHECK(call.nccl_us == nccl_us);
  }
  CHECK(inferred == all[0].timed_alone);
}

TEST_CASE("the largest size is timed alone if the next smaller one shows a lead") {
  for (const double lead : {1.6, 1.1}) {
    MadeUp said = growing(lead, lead);
    said.most_bytes = 1 << 30;
    std::size_t largest = 0;
    const std::vector<Outcome> all = measured({said, said}, requests_by_use(2, true));
    for (std::size_t i = 0; i < all[0].asked.size(); ++i) {
      if (message_bytes(all[0].asked[i]) != 1 << 30) continue;
      ++largest;
      CHECK(all[0].beside[i] == (lead < 1.15));
    }
    CHECK(largest >= 5);
  }
}

TEST_CASE("a small lead is measured beside NCCL at each size") {
  const MadeUp said = growing(1.02, 1.02);
  const std::vector<Outcome> all = measured({said, said}, requests_by_use(2, true));
  CHECK(all[0].timed_alone == 0);
  for (const cuda::MeasuredCall& call : all[0].calls) CHECK(!call.is_nccl_inferred);
}

TEST_CASE("calls that look ahead and are not are timed again beside NCCL") {
  MadeUp said = growing(2.5, 1.6);
  said.by_size = [grows = said.by_size](const std::string& way, std::uint64_t bytes) {
    if (!way.empty() && bytes == 1 << 16) return CallTimes{30, 30};  // a dip of plait's
    return grows(way, bytes);
  };
  const std::vector<Outcome> all = measured({said, said}, requests_by_use(2, true));
  std::size_t dips = 0;
  for (const cuda::MeasuredCall& call : all[0].calls) {
    if (call.bytes != 1 << 16) continue;
    ++dips;
    CHECK(!call.is_nccl_inferred);
    CHECK(call.us == 30);
    CHECK(call.nccl_us == 18);
  }
  CHECK(dips > 5);
  CHECK(all[0].calls.size() <= all[0].asked.size());
  // Plait's ways are timed once: behind plait alone comes NCCL alone.
  std::size_t again = 0;
  for (std::size_t i = 1; i < all[0].asked.size(); ++i) {
    if (!are_same({all[0].asked[i - 1]}, {all[0].asked[i]})) continue;
    ++again;
    CHECK(!all[0].beside[i - 1]);
    CHECK(all[0].beside[i]);
    CHECK(all[0].tried[i].empty());
  }
  CHECK(again > 5);
}

TEST_CASE("if NCCL's times do not grow with the size, NCCL is timed at each size") {
  MadeUp said = growing(2.5, 1.6);
  said.by_size = [grows = said.by_size](const std::string& way, std::uint64_t bytes) {
    CallTimes us = grows(way, bytes);
    if (way.empty() && bytes == 1 << 10) us = {10000, 10000};  // more than 16 MiB
    return us;
  };
  const std::vector<Outcome> all = measured({said, said}, requests_by_use(2, true));
  for (const cuda::MeasuredCall& call : all[0].calls)
    if (call.type == DataType::bf16 && call.bytes >= 1 << 20) CHECK(!call.is_nccl_inferred);
}

TEST_CASE("short calls are timed often, and long calls twice") {
  CHECK(bench_launches(4).calls == 10);
  CHECK(bench_launches(0).calls == 10);  // unknown
  CHECK(bench_launches(30).calls == 7);
  for (const double us : {4.0, 30.0, 300.0}) {
    const BenchLaunches made = bench_launches(us);
    CHECK(made.warms == 1);
    CHECK(made.turns == 3);
    CHECK(made.calls * us * made.first_warms >= 290);  // an idle GPU reaches its speed
    CHECK(!made.least);
  }
  const BenchLaunches made = bench_launches(5000);
  CHECK(made.all_us(5000) == 10000);
  CHECK(made.least);  // the first launch may count for less
}

TEST_CASE("the bench hears about how long a call takes, on all ranks alike") {
  MadeUp said = growing(2.5, 1.6);
  said.most_bytes = 1 << 30;
  const std::vector<Outcome> all = measured({said, said}, requests_by_use(2, true));
  CHECK(all[0].told_us == all[1].told_us);
  CHECK(all[0].told_us.front() == 0);  // nothing was timed
  for (std::size_t i = 30; i < all[0].asked.size(); ++i) {
    const double us = said.by_size("tiled", message_bytes(all[0].asked[i])).captured_us;
    CHECK(all[0].told_us[i] > us / 4);
    CHECK(all[0].told_us[i] < 4 * us);
  }
}

TEST_CASE("ways that fall far behind are not tried at sizes near") {
  const std::vector<Outcome> all =
      measured({made_up(30, 9, 10, 10), made_up(1, 1, 1, 1)}, requests_by_use(2, true));
  const std::set<std::string> without{"tiled", "two_shot", "direct_ll"};
  CHECK(all[0].tried.front() == without);
  CHECK(all[0].tried.back().size() >= 2);
  // The way that runs without a measurement is always timed.
  for (const std::set<std::string>& tried : all[0].tried) CHECK(tried.contains("tiled"));
  const std::vector<Outcome> other =
      measured({made_up(9, 30, 10, 10), made_up(1, 1, 1, 1)}, requests_by_use(2, true));
  const auto& tried = other[0].tried;
  const auto skips =
      std::count_if(tried.begin(), tried.end(),
                    [](const std::set<std::string>& one) { return !one.contains("two_shot"); });
  CHECK(skips > 40);  // sizes between others, where it is three times as slow as the fastest
  CHECK(are_same(other[0].asked, other[1].asked));
  CHECK(other[0].tried == other[1].tried);
}

TEST_CASE("messages compete with NCCL's alone, and engines among themselves") {
  for (const double messages_us : {3.0, 40.0}) {
    MadeUp times = made_up(10, 11, 12, 20);
    times.times["messages"] = {messages_us, messages_us};
    times.has_messages = true;
    const std::vector<Outcome> all = measured({times, times}, first_requests(1));
    for (const Outcome& one : all) {
      REQUIRE(one.calls.size() == 2);
      CHECK(one.calls[0].engine == "messages");
      CHECK(one.calls[0].us == messages_us);
      CHECK(one.calls[0].nccl_us == 20);
      CHECK(one.calls[1].engine == "tiled");
    }
  }
}

TEST_CASE("messages that NCCL beats at a size are not timed at others") {
  for (const bool are_ahead : {true, false}) {
    MadeUp times = made_up(10, 11, 12, 20);
    times.times["messages"] = {are_ahead ? 3.0 : 40.0, 3.0};
    times.has_messages = true;
    const std::vector<Outcome> all = measured({times, times}, requests_by_use(2, true));
    int sends = 0, messages = 0;
    for (std::size_t i = 0; i < all[0].asked.size(); ++i) {
      sends += all[0].asked[i].collective == Collective::send_recv ? 1 : 0;
      messages += all[0].tried[i].contains("messages") ? 1 : 0;
    }
    CHECK(all[0].tried == all[1].tried);
    if (are_ahead) CHECK(sends > 15);
    if (are_ahead) CHECK(messages > 100);
    if (!are_ahead) CHECK(sends == 0);  // an all_reduce comes first here
    if (!are_ahead) CHECK(messages == 1);
  }
}

TEST_CASE("a failure of one rank ends the measurement of all with the same error") {
  MadeUp fails = made_up(9, 8, 7, 10);
  fails.fails_at = 3;
  const std::vector<Outcome> all = measured({made_up(9, 8, 7, 10), fails}, first_requests(9));
  for (const Outcome& one : all) {
    REQUIRE(one.failed);
    CHECK(one.failed->code() == ErrorCode::timeout);
    CHECK(std::string(one.failed->what()).find("rank 1: the test wants a failure") !=
          std::string::npos);
    CHECK(one.asked.size() == 3);
  }
}

TEST_CASE("a step that fails on one rank fails on all, wherever they are in theirs") {
  constexpr int kRanks = 3;
  for (const bool waits : {false, true}) {  // peers have ended their part, or wait in an exchange
    Table table(kRanks);
    std::vector<std::string> said(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, rank] {
        const cuda::Exchange exchange = [&](const std::string& mine) {
          return table.exchange(rank, mine);
        };
        MeasuringSteps steps(exchange);
        const cuda::Exchange inner = steps.exchange();
        steps.together([&] { inner("all take part"); });
        try {
          steps.together([&] {
            if (rank == 1) throw std::bad_alloc();
            if (waits) inner("rank 1 does not come");
          });
        } catch (const MeasuringFailed& error) {
          said[static_cast<std::size_t>(rank)] = error.what();
        }
        steps.together([&] { inner("in step again"); });
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& one : said) {
      CHECK(one == said[0]);
      CHECK(one.find("rank 1: this process has no memory left") != std::string::npos);
    }
  }
}

TEST_CASE("an error of the exchange itself passes and is not exchanged again") {
  int exchanges = 0;
  const cuda::Exchange broken = [&](const std::string&) -> std::vector<std::string> {
    ++exchanges;
    throw Error(ErrorCode::peer_lost, "rank 1 ended");
  };
  MeasuringSteps steps(broken);
  CHECK_THROWS_WITH_AS(steps.together([&] { steps.exchange()("mine"); }),
                       doctest::Contains("rank 1 ended"), Error);
  CHECK(exchanges == 1);
}

TEST_CASE("calls through host memory beside an NCCL with direct access have a table of their own") {
  REQUIRE(setenv("XDG_CACHE_HOME", "/x", 1) == 0);
  GpuGroup group;
  group.ranks = 2;
  group.tuning_machine = "abc-host";
  const std::string alone = tuning_file(Env(), group, ""),
                    beside = tuning_file(Env(), group, "2.9");
  CHECK(alone.rfind("/x/plait/tuning-abc-host-cuda", 0) == 0);
  CHECK(beside.rfind("/x/plait/tuning-abc-host-cuda", 0) == 0);
  group.nccl_goes_direct = true;
  CHECK(tuning_file(Env(), group, "") == alone);
  CHECK(tuning_file(Env(), group, "2.9").rfind("/x/plait/tuning-abc-host-ncclp2p-cuda", 0) == 0);
  REQUIRE(unsetenv("XDG_CACHE_HOME") == 0);
}

TEST_CASE("a machine's key has the links of the ranks' GPUs, not their numbers") {
  const Topology box = load_topology("l40s-x4");
  CHECK(tuning_machine(box, {0, 1, 2, 3}) == fingerprint(box));
  const std::string first = tuning_machine(box, {0, 1});
  CHECK(first.rfind(fingerprint(box) + "-", 0) == 0);
  CHECK(tuning_machine(box, {0, 1}) == first);
  CHECK(tuning_machine(box, {0, 1}, true) == first + "-host");
  CHECK(tuning_machine(box, {0, 1, 2, 3}, true) == fingerprint(box) + "-host");
  const Topology hgx = load_topology("hgx-h200");
  CHECK(tuning_machine(hgx, {0, 1, 2, 3}) != tuning_machine(hgx, {0, 1}));
}
