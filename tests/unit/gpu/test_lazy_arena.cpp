// LazyArena with ranks as threads: all ranks switch to the large arena at the same call, whichever
// rank is early, late, failing or closed, and no rank waits for ever.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "base/text.hpp"
#include "gpu/consensus/lazy_arena.hpp"
#include "plait/error.hpp"

using namespace plait;
using namespace plait::cuda;

namespace {

using Answers = std::vector<bool>;

constexpr std::chrono::seconds kDeadline(20);

void pause_us(std::uint64_t us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

/// Runs work(rank) in a thread for each rank.
template <class Work>
void on_ranks(int ranks, const Work& work) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&work, rank] { work(rank); });
  for (std::thread& thread : threads) thread.join();
}

/// Cards of two rounds, each to be gathered from all ranks.
void allocate_arena(const LazyArena::Exchange& exchange, int rank, int ranks) {
  for (const char* const round : {"record", "mapped"}) {
    const std::vector<std::string> records = exchange(text("{} {}", round, rank));
    if (records.size() != static_cast<std::size_t>(ranks))
      throw Error(ErrorCode::internal, "wanted one record a rank");
    for (int peer = 0; peer < ranks; ++peer)
      if (records[static_cast<std::size_t>(peer)] != text("{} {}", round, peer))
        throw Error(ErrorCode::internal, "record of another rank");
  }
}

int count_on(const Answers& answers) {
  int on = 0;
  for (const bool answer : answers) on += answer ? 1 : 0;
  return on;
}

}  // namespace

TEST_CASE("all ranks switch at the same call, in any order of arrival") {
  int with_both = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    const int ranks = 2 + static_cast<int>(seed % 4);
    const auto page = std::make_unique<LazyArenaPage>();
    std::vector<Answers> answers(static_cast<std::size_t>(ranks));
    on_ranks(ranks, [&](int rank) {
      std::mt19937 random(seed * 16 + static_cast<unsigned>(rank));
      const std::uint64_t late_us = random() % 3000;
      LazyArena lazy_arena(*page, rank, ranks, seed % 3 == 0 ? 0.002 : 0,
                           [&](const auto& exchange) {
                             pause_us(late_us);
                             allocate_arena(exchange, rank, ranks);
                           });
      for (int call = 0; call < 200; ++call) {
        if (random() % 8 == 0) pause_us(random() % 200);
        // Calls that may wait are the same on all ranks, as captures are.
        answers[static_cast<std::size_t>(rank)].push_back(
            lazy_arena.next(call % 5 == 2   ? CallMode::alone
                            : call % 7 == 5 ? CallMode::grouped
                                            : CallMode::captured));
        if (random() % 16 == 0) {
          lazy_arena.cancel_last();  // the same call again gets the same answer
          REQUIRE(lazy_arena.next(CallMode::captured) ==
                  answers[static_cast<std::size_t>(rank)].back());
        }
      }
      while (lazy_arena.failure().empty() && !lazy_arena.next(CallMode::captured)) pause_us(100);
      CHECK(lazy_arena.is_on());
    });
    CAPTURE(seed);
    for (const Answers& one : answers) CHECK(one == answers[0]);
    for (std::size_t call = 1; call < answers[0].size(); ++call)
      CHECK((answers[0][call] || !answers[0][call - 1]));  // and never back
    const int on = count_on(answers[0]);
    with_both += on > 0 && on < 200;
  }
  CHECK(with_both > 5);
}

TEST_CASE("with a timeout the first call has the large arena") {
  const auto page = std::make_unique<LazyArenaPage>();
  on_ranks(3, [&](int rank) {
    LazyArena lazy_arena(*page, rank, 3, 30,
                         [&](const auto& exchange) { allocate_arena(exchange, rank, 3); });
    CHECK(lazy_arena.next(CallMode::alone));
    CHECK(lazy_arena.is_on());
  });
}

TEST_CASE("inside captures no allocation begins, and no rank waits") {
  const auto page = std::make_unique<LazyArenaPage>();
  bool made = false;
  LazyArena lazy_arena(*page, 0, 1, 30, [&](const auto&) { made = true; });
  for (int call = 0; call < 10; ++call) CHECK_FALSE(lazy_arena.next(CallMode::captured));
  CHECK_FALSE(lazy_arena.is_wanted());
  CHECK(lazy_arena.next(CallMode::alone));
  lazy_arena.stop();
  CHECK(made);
}

