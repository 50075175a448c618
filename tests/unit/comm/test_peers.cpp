// Tests that Peers reports a lost rank as soon as the rank's liveness futex is marked, before the
// process is torn down and the pidfd becomes readable.
#include <doctest/doctest.h>
#include <linux/futex.h>
#include <unistd.h>

#include <string>

#include "comm/bootstrap/process_file.hpp"
#include "comm/liveness/peers.hpp"
#include "plait/error.hpp"

using namespace plait;

namespace {

/// Control pages of two ranks in this process, as mapped by rank 0.
Controls two_pages() {
  std::vector<Mapping> pages;
  for (int rank = 0; rank < 2; ++rank) {
    const Fd memory = make_shared_memory(kControlBytes, 1);
    pages.push_back(map_shared_memory(memory, kControlBytes));
    Controls::prepare(pages.back(), rank);
  }
  return Controls(0, std::move(pages));
}

/// Rank 1 is this process, hence the pidfd never becomes readable.
std::vector<Peer> rank_one() {
  std::vector<Peer> list;
  list.push_back({1, getpid(), open_own_process()});
  return list;
}

/// Rank 1's liveness page, marked as dead by a test.
struct LivenessFixture {
  LivenessPage page;
  std::shared_ptr<const WatchedPeers> watched = [this] {
    int place = -1;
    const std::string shown = page.show(place);
    auto made = std::make_shared<WatchedPeers>();
    made->add(1, PeerLiveness::open(shown), open_own_process());
    return made;
  }();
};

std::string error_of(Peers& peers) {
  try {
    peers.check("a test ran");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a rank whose liveness futex is marked is lost, though its process is still there") {
  const Controls controls = two_pages();
  const LivenessFixture liveness;
  Peers peers(rank_one());
  peers.use(&controls, liveness.watched);
  peers.begin_call(1);
  liveness.page.liveness() = 4242u;
  CHECK(error_of(peers) == "");
  usleep(10'000);  // processes are checked every few milliseconds
  liveness.page.liveness() = 4242 | FUTEX_OWNER_DIED;
  CHECK(error_of(peers).find("rank 1 (pid") != std::string::npos);
}

TEST_CASE("a rank that dies before the first call is lost to the set-up, unless it had closed") {
  const Controls controls = two_pages();
  const LivenessFixture liveness;
  Peers peers(rank_one());
  peers.use(&controls, liveness.watched);
  CHECK(error_of(peers) == "");
  usleep(10'000);  // processes are checked every few milliseconds
  liveness.page.liveness() = FUTEX_OWNER_DIED;
  CHECK(error_of(peers).find("rank 1 (pid") != std::string::npos);
  controls.of(1).left = 1;
  CHECK(error_of(peers) == "");
}

TEST_CASE("a rank that has finished the call may die") {
  const Controls controls = two_pages();
  const LivenessFixture liveness;
  Peers peers(rank_one());
  peers.use(&controls, liveness.watched);
  peers.begin_call(1);
  liveness.page.liveness() = FUTEX_OWNER_DIED;
  controls.of(1).finished = 1;
  CHECK(error_of(peers) == "");
}
