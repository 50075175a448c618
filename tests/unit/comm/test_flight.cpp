// Tests flight recorders and the texts that explain a hang: absent ranks, unlike counts and orders,
// dead and stopped ranks, and who says it when.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "base/text.hpp"
#include "comm/bootstrap/socket.hpp"
#include "comm/liveness/flight_page.hpp"
#include "comm/trace/hang.hpp"
#include "comm/trace/status.hpp"
#include "plait/error.hpp"

using namespace plait;

namespace {

FlightCall call_of(Collective collective, std::uint64_t count, int root = 0) {
  Request request;
  request.collective = collective;
  request.count = count;
  request.root = root;
  return flight_call(request);
}

FlightCall sum_of(std::uint64_t count) { return call_of(Collective::all_reduce, count); }

/// Rings of ranks that are this process, as seen by each rank.
struct Job {
  explicit Job(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      rings.push_back(std::make_unique<FlightRing>());
      rings.back()->live_in(pid_namespace());
    }
  }
  FlightInfo of(int me) const {
    FlightInfo info;
    info.rank = me;
    info.ranks = static_cast<int>(rings.size());
    info.mine = rings[static_cast<std::size_t>(me)].get();
    for (int rank = 0; rank < info.ranks; ++rank)
      info.here.push_back({rank, rank == elsewhere ? pid : ::getpid(),
                           rings[static_cast<std::size_t>(rank)].get()});
    return info;
  }
  void enter(int rank, const FlightCall& call) {
    rings[static_cast<std::size_t>(rank)]->enter(call);
  }
  Hang seen_by(int me) const {
    const FlightInfo info = of(me);
    return explain_hang(flights_of(info), me, info.ranks, now_ns());
  }
  std::vector<std::unique_ptr<FlightRing>> rings;
  int elsewhere = -1;  ///< the rank that is another process
  int pid = 0;
};

/// Another process that only sleeps.
struct Sleeper {
  Sleeper() : pid(::fork()) {
    if (pid == 0)
      for (;;) ::pause();
  }
  ~Sleeper() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  const pid_t pid;
};

bool has(const std::string& whole, const std::string& part) {
  return whole.find(part) != std::string::npos;
}

/// Returns the seconds that a line says the rank has waited; -1 without a number.
double said_seconds(const std::string& line) {
  const std::size_t end = line.find(" s so far"), begin = line.rfind(": ", end);
  return end == line.npos || begin == line.npos ? -1 : std::atof(line.c_str() + begin + 2);
}

}  // namespace

