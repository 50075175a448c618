// The one watch of a process: who is told of a peer's end, when, and who is not.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

#include "base/text.hpp"
#include "comm/life/peer_watch.hpp"

using namespace plait;

namespace {

class Told : public Watched {
 public:
  explicit Told(double grace_s) : Watched(grace_s) {}
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

/// True once it holds, within `seconds`.
bool within(double seconds, const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Another process that shows a place and then does `work` with it; rank 1 of two.
class Neighbour {
 public:
  explicit Neighbour(const std::function<void(int place)>& work) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      Told nobody(0);
      watch(std::make_shared<WatchedPeers>(), nobody);  // so that it holds its life word
      int place = -1;
      const std::string shown = show_life(place);
      if (::write(ends[1], shown.c_str(), shown.size() + 1) < 0) ::_exit(1);
      work(place);
      ::_exit(0);
    }
    ::close(ends[1]);
    char text[128] = {};
    REQUIRE(::read(ends[0], text, sizeof text) > 0);
    ::close(ends[0]);
    peers = open_peers({std::nullopt, text}, 0);
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

TEST_CASE("a peer that is killed is told of at once, and streams fail when they are asked to") {
  Neighbour other(wait_for_ever);
  Told told(5);
  watch(other.peers, told);
  CHECK(!within(0.1, [&] { return told.losses > 0; }));
  CHECK(!other.peers->has_died(1));
  ::kill(other.pid(), SIGKILL);
  CHECK(within(2, [&] { return told.losses > 0; }));
  CHECK(told.rank_ == 1);
  CHECK(told.process_ == other.pid());
  CHECK(told.how_ == Loss::killed);
  CHECK(within(2, [&] { return told.failures > 0; }));
  CHECK(other.peers->peers_reached(DetachStage::unmapped, true));  // with all it had
  unwatch(told);
  CHECK(told.losses == 1);
  CHECK(told.failures == 1);
}

TEST_CASE("a peer that fails while its process lives is lost at once, the next one there is not") {
  Neighbour other([](int place) {
    ::usleep(200'000);
    show_failed(place);
    publish_detach(place, DetachStage::unmapped);
    int next = -1;
    if (show_life(next).empty() || next != place) ::_exit(1);
    wait_for_ever(place);
  });
  Told told(5);
  watch(other.peers, told);
  CHECK(!within(0.05, [&] { return told.losses > 0; }));
  CHECK(within(2, [&] { return told.losses > 0; }));
  CHECK(told.how_ == Loss::failed);
  CHECK(told.rank_ == 1);
  CHECK(told.process_ == other.pid());
  CHECK(within(2, [&] { return told.failures > 0; }));
  unwatch(told);
  CHECK(told.losses == 1);
}

TEST_CASE("a peer that ends by itself is told of after the time of grace") {
  Neighbour other([](int) {
    ::usleep(200'000);
    std::exit(0);
  });
  Told patient(0.5);
  const auto begun = std::chrono::steady_clock::now();
  watch(other.peers, patient);
  CHECK(within(5, [&] { return patient.losses > 0; }));
  CHECK(patient.how_ == Loss::ended);
  CHECK(std::chrono::steady_clock::now() - begun > std::chrono::milliseconds(400));
  unwatch(patient);
}

TEST_CASE("a peer that has left may end") {
  Neighbour other([](int place) {
    publish_detach(place, DetachStage::work_ended);
    ::usleep(200'000);
    ::_exit(0);
  });
  Told told(0);
  watch(other.peers, told, Wants::looks);
  CHECK(within(
      2, [&] { return other.peers->peers_reached(DetachStage::unmapped, true); }));  // it is gone
  const int looks = told.looks;
  CHECK(within(2, [&] { return told.looks > looks + 3; }));
  CHECK(told.losses == 0);
  unwatch(told);
}

TEST_CASE("who does not watch any more is not told") {
  Neighbour other(wait_for_ever);
  auto told = std::make_unique<Told>(0);
  Told still(0);
  watch(other.peers, *told, Wants::looks);
  watch(open_peers({std::nullopt, std::nullopt}, 0), still, Wants::looks);
  unwatch(*told);
  told.reset();
  ::kill(other.pid(), SIGKILL);
  CHECK(within(2, [&] { return still.looks > 5; }));
  CHECK(still.losses == 0);
  unwatch(still);
}

TEST_CASE("who waits for a library's answer holds up nobody that watches") {
  class Asking : public Told {
   public:
    Asking() : Told(0) {}
    void ask() override {
      ++asks;
      while (is_held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++answers;
    }
    std::atomic<bool> is_held{true};
    std::atomic<int> asks{0}, answers{0};
  };
  Neighbour other(wait_for_ever);
  const auto nobody = [] { return open_peers({std::nullopt, std::nullopt}, 0); };
  Asking asking, later;
  later.is_held = false;
  Told told(0), passing(0);
  watch(nobody(), asking, Wants::asks);
  watch(nobody(), later, Wants::asks);
  watch(other.peers, told, Wants::looks);
  REQUIRE(within(2, [&] { return asking.asks > 0; }));
  const int looks = asking.looks;
  ::kill(other.pid(), SIGKILL);
  CHECK(within(2, [&] { return told.losses > 0 && told.failures > 0; }));
  CHECK(within(2, [&] { return asking.looks > looks + 3; }));
  watch(nobody(), passing, Wants::looks);
  unwatch(passing);
  unwatch(told);
  CHECK(asking.answers == 0);
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    asking.is_held = false;
  });
  unwatch(asking);  // not before it has its answer
  CHECK(asking.answers == asking.asks);
  const int asks = asking.asks;
  CHECK(within(2, [&] { return later.answers > 3; }));
  CHECK(asking.asks == asks);
  release.join();
  unwatch(later);
}

TEST_CASE("of a rank whose page cannot be opened nothing is said, and it never has left") {
  const auto peers = open_peers({std::nullopt, std::string("1 999 0 0")}, 0);
  CHECK(!peers->has_died(1));
  CHECK(!peers->peers_reached(DetachStage::work_ended, true));
}