TEST_CASE("one rank without memory: all ranks keep the small arena, with an error that names it") {
  const auto page = std::make_unique<LazyArenaPage>();
  on_ranks(3, [&](int rank) {
    LazyArena lazy_arena(*page, rank, 3, 30, [&](const auto& exchange) {
      if (rank == 1) throw Error(ErrorCode::out_of_memory, "the GPU is full");
      allocate_arena(exchange, rank, 3);
    });
    for (int call = 0; call < 5; ++call) CHECK_FALSE(lazy_arena.next(CallMode::alone));
    CHECK(lazy_arena.failure().find("rank 1: ") == 0);
    CHECK(lazy_arena.failure().find("the GPU is full") != std::string::npos);
  });
}

TEST_CASE("ranks that lack memory for a while: a later call starts again, and all switch alike") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const int ranks = 2 + static_cast<int>(seed % 3);
    const auto page = std::make_unique<LazyArenaPage>();
    std::vector<Answers> answers(static_cast<std::size_t>(ranks));
    std::atomic<int> switched{0}, begun{0};
    on_ranks(ranks, [&](int rank) {
      std::mt19937 random(seed * 16 + static_cast<unsigned>(rank));
      Answers& mine = answers[static_cast<std::size_t>(rank)];
      int lacking = static_cast<int>(random() % 4);  // number of failures of this rank
      const auto fail = [&](unsigned at) {
        if (lacking <= 0 || random() % 3 != at) return;
        --lacking;
        throw Error(ErrorCode::out_of_memory, text("rank {} is full", rank));
      };
      LazyArena lazy_arena(
          *page, rank, ranks, 0,
          [&](const auto& exchange) {
            ++begun;
            pause_us(random() % 500);
            fail(0);
            allocate_arena(exchange, rank, ranks);
            fail(1);
          },
          0.001);
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      bool is_on = false;
      while (switched < ranks && std::chrono::steady_clock::now() < end) {
        mine.push_back(lazy_arena.next(CallMode::alone));
        if (!std::exchange(is_on, mine.back()) && is_on) ++switched;
        pause_us(random() % 300);
      }
    });
    CAPTURE(seed);
    CHECK(switched == ranks);
    CHECK(begun >= ranks);
    std::size_t first = 0;
    for (const Answers& one : answers) {
      const auto on =
          static_cast<std::size_t>(std::find(one.begin(), one.end(), true) - one.begin());
      if (&one == &answers[0]) first = on;
      CHECK(on == first);
      CHECK(std::find(one.begin() + static_cast<std::ptrdiff_t>(on), one.end(), false) ==
            one.end());
    }
  }
}

TEST_CASE("a call that is only counted begins nothing, and gets the arena that is there") {
  const auto page = std::make_unique<LazyArenaPage>();
  std::atomic<bool> gone{false};
  LazyArena lazy_arena(*page, 0, 1, 30, [](const auto&) {});
  lazy_arena.allow_trim(0.001, [&] { gone = true; });
  CHECK_FALSE(lazy_arena.next(CallMode::counted));
  CHECK_FALSE(lazy_arena.is_wanted());
  CHECK(lazy_arena.next(CallMode::captured_waiting));
}

TEST_CASE("a call that has given its hold up can be rolled back, and the arena can go") {
  const auto page = std::make_unique<LazyArenaPage>();
  std::atomic<bool> gone{false};
  LazyArena lazy_arena(*page, 0, 1, 30, [](const auto&) {});
  lazy_arena.allow_trim(0.001, [&] { gone = true; });
  CHECK(lazy_arena.next(CallMode::alone));
  lazy_arena.end_call();
  CHECK(lazy_arena.next(CallMode::counted));  // beside another arena that was refused
  lazy_arena.end_call();
  lazy_arena.cancel_last(false);
  for (int i = 0; i < 5000 && !gone; ++i) {
    lazy_arena.trim([] { return true; });
    pause_us(1000);
  }
  CHECK(gone);
  CHECK(lazy_arena.next(CallMode::alone));  // one call is open
  pause_us(3000);
  CHECK_FALSE(lazy_arena.wants_trim());
}

