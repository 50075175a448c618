// Runs the check of paths between GPUs on host threads. Sound machines pass, also with a busy GPU.
// If a path drops or changes data, or keeps a mirror or a stale copy, the rank that owns the memory
// finds the fault in time, by kernels and by copies.
#include "conformance/emulated_paths.hpp"
// After device_on_host.hpp.
#include <doctest/doctest.h>

#include "base/text.hpp"
#include "plait/error.hpp"

using namespace plait;
using namespace plait::cuda;
using plait_test::EmulatedPathFault;
using plait_test::EmulatedPaths;
using plait_test::PathTrouble;

namespace {

struct PathOutcome {
  std::vector<std::string> said;    ///< by rank: the fault found, or the error; empty = none
  std::vector<std::string> agreed;  ///< by rank: the result
  std::vector<int> exchanges;       ///< by rank
};
struct Stopped {};
constexpr std::uint64_t kNonce = 0x1234567;
constexpr int kExchanges = 5;  ///< in the last exchange, ranks report their faults
/// Ranks report whether the data are wrong or late, clear their memory, and check again.
constexpr int kExchangesTwice = kExchanges + 2 + kExchanges;

/// Runs the check of every rank. At each exchange all ranks stop if any rank has an error, as in
/// the set-up of communicators.
PathOutcome prove_all(int ranks, const EmulatedPathFault& trouble, const PathTimeouts& timeouts,
                      const std::vector<double>& late_s = {}) {
  const auto count = static_cast<std::size_t>(ranks);
  std::vector<std::unique_ptr<PathInbox>> memory;
  std::vector<PathInbox*> words;
  for (int rank = 0; rank < ranks; ++rank) {
    memory.push_back(std::make_unique<PathInbox>());
    words.push_back(memory.back().get());
  }
  std::atomic<bool> found{false};
  bool stopped = false;  // result of the latest exchange, equal on all ranks
  std::barrier barrier(ranks, [&]() noexcept { stopped = found.load(); });
  PathOutcome outcome{std::vector<std::string>(count), std::vector<std::string>(count),
                      std::vector<int>(count)};
  std::vector<std::string> records(count);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const auto me = static_cast<std::size_t>(rank);
      const Exchange exchange = [&](const std::string& mine) {
        records[me] = mine;
        barrier.arrive_and_wait();
        if (stopped) throw Stopped();
        const std::vector<std::string> all = records;
        barrier.arrive_and_wait();  // Peers have read the record before a rank overwrites it.
        if (stopped) throw Stopped();
        const int number = ++outcome.exchanges[me];
        if (number == kExchanges || number == kExchangesTwice) outcome.said[me] = mine;
        return all;
      };
      try {
        EmulatedPaths side(words, rank, kNonce, timeouts, trouble, late_s.empty() ? 0 : late_s[me]);
        outcome.agreed[me] = broken_path(side, exchange, rank, ranks, kNonce, timeouts);
      } catch (const Error& error) {
        outcome.said[me] = error.what();
        found.store(true);
        barrier.arrive_and_drop();
      } catch (const Stopped&) {  // because of another rank's error
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcome;
}

const PathTimeouts kShort{.start_s = 20, .wait_s = 1, .copy_s = 20};

bool names(const std::string& said, int rank, int peer) {
  return said.find(text("rank {}'s", rank)) != std::string::npos &&
         said.find(text("rank {}'s", peer)) != std::string::npos &&
         said.find("NCCL_P2P_DISABLE=1") != std::string::npos;
}

}  // namespace

TEST_CASE("sound paths pass the check, whichever rank's GPU is busy first") {
  for (const int ranks : {2, 3, 4}) {
    const PathOutcome outcome = prove_all(ranks, {}, {.start_s = 20, .wait_s = 5, .copy_s = 20});
    for (const std::string& said : outcome.said) CHECK(said.empty());
    for (const std::string& agreed : outcome.agreed) CHECK(agreed.empty());
    CHECK(outcome.exchanges == std::vector<int>(static_cast<std::size_t>(ranks), kExchanges));
  }
  // The GPU is busy for longer than any rank waits for a peer.
  const PathOutcome late = prove_all(2, {}, kShort, {2.5, 0});
  for (const std::string& said : late.said) CHECK(said.empty());
  const plait_test::SteppingClock stepping;  // as in a virtual machine that migrates
  const PathOutcome moved = prove_all(3, {}, kShort, {0.1, 0, 0});
  for (const std::string& said : moved.said) CHECK(said.empty());
}

TEST_CASE("stores of a kernel that their owner does not see are found by the owner") {
  for (const int ranks : {2, 3})
    for (const PathTrouble trouble : {PathTrouble::mirror, PathTrouble::stale, PathTrouble::flip}) {
      const PathTimeouts timeouts{
          .start_s = 20, .wait_s = trouble == PathTrouble::mirror ? 0.4 : 10, .copy_s = 20};
      const PathOutcome outcome =
          prove_all(ranks, {.writer = 1, .owner = 0, .stores = trouble}, timeouts);
      CAPTURE(static_cast<int>(trouble));
      CAPTURE(outcome.said[0]);
      CAPTURE(outcome.said[1]);
      CHECK(names(outcome.said[0], 0, 1));
      for (const std::string& agreed : outcome.agreed) CHECK(agreed == outcome.said[0]);
      const bool is_silent = outcome.said[0].find("did not arrive within") != std::string::npos;
      CHECK(is_silent == (trouble == PathTrouble::mirror));
      // Rank 1's own loads take the same path, and fail if the check reaches these loads. Other
      // ranks find no fault.
      const bool finds = outcome.said[1].find("loads from rank 0's") != std::string::npos;
      CHECK((finds || (is_silent && outcome.said[1].empty())));
      for (std::size_t other = 2; other < outcome.said.size(); ++other)
        CHECK(outcome.said[other].empty());
    }
}

TEST_CASE("copies that do not arrive, arrive once, or arrive changed are found by their receiver") {
  for (const PathTrouble trouble : {PathTrouble::mirror, PathTrouble::stale, PathTrouble::flip}) {
    const PathTimeouts timeouts{.start_s = 20, .wait_s = 5, .copy_s = 20};
    const PathOutcome pushed = prove_all(3, {.writer = 2, .owner = 1, .pushes = trouble}, timeouts);
    CHECK(names(pushed.said[1], 1, 2));
    CHECK(pushed.said[1].find("copies into") != std::string::npos);
    CHECK(pushed.said[0].empty());
    CHECK(pushed.said[2].empty());
    const PathOutcome pulled = prove_all(3, {.writer = 2, .owner = 1, .pulls = trouble}, timeouts);
    CHECK(names(pulled.said[2], 2, 1));
    for (const std::string& agreed : pulled.agreed) CHECK(agreed == pulled.said[2]);
    CHECK(pulled.said[2].find("copies out of") != std::string::npos);
    CHECK(pulled.said[0].empty());
    CHECK(pulled.said[1].empty());
  }
}

TEST_CASE("a host that stalls once is no broken path, one that stalls twice is") {
  const PathTimeouts timeouts{.start_s = 20, .wait_s = 0.5, .copy_s = 20};
  for (const int ranks : {2, 3}) {
    EmulatedPathFault stall{.writer = 1, .owner = 0, .stall_s = 3, .stalls = 1};
    const PathOutcome once = prove_all(ranks, stall, timeouts);
    for (const std::string& agreed : once.agreed) CHECK(agreed.empty());
    for (const int exchanges : once.exchanges) CHECK(exchanges == kExchangesTwice);
    stall.stalls = 2;
    const PathOutcome twice = prove_all(ranks, stall, timeouts);
    for (const std::string& agreed : twice.agreed)
      CHECK(agreed.find("rank 1's GPU stores into rank 0's did not arrive within") !=
            std::string::npos);
  }
}

TEST_CASE("wrong data is not checked twice") {
  const PathOutcome outcome =
      prove_all(2, {.writer = 1, .owner = 0, .pushes = PathTrouble::flip}, kShort);
  for (const int exchanges : outcome.exchanges) CHECK(exchanges == kExchanges + 1);
  CHECK(outcome.agreed[0].find("copies into") != std::string::npos);
}

TEST_CASE("a GPU that never gets to the kernel is an error in time") {
  const PathTimeouts timeouts{.start_s = 0.3, .wait_s = 0.3, .copy_s = 20};
  const PathOutcome outcome = prove_all(2, {}, timeouts, {0, 2.0});
  CHECK(outcome.said[1].find("rank 1's GPU was busy for 0.3 s") != std::string::npos);
}