TEST_CASE("a ring keeps the last 64 calls in order, and numbers all but messages") {
  FlightRing ring;
  CHECK(ring.calls().empty());
  for (std::uint64_t i = 1; i <= 100; ++i) {
    ring.enter(sum_of(i));
    if (i == 99) ring.enter({.kind = FlightKind::send, .root = 3, .count = 8});
  }
  const std::vector<FlightCall> calls = ring.calls();
  REQUIRE(calls.size() == FlightRing::kCalls);
  CHECK(calls.back().number == 100);
  CHECK(calls.back().count == 100);
  CHECK(calls.back().index == 101);
  CHECK(calls[62].number == 0);
  CHECK(calls[62].is_message());
  CHECK(calls[61].number == 99);
  CHECK(calls.front().index == 38);
  CHECK(ring.numbered() == 100);
  CHECK(now_ns() - calls.back().entered_ns < 10'000'000'000);
  CHECK(ring.last_entered_ns() == calls.back().entered_ns);
}

TEST_CASE("a reader gets whole records while the owner writes") {
  FlightRing ring;
  std::atomic<bool> ends{false};
  std::thread owner([&] {
    for (std::uint64_t i = 1; !ends.load(); ++i)
      ring.enter(call_of(Collective::broadcast, i, static_cast<int>(i % 1000)));
  });
  for (int round = 0; round < 300; ++round)
    for (const FlightCall& call : ring.calls()) {
      REQUIRE(call.count == call.number);
      REQUIRE(call.index == call.number);
      REQUIRE(call.root == static_cast<int>(call.number % 1000));
    }
  ends.store(true);
  owner.join();
}

TEST_CASE("a peer reads the page by process and file number") {
  const FlightPage mine;
  mine.ring().enter(sum_of(5));
  const FlightPage seen(mine.shown());
  CHECK(seen.process() == ::getpid());
  REQUIRE(seen.ring().calls().size() == 1);
  CHECK(seen.ring().calls()[0].count == 5);
  CHECK_THROWS_AS(FlightPage("nothing"), Error);
  CHECK_THROWS_AS(FlightPage(text("{} 0", ::getpid())), Error);  // no page
}

TEST_CASE("an absent rank is named, with its last call") {
  Job job(3);
  for (int rank = 0; rank < 3; ++rank) job.enter(rank, call_of(Collective::all_gather, 8));
  job.rings[0]->end_all();
  job.enter(0, sum_of(1024));
  job.enter(1, sum_of(1024));
  const Hang hang = job.seen_by(0);
  CHECK(hang.has_cause);
  CHECK(hang.number == 2);
  CHECK(hang.call == "call 2 (all_reduce of 1024 fp32, sum)");
  CHECK(has(hang.reason, text("entered by ranks 0, 1 alone; rank 2 (pid {}) was last in call 1 "
                              "(all_gather of 8 fp32), 0 s ago",
                              ::getpid())));
  CHECK(job.seen_by(2).reason == "entered by all ranks");  // in its own call
}

TEST_CASE("a rank that has made no call is absent") {
  Job job(2);
  job.enter(1, call_of(Collective::broadcast, 8, 1));
  CHECK(job.seen_by(1).call == "call 1 (broadcast of 8 fp32, root 1)");
  CHECK(has(job.seen_by(1).reason, text("rank 0 (pid {}) has made no call", ::getpid())));
  CHECK(job.seen_by(0).call.empty());
}

TEST_CASE("unlike counts, types, operations, roots and limits are said as such") {
  Request other;
  other.count = 16;
  other.type = DataType::bf16;
  other.op = ReduceOp::max;
  FlightCall limited = sum_of(16), moved = sum_of(16);
  limited.most_blocks = 4;
  moved.engines_move = true;
  for (const FlightCall& unlike : {sum_of(32), flight_call(other), call_of(Collective::reduce, 16),
                                   call_of(Collective::reduce, 16, 1), limited, moved}) {
    Job job(2);
    job.enter(0, sum_of(16));
    job.enter(1, unlike);
    const Hang hang = job.seen_by(0);
    CHECK(hang.has_cause);
    CHECK(hang.reason ==
          text("calls 1 are unlike: rank 0 makes all_reduce of 16 fp32, sum, rank 1 {}",
               call_text(unlike)));
  }
}

TEST_CASE("an unlike order is said as such") {
  Job job(2);
  for (const std::uint64_t count : {7, 16, 32}) job.enter(0, sum_of(count));
  for (const std::uint64_t count : {7, 32, 16}) job.enter(1, sum_of(count));
  const Hang hang = job.seen_by(0);
  CHECK(hang.number == 2);
  CHECK(has(hang.reason,
            "calls 2 are unlike: rank 0 makes all_reduce of 16 fp32, sum, rank 1 "
            "all_reduce of 32 fp32, sum"));
  CHECK(has(hang.reason, "; rank 1 makes rank 0's call 2 as call 3: the order is unlike"));
}

TEST_CASE("stopped and dead ranks are said as such") {
  Sleeper other;
  Job job(2);
  job.elsewhere = 1, job.pid = other.pid;
  for (int rank = 0; rank < 2; ++rank) job.enter(rank, sum_of(4));
  CHECK(!job.seen_by(0).has_cause);
  ::kill(other.pid, SIGSTOP);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(other.pid), &info, WSTOPPED | WNOWAIT);
  CHECK(
      job.seen_by(0).reason ==
      text("entered by all ranks; rank 1 (pid {}) is stopped (SIGSTOP or a debugger)", other.pid));
  job.enter(0, sum_of(8));
  CHECK(
      has(job.seen_by(0).reason,
          text("; rank 1 (pid {}, stopped (SIGSTOP or a debugger)) was last in call 1 (all_reduce "
               "of 4 fp32, sum)",
               other.pid)));
  ::kill(other.pid, SIGKILL);
  ::waitid(P_PID, static_cast<id_t>(other.pid), &info, WEXITED | WNOWAIT);
  CHECK(has(job.seen_by(0).reason, text("; rank 1 (pid {}, dead) was last", other.pid)));
}

TEST_CASE("a rank that waits for a message names the peer's last call") {
  Job job(2);
  for (int rank = 0; rank < 2; ++rank) job.enter(rank, sum_of(4));
  job.enter(0, {.kind = FlightKind::receive, .root = 1, .count = 64});
  const Hang hang = job.seen_by(0);
  CHECK(hang.call == "a receive of 64 bytes from rank 1");
  CHECK(hang.has_cause);
  CHECK(has(hang.reason, "was last in call 1 (all_reduce of 4 fp32, sum)"));
  job.enter(1, {.kind = FlightKind::send, .root = 0, .count = 64});
  CHECK(!job.seen_by(0).has_cause);
}