TEST_CASE("no call starts again while a rank has just failed, nor in a capture") {
  const auto page = std::make_unique<LazyArenaPage>();
  std::atomic<int> begun{0};
  LazyArena lazy_arena(
      *page, 0, 1, 30,
      [&](const auto&) {
        if (++begun == 1) throw Error(ErrorCode::out_of_memory, "full");
      },
      0.2);
  const auto began = std::chrono::steady_clock::now();
  CHECK_FALSE(lazy_arena.next(CallMode::alone));
  CHECK(lazy_arena.failure() == "rank 0: out of memory: full");
  while (!lazy_arena.next(CallMode::alone)) pause_us(1000);
  CHECK(std::chrono::steady_clock::now() - began >= std::chrono::milliseconds(200));
  CHECK(begun == 2);
  CHECK(lazy_arena.failure() == "");
}

TEST_CASE("ranks that reach two communicators in opposite orders are blocked for a moment only") {
  const std::vector<std::unique_ptr<LazyArenaPage>> pages = [] {
    std::vector<std::unique_ptr<LazyArenaPage>> made;
    for (int i = 0; i < 2; ++i) made.push_back(std::make_unique<LazyArenaPage>());
    return made;
  }();
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::vector<Answers>> answers(2, std::vector<Answers>(2));
  std::vector<std::unique_ptr<LazyArena>> lazy_arenas[2];
  for (int rank = 0; rank < 2; ++rank)
    for (int comm = 0; comm < 2; ++comm)
      lazy_arenas[rank].push_back(std::make_unique<LazyArena>(
          *pages[static_cast<std::size_t>(comm)], rank, 2, 0.05,
          [rank](const auto& exchange) { allocate_arena(exchange, rank, 2); }));
  // A single thread that drives both GPUs: no other rank can arrive meanwhile.
  const auto call_all = [&] {
    for (const int turn : {0, 1})
      for (int rank = 0; rank < 2; ++rank) {
        const auto comm = static_cast<std::size_t>(turn ^ rank);
        answers[comm][static_cast<std::size_t>(rank)].push_back(
            lazy_arenas[rank][comm]->next(CallMode::alone));
      }
  };
  for (int call = 0; call < 50; ++call) call_all();
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(5));
  // On a busy machine the threads that allocate may run only after these calls.
  const auto is_switched = [](const std::vector<Answers>& of_comm) { return of_comm[0].back(); };
  while (!std::ranges::all_of(answers, is_switched) &&
         std::chrono::steady_clock::now() - began < kDeadline) {
    pause_us(1000);
    call_all();
  }
  for (const std::vector<Answers>& of_comm : answers) {
    CHECK(of_comm[0] == of_comm[1]);
    CHECK(count_on(of_comm[0]) > 0);
  }
}

TEST_CASE("a communicator is closed while other ranks allocate") {
  const auto page = std::make_unique<LazyArenaPage>();
  const auto began = std::chrono::steady_clock::now();
  std::atomic<bool> cancelled{false};
  on_ranks(2, [&](int rank) {
    LazyArena lazy_arena(*page, rank, 2, rank == 0 ? 30 : 0, [&](const auto& exchange) {
      // Rank 1 shows no record before its communicator is closed, however late the closing thread.
      while (rank == 1 && !cancelled && std::chrono::steady_clock::now() - began < kDeadline)
        pause_us(100);
      allocate_arena(exchange, rank, 2);
    });
    if (rank == 0) {
      CHECK_FALSE(lazy_arena.next(CallMode::alone));  // until the second rank has closed
      return;
    }
    lazy_arena.begin();
    lazy_arena.cancel();
    cancelled = true;
    lazy_arena.stop();
    CHECK_FALSE(lazy_arena.next(CallMode::alone));
  });
  CHECK(std::chrono::steady_clock::now() - began < kDeadline);
}

