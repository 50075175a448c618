// Tests deferred teardown: a rank frees memory only after all peers have detached, and the closing
// rank's waits are limited.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/deferred_teardown.hpp"

using namespace plait;

namespace {

using Clock = std::chrono::steady_clock;

double s_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

template <class Done>
bool await(Done done) {
  const auto start = Clock::now();
  while (!done() && s_since(start) < 20) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return done();
}

/// Ranks that see each other's stage and outlive the test's teardowns.
struct TestRanks {
  explicit TestRanks(int count) : left(static_cast<std::size_t>(count)) {}
  struct DetachingRank {
    std::atomic<DetachStage> left{DetachStage::attached};
    std::atomic<bool> works{false};
    std::atomic<bool> elsewhere{true};
    std::atomic<bool> gpu_is_busy{false};
    std::atomic<bool> unmapped{false};
    std::atomic<bool> freed{false};
    std::atomic<bool> early{false};  ///< released something before all peers had reached the stage
  };
  std::vector<DetachingRank> left;

  bool others(const DetachingRank& mine, DetachStage wanted, bool elsewhere) {
    for (const DetachingRank& one : left)
      if (&one != &mine && (!elsewhere || one.elsewhere) && one.left.load() < wanted) return false;
    return true;
  }
};
using Shared = std::shared_ptr<TestRanks>;

DeferredTeardown teardown_for(const Shared& all, std::size_t rank) {
  TestRanks::DetachingRank& mine = all->left[rank];
  DeferredTeardown made;
  made.has_ended = [all, &mine] { return !mine.works; };
  made.publish = [all, &mine](DetachStage left) { mine.left.store(left); };
  made.peers_reached = [all, &mine](DetachStage left, bool elsewhere) {
    return all->others(mine, left, elsewhere);
  };
  const auto release = [all, &mine](DetachStage wanted, std::atomic<bool>& what) {
    while (mine.gpu_is_busy) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!all->others(mine, wanted, false)) mine.early = true;
    what = true;
  };
  made.unmap = [&mine, release] { release(DetachStage::work_ended, mine.unmapped); };
  made.free = [&mine, release] { release(DetachStage::unmapped, mine.freed); };
  return made;
}

}  // namespace

TEST_CASE("ranks that close at about the same time free all, each after its peers' last stores") {
  for (int round = 0; round < 20; ++round) {
    const auto all = std::make_shared<TestRanks>(3);
    std::vector<std::thread> threads;
    std::atomic<int> freed{0};
    for (std::size_t rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5 * ((rank + round) % 3)));
        freed += defer_teardown(teardown_for(all, rank), {10, 10, 10}) ? 1 : 0;
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(freed == 3);
    for (const TestRanks::DetachingRank& rank : all->left) {
      CHECK(rank.freed);
      CHECK(!rank.early);
    }
  }
}

TEST_CASE("the first closing rank waits no longer than allowed, and all is freed later") {
  const auto all = std::make_shared<TestRanks>(2);
  const auto start = Clock::now();
  CHECK(!defer_teardown(teardown_for(all, 0), {1, 0.2, 1}));
  CHECK(s_since(start) >= 0.2);
  CHECK(s_since(start) < 5);
  CHECK(all->left[0].left.load() == DetachStage::work_ended);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(!all->left[0].unmapped);
  CHECK(defer_teardown(teardown_for(all, 1), {10, 10, 10}));
  CHECK(await([&] { return all->left[0].freed.load(); }));
  CHECK(!all->left[0].early);
}

TEST_CASE("ranks of the same process are not awaited") {
  const auto all = std::make_shared<TestRanks>(2);
  for (TestRanks::DetachingRank& rank : all->left) rank.elsewhere = false;
  const auto start = Clock::now();
  CHECK(!defer_teardown(teardown_for(all, 0), {10, 10, 10}));
  CHECK(s_since(start) < 5);
  CHECK(!all->left[0].unmapped);
  CHECK(defer_teardown(teardown_for(all, 1), {10, 10, 10}));
  CHECK(await([&] { return all->left[0].freed.load(); }));
}

TEST_CASE("a rank with running work publishes nothing, and keeps its memory until the end") {
  const auto all = std::make_shared<TestRanks>(2);
  all->left[0].works = true;
  CHECK(!defer_teardown(teardown_for(all, 0), {0.1, 10, 10}));
  CHECK(all->left[0].left.load() == DetachStage::attached);
  CHECK(!defer_teardown(teardown_for(all, 1), {1, 0.1, 1}));
  CHECK(!all->left[1].unmapped);
  all->left[0].works = false;
  CHECK(await([&] { return all->left[0].freed && all->left[1].freed; }));
}

TEST_CASE("a busy GPU delays neither the closing rank nor other teardowns") {
  const auto held = std::make_shared<TestRanks>(1);
  held->left[0].gpu_is_busy = true;
  const auto start = Clock::now();
  CHECK(!defer_teardown(teardown_for(held, 0), {10, 10, 0.1}));
  const auto other = std::make_shared<TestRanks>(1);
  CHECK(defer_teardown(teardown_for(other, 0), {10, 10, 10}));
  CHECK(s_since(start) < 5);
  CHECK(!held->left[0].freed);
  held->left[0].gpu_is_busy = false;
  CHECK(await([&] { return held->left[0].freed.load(); }));
}