TEST_CASE("a line comes once a call, by one rank, after the time") {
  Job job(3);
  const FlightInfo first = job.of(0), second = job.of(1);
  HangWatch of_first(first, 0.2), of_second(second, 0.2);
  const HangWatch patient(first, 60);
  job.enter(0, sum_of(4));
  job.enter(1, sum_of(4));
  CHECK(!patient.is_due());
  std::this_thread::sleep_for(std::chrono::milliseconds(260));
  CHECK(of_first.is_due());
  CHECK(!patient.is_due());
  CHECK(of_first.look(CallsEnded::no).empty());  // claims the call
  CHECK(first.mine->named() == 1);
  CHECK(of_second.look(CallsEnded::no).empty());
  CHECK(second.mine->named() == 0);
  const std::string line = of_first.look(CallsEnded::no);
  CHECK(has(line, "rank 0 waits in call 1 (all_reduce of 4 fp32, sum): "));
  CHECK(said_seconds(line) >= 0.2);
  CHECK(has(line, " s so far; entered by ranks 0, 1 alone; rank 2 (pid "));
  CHECK(has(line, text("; `plait status {}` shows more", ::getpid())));
  CHECK(of_first.look(CallsEnded::no).empty());
  CHECK(of_second.look(CallsEnded::no).empty());
  job.enter(2, sum_of(4));
  CHECK(of_first.look(CallsEnded::yes).empty());
  CHECK(first.mine->ended() == 1);
}

TEST_CASE("a refused call gives its number back") {
  FlightRing ring;
  ring.enter(sum_of(1));
  const RecordedCall refused(&ring, sum_of(2));
  CHECK(ring.numbered() == 2);
  CHECK(ring.enqueued() == 0);
  refused.refused();
  CHECK(ring.numbered() == 1);
  CHECK(ring.enqueued() == ring.written());
  REQUIRE(ring.calls().size() == 1);
  const FlightRing::Place before = ring.place();
  ring.enter(sum_of(3));
  ring.enter({.kind = FlightKind::send, .root = 3, .count = 8});
  ring.enter(sum_of(4));
  ring.withdraw_after(before);
  CHECK(ring.numbered() == 1);
  const RecordedCall made(&ring, sum_of(5));
  made.enqueued();
  REQUIRE(ring.calls().size() == 2);
  CHECK(ring.calls().back().number == 2);
  CHECK(ring.calls().back().count == 5);
  const FlightRing::Place before_many = ring.place();
  for (std::uint64_t i = 0; i < 100; ++i) ring.enter(sum_of(i));  // more than the ring holds
  ring.withdraw_after(before_many);
  CHECK(ring.calls().empty());
  CHECK(ring.numbered() == 2);
}

