// Tests the watch thread of a process: which observers it notifies of a peer's end, and when.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <new>
#include <thread>

#include "base/text.hpp"
#include "comm/liveness/peer_watch.hpp"

using namespace plait;

namespace {

class RecordingObserver : public PeerObserver {
 public:
  explicit RecordingObserver(double grace_s) : PeerObserver(grace_s) {}
  void lost(int rank, int process, Loss how) override {
    rank_ = rank;
    process_ = process;
    how_ = how;
    ++losses;
    fail_streams_in(0.05);
  }
  void fail_streams() noexcept override { ++failures; }
  void look() override { ++looks; }
  std::atomic<int> losses{0}, failures{0}, looks{0};
  std::atomic<int> rank_{-1}, process_{-1};
  std::atomic<Loss> how_{Loss::killed};
};

constexpr double kSoonS = 20;  ///< on a busy machine

/// Returns true once the condition holds, within `seconds`.
bool within(double seconds, const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Another process that publishes a slot and then runs `work` with it; rank 1 of two.
class Neighbour {
 public:
  explicit Neighbour(const std::function<void(int place)>& work) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      RecordingObserver nobody(0);
      watch(std::make_shared<WatchedPeers>(), nobody);  // so that it holds its liveness futex
      int place = -1;
      const std::string shown = publish_liveness(place);
      if (::write(ends[1], shown.c_str(), shown.size() + 1) < 0) ::_exit(1);
      work(place);
      ::_exit(0);
    }
    ::close(ends[1]);
    char text[128] = {};
    REQUIRE(::read(ends[0], text, sizeof text) > 0);
    ::close(ends[0]);
    peers = open_peer_pages({std::nullopt, text}, 0);
  }
  ~Neighbour() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  int pid() const { return pid_; }
  std::shared_ptr<WatchedPeers> peers;

 private:
  int pid_ = -1;
};

void wait_for_ever(int) {
  for (;;) ::pause();
}

}  // namespace

TEST_CASE("a killed peer is reported at once, and streams fail at the scheduled time") {
  Neighbour other(wait_for_ever);
  RecordingObserver observer(5);
  watch(other.peers, observer);
  CHECK(!within(0.1, [&] { return observer.losses > 0; }));
  CHECK(!other.peers->has_died(1));
  ::kill(other.pid(), SIGKILL);
  CHECK(within(kSoonS, [&] { return observer.losses > 0; }));
  CHECK(observer.rank_ == 1);
  CHECK(observer.process_ == other.pid());
  CHECK(observer.how_ == Loss::killed);
  CHECK(within(kSoonS, [&] { return observer.failures > 0; }));
  // Its GPU memory goes with the process, which ends a moment after its futex says so.
  CHECK(within(kSoonS, [&] { return other.peers->peers_reached(DetachStage::unmapped, true); }));
  unwatch(observer);
  CHECK(observer.losses == 1);
  CHECK(observer.failures == 1);
}

TEST_CASE("an observer that throws ends neither the watch nor the program") {
  class Throwing : public RecordingObserver {
   public:
    Throwing() : RecordingObserver(5) {}
    void lost(int rank, int process, Loss how) override {
      RecordingObserver::lost(rank, process, how);
      throw std::bad_alloc();
    }
    void look() override {
      ++looks;
      query_once();
      throw std::bad_alloc();
    }
    void query() override {
      ++queries;
      throw std::bad_alloc();
    }
    std::atomic<int> queries{0};
  };
  Neighbour other(wait_for_ever);
  Throwing observer;
  RecordingObserver next(5);
  watch(other.peers, observer, ObserverCalls::look);
  watch(std::make_shared<WatchedPeers>(), next, ObserverCalls::look);
  CHECK(within(kSoonS, [&] { return observer.queries > 1; }));
  CHECK(within(kSoonS, [&] { return next.looks > 1; }));
  ::kill(other.pid(), SIGKILL);
  CHECK(within(kSoonS, [&] { return observer.losses > 0; }));
  const int before = observer.queries;
  CHECK(within(kSoonS, [&] { return observer.queries > before + 1; }));
  unwatch(observer);
  unwatch(next);
  CHECK(observer.losses == 1);
}

