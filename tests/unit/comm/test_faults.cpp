// Tests faults that PLAIT_FAULT=step:rank:action injects: a process among several ranks ends or
// stops at a random step. Each survivor must report the lost rank or a timeout, and none may hang.
#include <doctest/doctest.h>

#include "unit/comm/family.hpp"
#include "unit/scale.hpp"

#ifdef PLAIT_FAULTS
#include <sys/resource.h>

#include <map>

#include "cpu/fault.hpp"

using namespace plait;

namespace {

// Number of fault points that fit in a minute on two busy cores. PLAIT_TEST_SCALE=2 reaches the
// goal of 2,000 points, 10 runs 10,000.
constexpr int kPoints = 1000;
constexpr int kStops = 10;

struct FaultPoint {
  int ranks;
  int victim;
  int step;
  std::string action;
  std::string print() const { return text("{}:{}:{}", step, victim, action); }
};

FaultPoint random_point(std::mt19937& random, const std::vector<std::string>& actions) {
  FaultPoint point{2 + static_cast<int>(random() % 3), 0, 0, actions[random() % actions.size()]};
  if (random() % 10 == 0) point.ranks = 5 + static_cast<int>(random() % 4);
  point.victim = static_cast<int>(random() % static_cast<unsigned>(point.ranks));
  // Prefers early steps, where the first calls' plans run for the first time.
  point.step = 1 + static_cast<int>(random() % (random() % 2 == 0 ? 20 : 400));
  return point;
}

/// Runs long and short all_reduces by strategies with different waits. Each call names a strategy,
/// because plait would take longer to choose a strategy than to run the call.
void sum_by_strategies(Communicator& comm, RankProcesses::Calls& calls) {
  struct NamedSum {
    const char* strategy;
    std::uint64_t count;
  };
  constexpr NamedSum kKinds[] = {{"one_shot", 1000},  {"direct", 200'000}, {"two_shot", 5000},
                                 {"ring", 30'000},    {"flat", 100'000},   {"direct", 77},
                                 {"two_shot", 40'000}};
  std::vector<float> in(200'000, 1.0f);
  std::vector<float> out(in.size());
  Request request;
  request.ranks = comm.ranks();
  CallOptions how;
  for (;; ++calls) {
    const NamedSum& kind = kKinds[calls % std::size(kKinds)];
    request.count = kind.count;
    how.strategy = kind.strategy;
    comm.run(request, in.data(), out.data(), how);
    if (out[0] != static_cast<float>(comm.ranks()) || out[request.count - 1] != out[0])
      throw Error(ErrorCode::internal, "wrong sum");
  }
}

RankProcesses::Body until_fault(const FaultPoint& point) {
  return [point](Communicator& comm, RankProcesses::Calls& calls) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(SIGABRT, SIG_DFL);  // or doctest's handler would report a failed test
    setenv("PLAIT_FAULT", point.print().c_str(), 1);
    current_fault() = fault_from_environment();
    sum_by_strategies(comm, calls);
  };
}

/// Counts tried points by action and by number of ranks, for the log.
class FaultTally {
 public:
  void add(const FaultPoint& point) {
    ++by_action_[point.action];
    ++by_ranks_[text("{} ranks", point.ranks)];
    ++points_;
  }
  std::string print() const {
    std::string line = text("{} points", points_);
    for (const auto* counts : {&by_action_, &by_ranks_})
      for (const auto& [name, count] : *counts) line += text(", {} {}", name, count);
    return line;
  }

 private:
  int points_ = 0;
  std::map<std::string, int> by_action_, by_ranks_;
};

/// Runs the ranks and checks every survivor's report.
void check_point(const FaultPoint& point, double deadline_s, ErrorCode wanted,
                 const std::string& words) {
  RankProcesses family(point.ranks, deadline_s, until_fault(point));
  for (int survivor = 1; survivor < point.ranks; ++survivor) {
    RankResult result{};
    REQUIRE_MESSAGE(family.next(result, 60000), "a survivor hangs: ", point.ranks, " ranks, ",
                    point.print());
    CAPTURE(point.ranks);
    CAPTURE(point.print());
    CAPTURE(result.rank);
    CAPTURE(result.sentence);
    CHECK(result.rank != point.victim);
    CHECK(result.code == static_cast<int>(wanted));
    CHECK(std::string(result.sentence).find(words) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("a rank that ends itself at any step is named by every survivor") {
  if (!kCanFork) {
    MESSAGE(kNoFork);
    return;
  }
  const int shm_before = shm_files_of_plait();
  const int descriptors_before = open_descriptors();
  std::mt19937 random(1121);
  FaultTally tally;
  for (int round = 0; round < plait_test::rounds(kPoints); ++round) {
    const FaultPoint point = random_point(random, {"kill", "kill", "abort", "exit"});
    check_point(point, 30, ErrorCode::peer_lost, text("rank {}", point.victim));
    tally.add(point);
  }
  MESSAGE(tally.print());
  CHECK(shm_files_of_plait() == shm_before);
  CHECK(open_descriptors() == descriptors_before);
}

TEST_CASE("if a rank stops itself at any step, every survivor times out at its deadline") {
  if (!kCanFork) {
    MESSAGE(kNoFork);
    return;
  }
  std::mt19937 random(2211);
  FaultTally tally;
  for (int round = 0; round < plait_test::rounds(kStops); ++round) {
    const FaultPoint point = random_point(random, {"stop"});
    check_point(point, 0.5, ErrorCode::timeout, "rank");
    tally.add(point);
  }
  MESSAGE(tally.print());
}

TEST_CASE("a fault that cannot be read is an error") {
  for (const char* wrong :
       {"1:2", "0:1:kill", "1:-1:kill", "x:1:kill", "1:1:faint", "1:1:kill:2"}) {
    setenv("PLAIT_FAULT", wrong, 1);
    CAPTURE(wrong);
    CHECK_THROWS_AS(fault_from_environment(), Error);
  }
  unsetenv("PLAIT_FAULT");
  CHECK(fault_from_environment().step == 0);
}
#endif