TEST_CASE("only calls that were enqueued before the question end by its answer") {
  Job job(2);
  const FlightInfo info = job.of(0);
  HangWatch watch(info, 0.05);
  job.enter(0, sum_of(4));
  info.mine->enqueued_all();
  CHECK(watch
            .look([&] {
              job.enter(0, sum_of(8));  // waits for the peer before it is on the stream
              return CallsEnded::yes;
            })
            .empty());
  CHECK(info.mine->ended() == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(watch.is_due());
  const auto none_runs = [] { return CallsEnded::yes; };
  CHECK(watch.look(none_runs).empty());  // claims the call
  const std::string line = watch.look(none_runs);
  CHECK(has(line, "rank 0 waits in call 2 (all_reduce of 8 fp32, sum): "));
  CHECK(said_seconds(line) >= 0.05);
  CHECK(info.mine->ended() == 1);
  CHECK(!watch.has_open());
  info.mine->enqueued_all();
  CHECK(watch.look(none_runs).empty());
  CHECK(info.mine->ended() == 2);
  CHECK(!watch.is_due());
}

TEST_CASE("a hang is known from a look until a later call or the end") {
  Job job(2);
  const FlightInfo info = job.of(0);
  HangWatch watch(info, 0.05);
  CHECK(!watch.has_open());
  for (int rank = 0; rank < 2; ++rank) job.enter(rank, sum_of(4));
  info.mine->enqueued_all();
  CHECK(!watch.has_open());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(watch.look([] { return CallsEnded::no; }).empty());
  CHECK(watch.has_open());
  job.enter(0, sum_of(4));
  info.mine->enqueued_all();
  CHECK(!watch.has_open());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  static_cast<void>(watch.look([] { return CallsEnded::no; }));
  CHECK(watch.has_open());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(watch.is_due());
  CHECK(watch.look([] { return CallsEnded::yes; }).empty());
  CHECK(!watch.has_open());
}

TEST_CASE("the lowest running rank that is not left out speaks for all") {
  Job job(3);
  const auto none = [](const FlightRank&) { return false; };
  CHECK(is_spokesman(job.of(0), none));
  CHECK(!is_spokesman(job.of(1), none));
  const auto first = [](const FlightRank& one) { return one.rank == 0; };
  CHECK(is_spokesman(job.of(1), first));
  CHECK(!is_spokesman(job.of(2), first));
}

TEST_CASE("a child forked while the list of communicators is read has a list of its own") {
  Job job(2);
  const Flight mine(job.of(0));
  for_each_flight([&](const FlightInfo&) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(10);  // kills a child that waits for the parent's lock
      std::size_t listed = 0;
      const auto count = [&](const FlightInfo&) { ++listed; };
      for_each_flight(count);
      const Flight own(job.of(1));
      for_each_flight(count);
      ::_exit(listed == 1 ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
  });
}

TEST_CASE("a PID of another namespace tells nothing of a rank's state") {
  Job job(2);
  job.elsewhere = 1, job.pid = 0;  // no process
  CHECK(state_of(job.of(0).here[1]) == ProcessState::dead);
  job.rings[1]->live_in(pid_namespace() + 1);
  CHECK(state_of(job.of(0).here[1]) == ProcessState::runs);
}

TEST_CASE("the status socket rests while the process has no descriptor left") {
  StatusSocket::open();
  const int listener = StatusSocket::file();
  REQUIRE(listener >= 0);
  sockaddr_un address{};
  socklen_t size = sizeof address;
  REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const Fd asker(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(asker.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  StatusSocket::answer();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(StatusSocket::rest_ms() > 0);
  CHECK(StatusSocket::file() == -1);
  while (StatusSocket::rest_ms() >= 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(StatusSocket::file() == listener);
  StatusSocket::answer();
  char first = 0;
  CHECK(::read(asker.get(), &first, 1) == 1);
  CHECK(first == '{');
}

TEST_CASE("a file of last calls is whole, and old ones go") {
  const std::string said = write_last_calls();
  REQUIRE(has(said, "; last calls of all ranks: "));
  const std::filesystem::path path = said.substr(said.find('/'));
  const std::filesystem::path folder = path.parent_path();
  for (int i = 0; i < 20; ++i) {
    std::ofstream(folder / text("calls-0-test-{}.json", i)) << "old";
    std::filesystem::last_write_time(
        folder / text("calls-0-test-{}.json", i),
        std::filesystem::file_time_type::clock::now() - std::chrono::hours(1000));
  }
  CHECK(write_last_calls() == said);
  std::size_t kept = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string name = file.path().filename().string();
    kept += name.starts_with("calls-") ? 1 : 0;
    if (name.starts_with("calls-0-test-")) std::filesystem::remove(file.path());
  }
  CHECK(kept <= 16);
  std::ifstream file(path);
  const std::string body(std::istreambuf_iterator<char>(file), {});
  CHECK(body.starts_with("{\"schema\":\"plait.status/1\""));
  CHECK(body.ends_with("}\n"));
  std::filesystem::remove(path);
}

TEST_CASE("of two ranks that claim a call at once the lower one speaks") {
  Job job(3);
  const FlightInfo second = job.of(1);
  HangWatch of_second(second, 0.1);
  job.enter(0, sum_of(4));
  job.enter(1, sum_of(4));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(of_second.look(CallsEnded::no).empty());
  CHECK(second.mine->named() == 1);
  job.rings[0]->name(1);
  CHECK(of_second.look(CallsEnded::no).empty());
}

TEST_CASE("a wait without a visible cause is named late, and not while a graph may run") {
  Job job(2);
  const FlightInfo info = job.of(0);
  HangWatch watch(info, 0.05);
  for (int rank = 0; rank < 2; ++rank) job.enter(rank, sum_of(4));
  std::this_thread::sleep_for(std::chrono::milliseconds(350));
  CHECK(watch.look(CallsEnded::unknown).empty());
  CHECK(watch.look(CallsEnded::no).empty());
  CHECK(has(watch.look(CallsEnded::no), "entered by all ranks"));
}
