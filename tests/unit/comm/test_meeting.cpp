// Tests meetings of ranks by a communicator's name: all ranks draw the same conclusion whoever is
// absent, twice there, dead or late, and no entry outlives the next rank that enters.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "base/text.hpp"
#include "comm/bootstrap/ancestors.hpp"
#include "comm/meet/meeting.hpp"
#include "plait/error.hpp"
#include "unit/folder.hpp"

using namespace plait;

namespace {

/// A rendezvous folder of the test's own.
class OwnRendezvous {
 public:
  OwnRendezvous() {
    if (const char* const before = std::getenv("XDG_RUNTIME_DIR")) before_ = before;
    ::setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
  }
  ~OwnRendezvous() {
    ::rmdir(path().c_str());
    if (before_.empty())
      ::unsetenv("XDG_RUNTIME_DIR");
    else
      ::setenv("XDG_RUNTIME_DIR", before_.c_str(), 1);
  }
  std::string path() const { return folder_.path() + "/plait"; }
  int entries() const { return entries_of(path()); }

 private:
  TestFolder folder_;
  std::string before_;
};

/// Counters that forked ranks share.
struct SharedCounts {
  std::atomic<int> entered{0}, answered{0}, good{0};
};

class Shared {
 public:
  Shared() {
    void* page = ::mmap(nullptr, sizeof(SharedCounts), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(page != MAP_FAILED);
    counts_ = new (page) SharedCounts;
  }
  ~Shared() { ::munmap(counts_, sizeof(SharedCounts)); }
  SharedCounts* operator->() const { return counts_; }

 private:
  SharedCounts* counts_;
};

void await(const std::atomic<int>& count, int wanted) {
  while (count.load() < wanted) std::this_thread::yield();
}

/// Throws 20 s after its making.
Meeting::GiveUp patience() {
  return [until_ns = deadline_in(20)] {
    if (now_ns() > until_ns) throw Error(ErrorCode::timeout, "a test's patience is over");
  };
}

/// Runs body(rank) in a forked process a rank. Returns the exit statuses. Not used under
/// ThreadSanitizer, which takes no forks of threads.
[[maybe_unused]] std::vector<int> as_processes(int ranks, const std::function<bool(int)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      bool good = false;
      try {
        good = body(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      ::_exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  std::vector<int> statuses;
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    statuses.push_back(status);
  }
  return statuses;
}

/// Checks rounds of records of several sizes.
bool exchange_rounds(Meeting& meeting, int rank, int ranks, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const auto bytes_of = [&](int peer) {
      return std::string(static_cast<std::size_t>((round * 37 + peer * 501) % 4097),
                         static_cast<char>('a' + peer));
    };
    const std::vector<std::string> all = meeting.allgather(bytes_of(rank), patience());
    for (int peer = 0; peer < ranks; ++peer)
      if (all[static_cast<std::size_t>(peer)] != bytes_of(peer)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a process's start time names it with its number") {
  CHECK(start_of(::getpid()) != 0);
  CHECK(start_of(::getpid()) == start_of(::getpid()));
  CHECK(start_of(::getpid()) >= start_of(1));
  CHECK(start_of(0x7ffffff) == 0);
}

TEST_CASE("threads of one process meet, and their entries go") {
  const OwnRendezvous own;
  constexpr int kRanks = 5;
  SharedCounts counts;
  const auto thrown = as_threads(kRanks, [&](int rank) {
    Meeting meeting({"a name", rank});
    ++counts.entered;
    await(counts.entered, kRanks);
    const int shown = kRanks - 1 - rank;  // the library may number ranks in another order
    if (!meeting.find_all(shown, kRanks, patience())) throw std::runtime_error("not all");
    if (meeting.in_process() != kRanks) throw std::runtime_error("a wrong count");
    if (!exchange_rounds(meeting, shown, kRanks, 100)) throw std::runtime_error("wrong records");
  });
  for (const std::string& error : thrown) CHECK(error == "");
  CHECK(own.entries() == 0);
}

TEST_CASE("one name in turn is another meeting each time") {
  const OwnRendezvous own;
  std::string last;
  for (int round = 0; round < 3; ++round) {
    Meeting one({"again", 0}), other({"again", 1});
    std::string word;
    std::thread peer([&] { CHECK(other.find_all(1, 2, patience())); });
    CHECK(one.find_all(0, 2, patience()));
    peer.join();
    CHECK(one.word_of_all() == other.word_of_all());
    CHECK(one.word_of_all() != last);
    last = one.word_of_all();
  }
  CHECK(own.entries() == 0);
}

TEST_CASE("with a rank too few or too many every rank answers no") {
  const OwnRendezvous own;
  const std::vector<std::vector<int>> seats = {{0, 1}, {0, 2}, {0, 1, 2, 3}};
  for (std::size_t which = 0; which < seats.size(); ++which) {
    SharedCounts counts;
    const int there = static_cast<int>(seats[which].size());
    const auto thrown = as_threads(there, [&](int at) {
      const int seat = seats[which][static_cast<std::size_t>(at)];
      Meeting meeting({text("some {}", which), seat});
      ++counts.entered;
      await(counts.entered, there);
      counts.good += meeting.find_all(seat, 3, patience());
      ++counts.answered;
      await(counts.answered, there);
    });
    for (const std::string& error : thrown) CHECK(error == "");
    CHECK(counts.good == 0);
  }
  CHECK(own.entries() == 0);
}

TEST_CASE("a rank that can show nothing counts among its process's ranks, and all answer no") {
  const OwnRendezvous own;
  auto shown = std::make_unique<Meeting>(MeetingName{"half shown", 0});
  CHECK(shown->why_hidden() == "");
  std::unique_ptr<Meeting> hidden;
  {
    const OwnRendezvous unusable;
    REQUIRE(::symlink("/dev/null", unusable.path().c_str()) == 0);
    hidden = std::make_unique<Meeting>(MeetingName{"half shown", 1});
    ::unlink(unusable.path().c_str());
  }
  CHECK(hidden->why_hidden() != "");
  CHECK(hidden->digits() == shown->digits());
  CHECK(shown->in_process() == 2);
  CHECK(hidden->in_process() == 2);
  CHECK(!shown->find_all(0, 2, patience()));
  CHECK(!hidden->find_all(1, 2, patience()));
  int slot = -1;
  CHECK(hidden->take_liveness(slot) != "");
  CHECK(slot != -1);
  publish_detach(slot, DetachStage::unmapped);
  shown.reset();
  hidden.reset();
  Meeting one({"half shown", 0}), other({"half shown", 1});  // the counts of uses are still alike
  std::thread peer([&] { CHECK(other.find_all(1, 2, patience())); });
  CHECK(one.find_all(0, 2, patience()));
  peer.join();
}

TEST_CASE("a name is shown under another while its owner lives") {
  const OwnRendezvous own;
  CHECK(MeetingAlias::find("an id") == "");
  {
    const MeetingAlias shown("an id", "a long name");
    CHECK(MeetingAlias::find("an id") == "a long name");
    CHECK(MeetingAlias::find("another id") == "");
    const MeetingAlias twice("an id", "a long name");
    CHECK(MeetingAlias::find("an id") == "");
  }
  CHECK(own.entries() == 0);
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("processes meet") {
  const OwnRendezvous own;
  const Shared shared;
  constexpr int kRanks = 4;
  const std::vector<int> statuses = as_processes(kRanks, [&](int rank) {
    Meeting meeting({"of processes", rank});
    ++shared->entered;
    await(shared->entered, kRanks);
    return meeting.find_all(rank, kRanks, patience()) && meeting.in_process() == 1 &&
           exchange_rounds(meeting, rank, kRanks, 200);
  });
  for (const int status : statuses) CHECK(status == 0);
  CHECK(own.entries() == 0);
}

TEST_CASE("two jobs with one name at once do not meet, and both go on") {
  const OwnRendezvous own;
  const Shared shared;
  constexpr int kRanks = 2;
  const std::vector<int> statuses = as_processes(2 * kRanks, [&](int process) {
    Meeting meeting({"one id", process % kRanks});
    ++shared->entered;
    await(shared->entered, 2 * kRanks);
    const bool have_met = meeting.find_all(process % kRanks, kRanks, patience());
    ++shared->answered;
    await(shared->answered, 2 * kRanks);
    return !have_met;
  });
  for (const int status : statuses) CHECK(status == 0);
  CHECK(own.entries() == 0);
}

TEST_CASE("the entry of a killed process is not met, and is removed") {
  const OwnRendezvous own;
  const Shared shared;
  as_processes(2, [&](int rank) {
    const Meeting meeting({"of the dead", rank});
    const MeetingAlias alias(text("an id {}", rank), "of the dead");
    ++shared->entered;
    await(shared->entered, 2);
    ::kill(::getpid(), SIGKILL);
    return true;
  });
  CHECK(own.entries() == 4);
  CHECK(MeetingAlias::find("an id 0") == "");
  {
    Meeting one({"of the dead", 0});
    CHECK(own.entries() == 1);
    CHECK(!one.find_all(0, 2, patience()));
  }
  CHECK(own.entries() == 0);
}

TEST_CASE("a child made by fork leaves its parent's meeting alone") {
  const OwnRendezvous own;
  auto one = std::make_unique<Meeting>(MeetingName{"of a parent", 0});
  const pid_t child = ::fork();
  if (child == 0) {
    one.reset();
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(own.entries() == 1);
  Meeting other({"of a parent", 1});
  std::thread peer([&] { CHECK(other.find_all(1, 2, patience())); });
  CHECK(one->find_all(0, 2, patience()));
  peer.join();
}

TEST_CASE("a rank that ends before its answer is no rank that is here, or an error at once") {
  const OwnRendezvous own;
  for (const bool is_killed : {true, false}) {
    const Shared shared;
    const std::vector<int> statuses = as_processes(3, [&](int rank) {
      auto meeting = std::make_unique<Meeting>(MeetingName{text("early {}", is_killed), rank});
      ++shared->entered;
      await(shared->entered, 3);
      if (rank == 2) {
        ::usleep(50'000);  // while the others wait for the answer
        if (is_killed) ::kill(::getpid(), SIGKILL);
        meeting.reset();
        return true;
      }
      try {
        return !meeting->find_all(rank, 3, patience());
      } catch (const Error& error) {
        return is_killed && error.code() == ErrorCode::peer_lost;
      }
    });
    CHECK(statuses[0] == 0);
    CHECK(statuses[1] == 0);
  }
}

TEST_CASE("ranks that end at random leave no rank waiting and no entry") {
  const OwnRendezvous own;
  std::mt19937 random(20);
  for (int round = 0; round < 20; ++round) {
    const Shared shared;
    constexpr int kRanks = 3;
    const auto end_us = static_cast<unsigned>(random() % 4000);
    const bool is_killed = random() % 2 == 0;
    const std::vector<int> statuses = as_processes(kRanks, [&](int rank) {
      if (rank == 1 && is_killed)
        std::thread([end_us] {
          ::usleep(end_us);
          ::kill(::getpid(), SIGKILL);
        }).detach();
      Meeting meeting({text("random {}", round), rank});
      ++shared->entered;
      const std::int64_t until_ns = deadline_in(0.1);
      while (shared->entered < kRanks && now_ns() < until_ns) std::this_thread::yield();
      try {
        if (!meeting.find_all(rank, kRanks, patience())) return true;
        if (rank == 1 && !is_killed) return true;
        return exchange_rounds(meeting, rank, kRanks, 5);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::peer_lost) return true;
        throw;
      }
    });
    for (std::size_t rank = 0; rank < statuses.size(); ++rank)
      if (rank != 1) CHECK(statuses[rank] == 0);
    const Meeting next({"next", 0});
    CHECK(own.entries() == 1);
  }
  CHECK(own.entries() == 0);
}
#endif