TEST_CASE("a peer that fails while its process lives is lost at once, the next one there is not") {
  int go[2];
  REQUIRE(::pipe(go) == 0);
  Neighbour other([&](int place) {
    char word = 0;
    if (::read(go[0], &word, 1) != 1) ::_exit(1);
    publish_failed(place);
    publish_detach(place, DetachStage::unmapped);
    int next = -1;
    if (publish_liveness(next).empty() || next != place) ::_exit(1);
    wait_for_ever(place);
  });
  RecordingObserver observer(5);
  watch(other.peers, observer);
  CHECK(!within(0.05, [&] { return observer.losses > 0; }));
  REQUIRE(::write(go[1], "!", 1) == 1);
  CHECK(within(kSoonS, [&] { return observer.losses > 0; }));
  CHECK(observer.how_ == Loss::failed);
  CHECK(observer.rank_ == 1);
  CHECK(observer.process_ == other.pid());
  CHECK(within(kSoonS, [&] { return observer.failures > 0; }));
  unwatch(observer);
  CHECK(observer.losses == 1);
  for (const int end : go) ::close(end);
}

TEST_CASE("a peer that exits by itself is reported after the grace time") {
  Neighbour other([](int) {
    ::usleep(200'000);
    std::exit(0);
  });
  RecordingObserver patient(0.5);
  const auto begun = std::chrono::steady_clock::now();
  watch(other.peers, patient);
  CHECK(within(kSoonS, [&] { return patient.losses > 0; }));
  CHECK(patient.how_ == Loss::ended);
  CHECK(std::chrono::steady_clock::now() - begun > std::chrono::milliseconds(400));
  unwatch(patient);
}

TEST_CASE("a peer that has detached may exit") {
  Neighbour other([](int place) {
    publish_detach(place, DetachStage::work_ended);
    ::usleep(200'000);
    ::_exit(0);
  });
  RecordingObserver observer(0);
  watch(other.peers, observer, ObserverCalls::look);
  CHECK(within(kSoonS, [&] {
    return other.peers->peers_reached(DetachStage::unmapped, true);
  }));  // the process has ended
  const int looks = observer.looks;
  CHECK(within(kSoonS, [&] { return observer.looks > looks + 3; }));
  CHECK(observer.losses == 0);
  unwatch(observer);
}

TEST_CASE("a removed observer gets no report") {
  Neighbour other(wait_for_ever);
  auto observer = std::make_unique<RecordingObserver>(0);
  RecordingObserver still(0);
  watch(other.peers, *observer, ObserverCalls::look);
  watch(open_peer_pages({std::nullopt, std::nullopt}, 0), still, ObserverCalls::look);
  unwatch(*observer);
  observer.reset();
  ::kill(other.pid(), SIGKILL);
  CHECK(within(kSoonS, [&] { return still.looks > 5; }));
  CHECK(still.losses == 0);
  unwatch(still);
}

TEST_CASE("a query that blocks delays no other observer") {
  class Asking : public RecordingObserver {
   public:
    Asking() : RecordingObserver(0) {}
    void query() override {
      ++asks;
      while (is_held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++answers;
    }
    std::atomic<bool> is_held{true};
    std::atomic<int> asks{0}, answers{0};
  };
  Neighbour other(wait_for_ever);
  const auto nobody = [] { return open_peer_pages({std::nullopt, std::nullopt}, 0); };
  Asking asking, later;
  later.is_held = false;
  RecordingObserver observer(0), passing(0);
  watch(nobody(), asking, ObserverCalls::look_and_query);
  watch(nobody(), later, ObserverCalls::look_and_query);
  watch(other.peers, observer, ObserverCalls::look);
  REQUIRE(within(kSoonS, [&] { return asking.asks > 0; }));
  const int looks = asking.looks;
  ::kill(other.pid(), SIGKILL);
  CHECK(within(kSoonS, [&] { return observer.losses > 0 && observer.failures > 0; }));
  CHECK(within(kSoonS, [&] { return asking.looks > looks + 3; }));
  watch(nobody(), passing, ObserverCalls::look);
  unwatch(passing);
  unwatch(observer);
  CHECK(asking.answers == 0);
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    asking.is_held = false;
  });
  unwatch(asking);  // waits for the query's end
  CHECK(asking.answers == asking.asks);
  const int asks = asking.asks;
  CHECK(within(kSoonS, [&] { return later.answers > 3; }));
  CHECK(asking.asks == asks);
  release.join();
  unwatch(later);
}

TEST_CASE("a rank whose page cannot be opened is not reported, and never counts as detached") {
  const auto peers = open_peer_pages({std::nullopt, std::string("1 999 0 0")}, 0);
  CHECK(!peers->has_died(1));
  CHECK(!peers->peers_reached(DetachStage::work_ended, true));
}
