// AgreedNumber: ranks that never synchronise agree on a number for each call: the same on all
// ranks, and at most any rank's proposal at that time, however far a rank is ahead.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpu/consensus/agreed_number.hpp"
#include "plait/error.hpp"

namespace plait::cuda {
namespace {

constexpr std::uint64_t kAbout = 512ull << 20;

TEST_CASE("the first rank decides: the lesser of both proposals") {
  const auto page = std::make_unique<AgreedNumber::NumberPage>();
  AgreedNumber first(*page, 0, 2, 1.0), second(*page, 1, 2, 1.0);
  CHECK(first.next(7, kAbout) == 7);  // the second rank has proposed nothing yet
  CHECK(first.next(255, kAbout) == 255);
  CHECK(second.next(3, kAbout) == 7);
  CHECK(first.next(12, kAbout) == 3);
  CHECK(second.next(12, kAbout) == 255);
  CHECK(second.next(12, kAbout) == 3);
  CHECK(second.next(0, kAbout) == 0);
  CHECK(first.next(12, kAbout) == 0);
}

/// Checks the numbers of all ranks for each call.
void check_many(int ranks) {
  constexpr std::size_t kMany = 8 * AgreedNumber::kCalls + 17;
  const auto page = std::make_unique<AgreedNumber::NumberPage>();
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<std::vector<int>> wanted(n), got(n);
  for (std::size_t rank = 0; rank < n; ++rank) {
    page->calls_done[rank] =
        (1ull << 32) - 3 * AgreedNumber::kCalls;  // past the numbers that a 32-bit counter holds
    std::minstd_rand random(static_cast<unsigned>(rank) + 5);
    for (std::size_t i = 0; i < kMany; ++i) wanted[rank].push_back(static_cast<int>(random() % 13));
    got[rank].reserve(kMany);
  }
  const auto side = [&](std::size_t rank) {
    AgreedNumber agreed(*page, static_cast<int>(rank), ranks, 60.0);
    for (std::size_t i = 0; i < kMany; ++i) got[rank].push_back(agreed.next(wanted[rank][i], i));
  };
  std::vector<std::thread> others;
  for (std::size_t rank = 1; rank < n; ++rank) others.emplace_back(side, rank);
  side(0);
  for (std::thread& one : others) one.join();
  std::size_t above_all = 0;
  for (std::size_t i = 0; i < kMany; ++i) {
    int most = 0;
    for (std::size_t rank = 0; rank < n; ++rank) most = std::max(most, wanted[rank][i]);
    above_all += got[0][i] > most ? 1 : 0;
  }
  CHECK(above_all == 0);
  for (std::size_t rank = 1; rank < n; ++rank) CHECK(got[rank] == got[0]);
}

TEST_CASE("many ranks at once settle the same numbers, over many wraps") {
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    check_many(ranks);
  }
}

TEST_CASE("with more than two ranks, the least of the last proposals") {
  const auto page = std::make_unique<AgreedNumber::NumberPage>();
  AgreedNumber first(*page, 0, 3, 1.0), second(*page, 1, 3, 1.0), third(*page, 2, 3, 1.0);
  CHECK(third.next(9, kAbout) == 9);
  CHECK(first.next(4, kAbout) == 9);
  CHECK(third.next(9, kAbout) == 4);
  CHECK(second.next(2, kAbout) == 9);
  CHECK(first.next(8, kAbout) == 4);
  CHECK(first.next(8, kAbout) == 2);
  CHECK(second.next(8, kAbout) == 4);
  CHECK(second.next(8, kAbout) == 2);
  CHECK(third.next(7, kAbout) == 2);
  CHECK(second.next(8, kAbout) == 7);
}

TEST_CASE("only judges decide, and others' proposals are not stored") {
  const auto page = std::make_unique<AgreedNumber::NumberPage>();
  AgreedNumber first(*page, 0, 2, 1.0), second(*page, 1, 2, 1.0);
  constexpr std::uint32_t kSecond = 2;
  CHECK(first.next(12, kAbout, kSecond) == 12);  // no judge has proposed a number yet
  CHECK(second.next(3, kAbout, kSecond) == 12);
  CHECK(first.next(12, kAbout, kSecond) == 3);  // the judge's last proposal
  CHECK(second.next(5, kAbout, kSecond) == 3);
  CHECK(second.next(7, kAbout, kSecond) == 7);
  CHECK(first.next(0, kAbout, kSecond) == 7);
  CHECK(second.next(6, kAbout) == 6);  // no rank has seen the 0
  CHECK(first.next(9, kAbout) == 6);
}

TEST_CASE("a rank far ahead waits, and names the rank waited for") {
  const auto page = std::make_unique<AgreedNumber::NumberPage>();
  AgreedNumber ahead(*page, 1, 2, 0.01), behind(*page, 0, 2, 0.01);
  for (std::uint64_t i = 0; i < AgreedNumber::kCalls; ++i) REQUIRE(ahead.next(1, kAbout) == 1);
  try {
    ahead.next(1, kAbout);
    FAIL("went on");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::timeout);
    CHECK(std::string(error.what()).find("rank 0") != std::string::npos);
  }
  CHECK(behind.next(4, kAbout) == 1);  // the agreed number is not lost,
  CHECK(ahead.next(4, kAbout) == 4);   // and a call more is free
}

TEST_CASE("two ranks with different calls get an error") {
  const auto page = std::make_unique<AgreedNumber::NumberPage>();
  AgreedNumber first(*page, 0, 2, 1.0), second(*page, 1, 2, 1.0);
  CHECK(first.next(5, 1000) == 5);
  try {
    second.next(5, 1001);
    FAIL("went on");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::mismatch);
    CHECK(std::string(error.what()).find("large call number 0 of rank 1") != std::string::npos);
  }
}

TEST_CASE("two ranks that both send first, with equal sizes, get an error too") {
  const auto page = std::make_unique<AgreedNumber::NumberPage>();
  AgreedNumber first(*page, 0, 2, 1.0), second(*page, 1, 2, 1.0);
  CHECK(first.next(5, kAbout, 2) == 5);
  CHECK_THROWS_AS(second.next(5, kAbout, 1), Error);
}

}  // namespace
}  // namespace plait::cuda