namespace {

/// A rank whose arena another thread trims while it makes calls.
class TrimmedRank {
 public:
  TrimmedRank(LazyArenaPage& page, int rank, int ranks, std::vector<std::atomic<int>>& present,
              std::atomic<int>& given_up)
      : present_(present), lazy_(page, rank, ranks, 30, [=, &present](const auto& exchange) {
          present[static_cast<std::size_t>(rank)] = 1;
          allocate_arena(exchange, rank, ranks);
        }) {
    lazy_.allow_trim(0, [&present, &given_up, rank] {
      present[static_cast<std::size_t>(rank)] = 0;
      ++given_up;
    });
    watch_ = std::thread([this, seed = static_cast<unsigned>(rank)] {
      std::mt19937 random(seed);
      while (!ends_.load()) {
        lazy_.trim([] { return true; });
        pause_us(random() % 100);
      }
    });
  }
  ~TrimmedRank() {
    ends_ = true;
    watch_.join();
  }
  LazyArena& lazy() { return lazy_; }
  /// Makes a call, which uses every rank's memory until its end.
  bool call(CallMode mode, std::uint64_t takes_us) {
    if (!lazy_.next(mode)) return false;
    CHECK(all_present());
    pause_us(takes_us);
    CHECK(all_present());
    lazy_.end_call();
    return true;
  }

 private:
  bool all_present() const {
    return std::all_of(present_.begin(), present_.end(), [](const auto& one) { return one == 1; });
  }
  std::vector<std::atomic<int>>& present_;
  LazyArena lazy_;
  std::atomic<bool> ends_{false};
  std::thread watch_;
};

}  // namespace

TEST_CASE("ranks give the arena up together, and make it again for a later call") {
  int given_up_in_all = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const int ranks = 2 + static_cast<int>(seed % 3);
    const auto page = std::make_unique<LazyArenaPage>();
    std::vector<std::atomic<int>> present(static_cast<std::size_t>(ranks));
    std::vector<Answers> answers(static_cast<std::size_t>(ranks));
    std::atomic<int> given_up{0};
    on_ranks(ranks, [&](int rank) {
      std::mt19937 common(seed), random(seed * 16 + static_cast<unsigned>(rank));
      TrimmedRank one(*page, rank, ranks, present, given_up);
      for (int call = 0; call < 60; ++call) {
        if (common() % 4 == 0) pause_us(1000);  // long enough for all ranks to offer
        const auto mode = common() % 3 == 0 ? CallMode::grouped : CallMode::alone;
        if (random() % 8 == 0) pause_us(random() % 300);
        answers[static_cast<std::size_t>(rank)].push_back(one.call(mode, random() % 100));
      }
    });
    CAPTURE(seed);
    for (const Answers& one : answers) CHECK(one == answers[0]);
    CHECK(count_on(answers[0]) > 10);
    given_up_in_all += given_up.load() / ranks;
  }
  CHECK(given_up_in_all > 20);
}

TEST_CASE("a call that is not enqueued yet, or was cancelled, keeps the count of open calls") {
  const auto page = std::make_unique<LazyArenaPage>();
  int given_up = 0;
  LazyArena lazy(*page, 0, 1, 30, [](const auto&) {});
  lazy.allow_trim(0, [&] { ++given_up; });
  const auto look = [&] {
    for (int i = 0; i < 5; ++i) lazy.trim([] { return true; });
    lazy.pause();  // ends the thread
    lazy.unpause();
    return given_up;
  };
  CHECK(lazy.next(CallMode::alone));
  CHECK(look() == 0);
  lazy.cancel_last();
  CHECK(lazy.next(CallMode::alone));
  lazy.trim([] { return false; });  // runs on the GPU
  CHECK(look() == 0);
  lazy.end_call();
  lazy.trim([] { return false; });
  lazy.pause();
  CHECK(given_up == 0);
  lazy.unpause();
  CHECK(look() == 1);
  CHECK_FALSE(lazy.wants_trim());
  CHECK(lazy.next(CallMode::alone));
  lazy.end_call();
  CHECK(look() == 2);
}

TEST_CASE("a captured call that pins the arena keeps the arena for good, and no other call does") {
  const auto page = std::make_unique<LazyArenaPage>();
  bool given_up = false;
  LazyArena lazy(*page, 0, 1, 30, [](const auto&) {});
  lazy.allow_trim(0, [&] { given_up = true; });
  CHECK(lazy.next(CallMode::alone));
  lazy.end_call();
  CHECK(lazy.next(CallMode::captured));
  lazy.end_call();  // refused, for want of another arena
  CHECK(lazy.wants_trim());
  CHECK(lazy.next(CallMode::captured));
  lazy.pin();
  lazy.end_call();
  CHECK_FALSE(lazy.wants_trim());
  lazy.trim([] { return true; });
  lazy.stop();
  CHECK_FALSE(given_up);
}
